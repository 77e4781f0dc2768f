"""What must be read to fill some boxes: which cells, which chunks, in what runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ._box import Box, Grid, intersect
from ._leaf import Chunked, Leaf
from ._part import CHECKSUM_BYTES

REQUEST_BYTES = 1 << 20
"""Adjacent chunks are read in requests of at most this many bytes (one at least)."""


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

    >>> leaf = Leaf("w", "jax", "float32", (4, 4), store=Packed((2, 4)))
    >>> [c.cell for c in plan_leaf_read(0, leaf, [Box((2, 0), (2, 2))]).cells]
    [1]
    """
    if len(targets) == 1 and not isinstance(leaf.store, Chunked):
        return _plan_single(number, leaf, targets[0])
    needed: dict[int, list[int]] = {}
    for target, box in enumerate(targets):
        for cell in leaf.cells.numbers(box):
            needed.setdefault(cell, []).append(target)
    cells: list[CellRead] = []
    read = 0
    for cell, touching in sorted(needed.items()):
        chunks, size = _chunks(leaf, cell, [targets[t] for t in touching])
        cells.append(CellRead(number, cell, leaf.writer(cell), chunks, tuple(touching)))
        read += size
    wanted = sum(box.size for box in targets) * leaf.itemsize
    return LeafRead(number, tuple(targets), tuple(cells), wanted, read)


def _plan_single(number: int, leaf: Leaf, box: Box) -> LeafRead:
    """Plan the most common leaf of all, a small packed one, in few steps."""
    cells = tuple(
        CellRead(number, cell, leaf.writer(cell), (), (0,))
        for cell in leaf.cells.numbers(box)
    )
    boxes = (leaf.cells.box(leaf.cells.coordinates(c.cell)) for c in cells)
    read = (
        leaf.nbytes
        if len(cells) == leaf.cells.length
        else sum(b.size for b in boxes) * leaf.itemsize
    )
    return LeafRead(number, (box,), cells, box.size * leaf.itemsize, read)


def _chunks(leaf: Leaf, cell: int, boxes: list[Box]) -> tuple[tuple[int, ...], int]:
    """Return the chunks of a cell that the boxes touch, and the bytes to read."""
    box = leaf.cells.box(leaf.cells.coordinates(cell))
    if not isinstance(leaf.store, Chunked):
        return (), box.size * leaf.itemsize
    grid = Grid(box.shape, leaf.store.chunk)
    found: set[int] = set()
    for target in boxes:
        common = intersect(box, target)
        if common is not None:
            start = tuple(a - o for a, o in zip(common.start, box.start, strict=True))
            found.update(grid.numbers(Box(start, common.shape)))
            if len(found) == grid.length:
                break
    size = math.prod(leaf.store.chunk) * leaf.itemsize + CHECKSUM_BYTES
    return tuple(sorted(found)), size * len(found)


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
