"""The tree that leaves make by their new names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

import pytree


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


def _clash(path: str) -> ValueError:
    return ValueError(
        f"expected rename= to make distinct places, found a leaf and a folder in one "
        f"- at `{path}`: change the rules"
    )
