"""What each process writes: a function of the leaves and who holds their pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from ._share import Pieces


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
        parts=replicas,
    )
    return replace(leaf, store=Chunked(name, cell, chunk))


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
    pack_bytes: int = PACK_BYTES

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
    return WritePlan(process, tuple(leaves), objects, rows, pack_bytes)


def _cell_bytes(leaf: Leaf, cell: int) -> int:
    return leaf.cells.box(leaf.cells.coordinates(cell)).size * leaf.itemsize
