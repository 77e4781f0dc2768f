"""The tree that leaves make by their new names."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any, cast

import numpy as np

import pytree

_QUOTED = re.compile(r"(?<![^/])'(0|[1-9][0-9]{0,8})'(?![^/])")
"""A whole key that is text and reads as a number."""


def nest_by_path(numbers: Mapping[str, int]) -> pytree.Structure:
    """Return the structure of nested dicts in which each path has the leaf numbered.

    Paths with one number are tied. ValueError where one path is a leaf and a folder.

    >>> nest_by_path({"layers/w0": 0, "head": 1}).positions
    ('layers/w0', 'head')
    """
    # Arrays stand for the leaves: pytree takes one array in two places for a tie.
    marks = {number: np.empty(0) for number in numbers.values()}
    root: dict[Any, Any] = {}
    for path, number in numbers.items():
        *above, last = pytree.parse_path(path) or ("",)
        node = root
        for key in above:
            below = node.setdefault(key, {})
            if type(below) is not dict:
                raise _clash(path)
            node = cast("dict[Any, Any]", below)
        if node.setdefault(last, marks[number]) is not marks[number]:
            raise _clash(path)
    return pytree.flatten(root)[1]


def number_by_like(saved: Mapping[str, int], like: Container[str]) -> dict[str, int]:
    """Return the paths of a checkpoint that has text where `like` has numbers.

    flax and PyTorch save the places of a tuple as the keys "0", "1": a path takes the
    numbers where `like` has those, and not the text.

    >>> number_by_like({"opt/'0'/mu": 7, "'1'": 8}, {"opt/0/mu", "'1'"})
    {'opt/0/mu': 7, "'1'": 8}
    """
    found: dict[str, int] = {}
    for path, number in saved.items():
        bare = _QUOTED.sub(r"\1", path)
        taken = path in like or bare not in like or bare in saved
        found[path if taken else bare] = number
    return found


def _clash(path: str) -> ValueError:
    return ValueError(
        f"expected rename= to make distinct places, found a leaf and a folder in one "
        f"- at `{path}`: change the rules"
    )
