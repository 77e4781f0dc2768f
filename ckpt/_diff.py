"""What differs between two checkpoints: structure, shapes, dtypes, specs, values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import layouts
import pytree
from layouts import Box, Leaf

from ._catalog import Openable, Opened, open_path
from ._checkpoint import describe, read_box
from ._store_options import GivenOptions


@dataclass(frozen=True, slots=True)
class Change:
    """How one leaf or container differs.

    `kind` is "added", "removed", "type", "layout" or "value" of a leaf, or "structure"
    of a container (its type, static data, ties of its leaves). For values: `count`
    elements have other bits, `max_abs` is the largest absolute difference (NaN where
    only one side is NaN; None where the dtype has no differences).
    """

    path: str
    kind: str
    left: str
    right: str
    count: int = 0
    max_abs: float | None = None

    def __str__(self) -> str:
        if self.kind == "value":
            size = (
                "" if self.max_abs is None else f", max |difference| {self.max_abs:.3g}"
            )
            return f"value     `{self.path}`: {self.count:,} elements differ{size}"
        return f"{self.kind:9} `{self.path}`: {self.left} -> {self.right}"


@dataclass(frozen=True, slots=True)
class Diff:
    """All changes between two checkpoints, by path; empty (false) if they are equal."""

    left: str
    right: str
    changes: tuple[Change, ...]
    compared: int

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        head = f"{self.left} -> {self.right}: {self.compared} leaves compared, "
        count = len(self.changes)
        return "\n".join(
            [head + (f"{count} changes" if count else "equal"), *map(str, self.changes)]
        )


def diff(
    left: Openable,
    right: Openable,
    *,
    left_step: int | None = None,
    right_step: int | None = None,
    store_options: GivenOptions | None = None,
) -> Diff:
    """Compare two checkpoints leaf by leaf, values bit by bit, streamed.

    Paths are runs (newest committed step, or `left_step`, `right_step`) or checkpoints.

    >>> import ckpt
    >>> a = ckpt.save({"x": 1}, None, "memory://doc-diff", step=0)
    >>> b = ckpt.save({"x": 2}, None, "memory://doc-diff", step=1)
    >>> [c.path for c in ckpt.diff(a.url, b.url).changes]
    ['x']
    """
    a = open_path(left, left_step, store_options)
    b = open_path(right, right_step, store_options)
    ours, theirs = _by_path(a), _by_path(b)
    changes: list[Change] = []
    for path in dict.fromkeys([*ours, *theirs]):
        if path not in theirs:
            changes.append(Change(path, "removed", describe(ours[path][1]), "nothing"))
        elif path not in ours:
            changes.append(Change(path, "added", "nothing", describe(theirs[path][1])))
        else:
            changes += _compare(a, b, path, ours[path], theirs[path])
    common = ours.keys() & theirs.keys()
    containers = pytree.compare_containers(a.manifest.structure, b.manifest.structure)
    changes += [Change(path, "structure", x, y) for path, x, y in containers]
    return Diff(_name(a), _name(b), tuple(changes), len(common))


def _name(opened: Opened) -> str:
    return f"{opened.store.url} step {opened.manifest.step}"


def _by_path(opened: Opened) -> dict[str, tuple[int, Leaf]]:
    manifest = opened.manifest
    found = {x.path: (n, x) for n, x in enumerate(manifest.leaves)}
    return found | {
        alias: found[path] for alias, path in manifest.structure.ties.items()
    }


def _compare(
    a: Opened, b: Opened, path: str, left: tuple[int, Leaf], right: tuple[int, Leaf]
) -> Iterator[Change]:
    (m, x), (n, y) = left, right
    if _type(x) != _type(y):
        yield Change(path, "type", describe(x), describe(y))
        return
    if x.placement != y.placement:
        yield Change(path, "layout", _layout(x), _layout(y))
    if x.store is None:
        if x.value != y.value:
            yield Change(path, "value", describe(x), describe(y), 1)
        return
    count, largest = 0, None
    for box in _blocks(x):
        differ, size = _difference(read_box(a, m, box), read_box(b, n, box), x)
        count += differ
        if size is not None:
            largest = size if largest is None else _larger(largest, size)
    if count:
        yield Change(path, "value", describe(x), describe(y), count, largest)


def _type(leaf: Leaf) -> Any:
    return (leaf.kind, leaf.dtype, leaf.shape, leaf.weak, leaf.impl, leaf.store is None)


def _layout(leaf: Leaf) -> str:
    if leaf.placement is None or leaf.placement.spec is None:
        return "no spec"
    return f"{layouts.format_spec(leaf.placement.spec)} on {leaf.placement.mesh}"


def _blocks(leaf: Leaf) -> Iterator[Box]:
    """Yield boxes that tile a leaf, each small enough to hold two of."""
    for number in range(leaf.cells.length):
        yield leaf.cells.box(leaf.cells.coordinates(number))


def _difference(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], leaf: Leaf
) -> tuple[int, float | None]:
    stored = layouts.stored_dtype(leaf.dtype)
    width = np.dtype(f"V{stored.itemsize}")
    bits = [v.view(stored).reshape(-1).view(np.uint8) for v in (x, y)]
    rows = [b.reshape(-1, width.itemsize) for b in bits]
    differ = (rows[0] != rows[1]).any(axis=1)
    count = int(differ.sum())
    if not count:
        return 0, None
    a, b = (v.reshape(-1)[differ] for v in (x, y))
    if leaf.dtype == "bool" or leaf.kind == "key":
        return count, None
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        sizes = np.abs(a.astype(wide) - b.astype(wide))
    same = np.isnan(a.astype(wide)) & np.isnan(b.astype(wide))
    same |= a.astype(wide) == b.astype(wide)
    return count, float(np.max(np.where(same, 0.0, sizes)))


def _larger(a: float, b: float) -> float:
    return b if b > a or b != b else a
