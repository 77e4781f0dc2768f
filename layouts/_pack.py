"""Which pieces stand in a process's packs, and where: a function of the leaves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ._cut import PACK_BYTES
from ._leaf import Leaf, Packed


class PackRow(NamedTuple):
    """One piece: leaf and piece numbers, then pack number, byte offset and length."""

    leaf: int
    piece: int
    pack: int
    offset: int
    length: int


def written_cells(leaf: Leaf, process: int) -> Iterable[int]:
    """Return the numbers of the cells of a stored leaf that a process writes."""
    runs = leaf.store.writers if leaf.store else ()
    if not runs:
        return range(leaf.cells.length) if process == 0 else ()
    found: list[int] = []
    first = 0
    for writer, count in runs:
        if writer == process:
            found.extend(range(first, first + count))
        first += count
    return found


def pack_rows(
    leaves: Sequence[Leaf], process: int, *, limit: int = PACK_BYTES
) -> Iterator[PackRow]:
    """Yield the rows of a process's packs, in the order of the leaves and pieces."""
    pack = offset = 0
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf.store, Packed):
            continue
        if not leaf.store.writers and leaf.store.piece == leaf.shape:
            sizes = [] if process or 0 in leaf.shape else [(0, leaf.nbytes)]
        else:
            sizes = [
                (piece, math.prod(leaf.cells.box(at).shape) * leaf.itemsize)
                for piece in written_cells(leaf, process)
                if (at := leaf.cells.coordinates(piece)) is not None
            ]
        for piece, size in sizes:
            if offset and offset + size > limit:
                pack, offset = pack + 1, 0
            yield PackRow(number, piece, pack, offset, size)
            offset += size
