"""What must be read to fill some boxes: which cells, which chunks, in what runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ._box import Box, Grid, intersect
from ._leaf import Chunked, Leaf, Loose, Packed
from ._part import CHECKSUM_BYTES
from ._spans import count_span_items, find_wanted, plan_spans

REQUEST_BYTES = 1 << 20
"""Adjacent chunks are read in requests of at most this many bytes (one at least)."""

_SHARED_CELLS = 1 << 10
"""What touches more cells than this is not kept for the next leaf of its shape."""


@dataclass(frozen=True, slots=True)
class CellRead:
    """The part of one cell (object, or packed piece) that some target boxes need."""

    leaf: int
    cell: int
    writer: int
    chunks: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeafRead:
    """The boxes of one leaf to fill, and the cells to read for them."""

    leaf: int
    targets: tuple[Box, ...]
    cells: tuple[CellRead, ...]
    wanted: int
    read: int


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What one process reads: whole chunks, each once however many boxes need it."""

    leaves: tuple[LeafRead, ...]

    @property
    def wanted(self) -> int:
        """Bytes of the boxes to fill, each distinct box counted once."""
        return sum(leaf.wanted for leaf in self.leaves)

    @property
    def read(self) -> int:
        """Bytes of the chunks to read, checksums included where they are stored."""
        return sum(leaf.read for leaf in self.leaves)

    @property
    def writers(self) -> tuple[int, ...]:
        """The processes whose parts must be opened."""
        cells = (cell for leaf in self.leaves for cell in leaf.cells)
        return tuple(sorted({cell.writer for cell in cells}))


def plan_leaf_read(number: int, leaf: Leaf, targets: Sequence[Box]) -> LeafRead:
    """Return which cells and chunks of a leaf fill the target boxes.

    >>> from layouts import Leaf, Packed
    >>> leaf = Leaf("w", "jax", "float32", (4, 4), store=Packed((2, 4)))
    >>> [c.cell for c in plan_leaf_read(0, leaf, [Box((2, 0), (2, 2))]).cells]
    [1]
    """
    store = leaf.store
    if isinstance(store, Loose):
        return _plan_loose(number, leaf, store, tuple(targets))
    if isinstance(store, Packed) and store.piece == leaf.shape:
        return _plan_single(number, leaf, tuple(targets))
    boxes, itemsize = tuple(targets), leaf.itemsize
    touched = _touch_cells(leaf.cells, boxes)
    cells: list[CellRead] = []
    read = 0
    for (cell, box, touching), writer in zip(
        touched, leaf.writers([cell for cell, _, _ in touched]), strict=True
    ):
        chunks: tuple[int, ...] = ()
        if isinstance(store, Chunked):
            found = Grid(box.shape, store.chunk)
            chunks = _chunks(found, box, [boxes[t] for t in touching])
            stored = math.prod(store.chunk) * itemsize + CHECKSUM_BYTES
            read += stored * len(chunks)
        else:
            read += box.size * itemsize
        cells.append(CellRead(number, cell, writer, chunks, touching))
    wanted = sum([box.size for box in boxes]) * itemsize
    return LeafRead(number, boxes, tuple(cells), wanted, read)


Touched = tuple[int, Box, tuple[int, ...]]
"""The number and box of a cell, and the numbers of the targets that touch it."""


def _touch_cells(grid: Grid, targets: tuple[Box, ...]) -> tuple[Touched, ...]:
    """Return the cells that any target touches; leaves of one shape share the work."""
    small = grid.length * len(targets) <= _SHARED_CELLS
    return _touch(grid, targets) if small else _touch.__wrapped__(grid, targets)


@lru_cache(maxsize=128)
def _touch(grid: Grid, targets: tuple[Box, ...]) -> tuple[Touched, ...]:
    needed: dict[int, list[int]] = {}
    for target, box in enumerate(targets):
        for cell in grid.numbers(box):
            needed.setdefault(cell, []).append(target)
    return tuple(
        [
            (cell, grid.box(grid.coordinates(cell)), tuple(touching))
            for cell, touching in sorted(needed.items())
        ]
    )


def _plan_single(number: int, leaf: Leaf, targets: tuple[Box, ...]) -> LeafRead:
    """Plan the most common leaf of all, one packed piece, in few steps."""
    touching = tuple([t for t, box in enumerate(targets) if 0 not in box.shape])
    if not touching:
        return LeafRead(number, targets, (), 0, 0)
    nbytes = leaf.nbytes
    if len(targets) == 1 and targets[0].shape == leaf.shape:
        wanted = nbytes
    else:
        wanted = sum([box.size for box in targets]) * leaf.itemsize
    cells = (CellRead(number, 0, leaf.writer(0), (), touching),)
    return LeafRead(number, targets, cells, wanted, nbytes)


def _plan_loose(
    number: int, leaf: Leaf, store: Loose, targets: tuple[Box, ...]
) -> LeafRead:
    """Plan what another library's file is read for: runs of it, or whole chunks."""
    itemsize = leaf.itemsize
    wanted = sum([box.size for box in targets]) * itemsize
    if store.blocks:
        gap = store.gap // itemsize
        found = [
            count_span_items(store.blocks[block].shape, parts, gap=gap)
            for block, parts in find_wanted(store.blocks, targets).items()
        ]
        return LeafRead(number, targets, (), wanted, sum(found) * itemsize)
    cells = {cell for box in targets for cell in leaf.cells.numbers(box)}
    sizes = (leaf.cells.box(leaf.cells.coordinates(cell)).size for cell in cells)
    return LeafRead(number, targets, (), wanted, sum(sizes) * itemsize)


def count_loose_requests(leaf: Leaf, read: LeafRead, *, request_bytes: int) -> int:
    """Return in how many requests a loose leaf is read: runs, or chunks."""
    store = leaf.store
    if not isinstance(store, Loose) or not store.blocks:
        return -(-read.read // request_bytes)
    found = 0
    for block, parts in find_wanted(store.blocks, read.targets).items():
        gap = store.gap // leaf.itemsize
        for span in plan_spans(store.blocks[block].shape, parts, gap=gap):
            found += -(-span.size * leaf.itemsize // request_bytes)
    return found


def _chunks(grid: Grid, box: Box, targets: Sequence[Box]) -> tuple[int, ...]:
    """Return the chunks of a cell that the targets touch; the cell begins at `box`."""
    found: set[int] = set()
    for target in targets:
        common = intersect(box, target)
        if common is None:
            continue
        if common.shape == box.shape:
            return tuple(range(grid.length))
        start = tuple([a - o for a, o in zip(common.start, box.start, strict=True)])
        found.update(grid.numbers(Box(start, common.shape)))
    return tuple(sorted(found))


def merge_runs(chunks: Iterable[int], *, most: int) -> Iterator[range]:
    """Yield runs of adjacent chunk numbers, none longer than `most`.

    >>> list(merge_runs([0, 1, 2, 5, 6], most=2))
    [range(0, 2), range(2, 3), range(5, 7)]
    """
    first = last = -1
    for chunk in chunks:
        if chunk == last and chunk - first < most:
            last = chunk + 1
            continue
        if first >= 0:
            yield range(first, last)
        first, last = chunk, chunk + 1
    if first >= 0:
        yield range(first, last)
