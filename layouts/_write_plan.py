"""What each process writes: a function of the leaves and who holds their pieces."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ._box import Grid, Shape
from ._cut import (
    CHUNK_BYTES,
    OBJECT_BYTES,
    PACK_BYTES,
    PACK_PIECE_BYTES,
    cut_chunk,
    cut_object,
)
from ._leaf import Chunked, Leaf, Packed
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
    pack_bytes: int = PACK_BYTES

    @staticmethod
    def within(max_host_bytes: int | None) -> WriteLimits:
        """Return the limits for a budget: a remote object is held whole meanwhile."""
        if max_host_bytes is None:
            return WriteLimits()
        least = max(max_host_bytes // 4, 1 << 16)
        return WriteLimits(
            min(OBJECT_BYTES, least), min(CHUNK_BYTES, least), min(PACK_BYTES, least)
        )


def lay_out(
    leaf: Leaf, name: str, pieces: Pieces, *, limits: WriteLimits = WriteLimits()
) -> Leaf:
    """Return the leaf with its store chosen: packed pieces, or a Zarr array."""
    piece, shape, itemsize = pieces.piece, leaf.shape, leaf.itemsize
    size = math.prod(piece) * itemsize
    if size < PACK_PIECE_BYTES or 0 in shape:
        return replace(leaf, store=Packed(piece))
    chunk = cut_chunk(piece, itemsize, shape=shape, limit=limits.chunk_bytes)
    replicas = max(map(len, pieces.holders)) if pieces.holders else 1
    cell = cut_object(
        piece,
        chunk,
        itemsize,
        shape=shape,
        limit=limits.object_bytes,
        parts=min(replicas, size // PACK_PIECE_BYTES),
    )
    return replace(leaf, store=Chunked(name, cell, chunk))


Heaps = dict[tuple[int, ...], list[tuple[int, int]]]
"""For each set of holders, (load, process) as a heap whose loads may be stale."""


def assign_writers(
    leaves: Sequence[Leaf], pieces: Sequence[Pieces | None]
) -> tuple[Leaf, ...]:
    """Give every cell to one of the processes that hold it, evenly over the tree.

    Cells go in order to the holder with the fewest bytes so far, the lowest number
    first, so that every process finds the same answer without asking another.
    """
    loads: dict[int, int] = {}
    heaps: Heaps = {}
    return tuple(
        [
            _assign(leaf, held, loads, heaps) if leaf.store else leaf
            for leaf, held in zip(leaves, pieces, strict=True)
        ]
    )


def _assign(
    leaf: Leaf, pieces: Pieces | None, loads: dict[int, int], heaps: Heaps
) -> Leaf:
    store = leaf.store
    holders = pieces.holders if pieces else None
    if store is None or pieces is None or holders is None or _are_first(holders):
        loads[0] = loads.get(0, 0) + leaf.nbytes
        return leaf
    runs: list[tuple[int, int]] = []
    for held, size in _held_cells(leaf, Grid(leaf.shape, pieces.piece), holders):
        writer = _least_loaded(held, heaps, loads)
        loads[writer] = loads.get(writer, 0) + size
        if runs and runs[-1][0] == writer:
            runs[-1] = (writer, runs[-1][1] + 1)
        else:
            runs.append((writer, 1))
    if all(process == 0 for process, _ in runs):
        return leaf
    return replace(leaf, store=replace(store, writers=tuple(runs)))


def give_to(leaf: Leaf, process: int) -> Leaf:
    """Return a stored leaf with all its cells written by one process."""
    store = leaf.store
    if store is None or process == 0 or not leaf.cells.length:
        return leaf
    return replace(leaf, store=replace(store, writers=((process, leaf.cells.length),)))


def _are_first(holders: Holders) -> bool:
    return all(held == (0,) for held in holders)


def _held_cells(
    leaf: Leaf, pieces: Grid, holders: Holders
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the holders and the bytes of each cell."""
    cells, itemsize = leaf.cells, leaf.itemsize
    if cells.cell == leaf.shape:
        if leaf.nbytes:
            yield holders[0], leaf.nbytes
        return
    for number in range(cells.length):
        box = cells.box(cells.coordinates(number))
        piece = tuple([a // c for a, c in zip(box.start, pieces.cell, strict=True)])
        yield holders[pieces.number(piece)], box.size * itemsize


def _least_loaded(holders: tuple[int, ...], heaps: Heaps, loads: dict[int, int]) -> int:
    """Return the holder with the least load; a heap's stale loads are refreshed."""
    if len(holders) == 1:
        return holders[0]
    heap = heaps.get(holders)
    if heap is None:
        heap = heaps[holders] = [(0, process) for process in holders]
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


def plan_write(
    leaves: Sequence[Leaf], process: int, *, pack_bytes: int = PACK_BYTES
) -> WritePlan:
    """Return what a process writes, in the order in which its part lists it."""
    objects = tuple(
        ObjectWrite(number, cell, _cell_bytes(leaf, cell))
        for number, leaf in enumerate(leaves)
        if isinstance(leaf.store, Chunked)
        for cell in written_cells(leaf, process)
    )
    rows = tuple(pack_rows(leaves, process, limit=pack_bytes))
    return WritePlan(process, tuple(leaves), objects, rows)


def _cell_bytes(leaf: Leaf, cell: int) -> int:
    return leaf.cells.box(leaf.cells.coordinates(cell)).size * leaf.itemsize
