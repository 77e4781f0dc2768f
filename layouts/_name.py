"""The names under which leaves are stored: safe, short and unique everywhere.

A name is the path text (already percent-escaped, so without "~") with quotes escaped
too. What is long, reserved by Zarr, or equal to another's, case aside, is shortened and
given a hash behind "~"; the path itself stands in the manifest and the attributes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from ._errors import InvalidLayout, show

_SEGMENT_LENGTH = 100
_NAME_LENGTH = 700
_RESERVED = {"zarr.json", "manifest.json", "parts"}
_PATTERN = re.compile(r"[A-Za-z0-9._~%-]+(?:/[A-Za-z0-9._~%-]+)*")
_DOTS = re.compile(r"(?:^|/)\.{1,2}(?:/|$)")


def assign_names(paths: Iterable[str]) -> dict[str, str]:
    """Return a storage name for each path; a pure function of the paths, in order.

    >>> names = assign_names(["a/W", "a/w", "zarr.json"])
    >>> list(names.values())
    ['a/W', 'a/w~d4d8f0076eb8a7f1', 'zarr.json~b03c070e27975316']
    """
    taken: dict[str, str] = {}
    return {path: _name(path, taken) for path in paths}


def _name(path: str, taken: dict[str, str]) -> str:
    name = ""
    parent = None
    for segment in path.split("/"):
        origin = segment if parent is None else f"{parent}/{segment}"
        plain = segment.replace("'", "%27") or "~root"
        if len(plain) > _SEGMENT_LENGTH or _is_reserved(plain):
            plain = f"{plain[:60]}~{_hash(segment)}"
        prefix = f"{name}/{plain}" if name else plain
        if taken.setdefault(prefix.casefold(), origin) != origin:
            prefix = f"{prefix}~{_hash(origin)}"
            taken.setdefault(prefix.casefold(), origin)
        name, parent = prefix, origin
    return name if len(name) <= _NAME_LENGTH else f"{name[:60]}~{_hash(path)}"


def _is_reserved(segment: str) -> bool:
    return segment.casefold() in _RESERVED or not segment.strip(".")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_name(name: object) -> str:
    """Return `name` if it is safe to use below a checkpoint, else InvalidLayout.

    >>> check_name("../x")
    Traceback (most recent call last):
    layouts.InvalidLayout: expected a safe object name, found '../x'
    """
    if (
        isinstance(name, str)
        and len(name) <= 1024
        and _PATTERN.fullmatch(name)
        and not _DOTS.search(name)
    ):
        return name
    raise InvalidLayout(f"expected a safe object name, found {show(name)}")


def pack_name(process: int, number: int) -> str:
    """Return the name of a process's pack; no leaf's name begins with "~pack"."""
    return f"~packs/{process}-{number}"


def part_name(process: int) -> str:
    """Return the name of a process's part."""
    return f"parts/{process}.json"
