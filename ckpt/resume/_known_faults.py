"""Warns of sources that are known to go on wrongly after a resume."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

from ._kind import comes_from

_FIRST_RIGHT = {
    "torchdata": ("StatefulDataLoader", (0, 11), "shuffles the next epochs otherwise"),
    "datasets": ("IterableDataset", (5, 1), "repeats or loses rows at a resume"),
}
"""Of a package: the class, the first version seen to be right, what others do."""


def find_faults(source: Any) -> list[str]:
    """Return a sentence for each way in which a resume of this source is inexact."""
    parts = [source, getattr(source, "dataset", None)]
    return [
        fault for part in parts for fault in (*_find_old(part), *_find_buffers(part))
    ]


def warn_of_faults(source: Any) -> None:
    """Warn the caller's caller of each."""
    for fault in find_faults(source):
        warnings.warn(fault, stacklevel=3)


def _find_old(source: Any) -> list[str]:
    found: list[str] = []
    for package, (name, right, effect) in _FIRST_RIGHT.items():
        if not comes_from(source, package, name):
            continue
        version = str(getattr(sys.modules.get(package), "__version__", ""))
        numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
        if numbers and numbers < right:
            wanted = ".".join(map(str, right))
            found.append(
                f"{name} of {package} {version} {effect}: use {package}>={wanted}"
            )
    return found


def _find_buffers(source: Any) -> list[str]:
    """Return what shuffle buffers lose: their rows are in no state."""
    found: list[str] = []
    step = getattr(source, "_ex_iterable", None)
    while step is not None:
        rows = getattr(step, "buffer_size", 0)
        if type(step).__name__.startswith("BufferShuffled") and rows > 1:
            found.append(
                f"a resume loses up to {rows} rows: those in the shuffle buffer of the "
                f"IterableDataset are not in its state; shuffle a map-style dataset "
                f"(pass it with seed= to ckpt.resume.Stream), or shuffle shards alone "
                f"(buffer_size=1)"
            )
        step = getattr(step, "ex_iterable", None)
    return found
