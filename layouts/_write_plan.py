"""What each process writes: a function of the leaves and who holds their pieces."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ._box import Grid, Shape
from ._cut import CHUNK_BYTES, OBJECT_BYTES, PACK_PIECE_BYTES, cut_chunk, cut_object
from ._leaf import Chunked, Leaf, Packed, Runs
from ._pack import PackRow, pack_rows, written_cells

Holders = tuple[tuple[int, ...], ...]
"""For each piece in C order, the processes that hold it, ascending."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """How a leaf lies on the job: the shape of its pieces, and who holds each.

    No holders: process 0 alone holds everything.
    """

    piece: Shape
    holders: Holders | None = None


@dataclass(frozen=True, slots=True)
class WriteLimits:
    """Sizes that shape what is written, in bytes."""

    object_bytes: int = OBJECT_BYTES
    chunk_bytes: int = CHUNK_BYTES

    @staticmethod
    def within(max_host_bytes: int | None) -> WriteLimits:
        """Return the limits for a budget: a remote object is held whole meanwhile."""
        if max_host_bytes is None:
            return WriteLimits()
        least = max(max_host_bytes // 4, 1 << 16)
        return WriteLimits(min(OBJECT_BYTES, least), min(CHUNK_BYTES, least))


def lay_out(
    leaf: Leaf, name: str, pieces: Pieces, *, limits: WriteLimits = WriteLimits()
) -> Leaf:
    """Return the leaf with its store chosen: packed pieces, or a Zarr array."""
    if math.prod(pieces.piece) * leaf.itemsize < PACK_PIECE_BYTES or not leaf.shape:
        return replace(leaf, store=Packed(pieces.piece))
    itemsize, shape = leaf.itemsize, leaf.shape
    chunk = cut_chunk(pieces.piece, itemsize, shape=shape, limit=limits.chunk_bytes)
    cell = cut_object(
        pieces.piece,
        chunk,
        itemsize,
        shape=shape,
        limit=limits.object_bytes,
        parts=max(map(len, pieces.holders)) if pieces.holders else 1,
    )
    return replace(leaf, store=Chunked(name, cell, chunk))


def assign_writers(
    leaves: Sequence[Leaf], pieces: Sequence[Pieces | None]
) -> tuple[Leaf, ...]:
    """Give every cell to one of the processes that hold it, evenly over the tree.

    Cells go in order to the holder with the fewest bytes so far, the lowest number
    first, so that every process finds the same answer without asking another.
    """
    loads: dict[int, int] = {}
    return tuple(
        _assign(leaf, held, loads) if held and held.holders else leaf
        for leaf, held in zip(leaves, pieces, strict=True)
    )


def _assign(leaf: Leaf, pieces: Pieces, loads: dict[int, int]) -> Leaf:
    holders = pieces.holders
    if leaf.store is None or holders is None or set(holders) == {(0,)}:
        return leaf
    cells, grid = leaf.cells, Grid(leaf.shape, pieces.piece)
    heaps: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    runs: list[tuple[int, int]] = []
    for number in range(cells.length):
        box = cells.box(cells.coordinates(number))
        piece = tuple(a // max(c, 1) for a, c in zip(box.start, grid.cell, strict=True))
        writer = _least_loaded(holders[grid.number(piece)], heaps, loads)
        loads[writer] = loads.get(writer, 0) + box.size * leaf.itemsize
        if runs and runs[-1][0] == writer:
            runs[-1] = (writer, runs[-1][1] + 1)
        else:
            runs.append((writer, 1))
    return replace(leaf, store=replace(leaf.store, writers=_runs(runs)))


def _runs(runs: list[tuple[int, int]]) -> Runs:
    return () if all(process == 0 for process, _ in runs) else tuple(runs)


def _least_loaded(
    holders: tuple[int, ...],
    heaps: dict[tuple[int, ...], list[tuple[int, int]]],
    loads: dict[int, int],
) -> int:
    """Return the holder with the least load; a heap's stale loads are refreshed."""
    if len(holders) == 1:
        return holders[0]
    heap = heaps.setdefault(holders, [(0, process) for process in holders])
    while (load := loads.get(heap[0][1], 0)) != heap[0][0]:
        heapq.heapreplace(heap, (load, heap[0][1]))
    return heap[0][1]


@dataclass(frozen=True, slots=True)
class ObjectWrite:
    """One object of a Zarr array to write, and its bytes before any codec."""

    leaf: int
    object: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What one process writes: objects of Zarr arrays, and rows of packs."""

    process: int
    leaves: tuple[Leaf, ...]
    objects: tuple[ObjectWrite, ...]
    rows: tuple[PackRow, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of array data this process writes, before any codec."""
        packed = sum(row.length for row in self.rows)
        return packed + sum(write.nbytes for write in self.objects)

    def __str__(self) -> str:
        packs = len({row.pack for row in self.rows})
        return (
            f"process {self.process} writes {self.nbytes:,} bytes: "
            f"{len(self.objects)} objects and {len(self.rows)} pieces in {packs} packs"
        )


def plan_write(leaves: Sequence[Leaf], process: int) -> WritePlan:
    """Return what a process writes, in the order in which its part lists it."""
    objects = tuple(
        ObjectWrite(number, cell, _cell_bytes(leaf, cell))
        for number, leaf in enumerate(leaves)
        if isinstance(leaf.store, Chunked)
        for cell in written_cells(leaf, process)
    )
    return WritePlan(process, tuple(leaves), objects, tuple(pack_rows(leaves, process)))


def _cell_bytes(leaf: Leaf, cell: int) -> int:
    return leaf.cells.box(leaf.cells.coordinates(cell)).size * leaf.itemsize
