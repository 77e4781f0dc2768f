"""Which pieces stand in a process's packs, and where: a function of the leaves."""

from __future__ import annotations

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
        store = leaf.store
        if not isinstance(store, Packed):
            continue
        for piece, size in _written_pieces(leaf, store, process):
            if offset and offset + size > limit:
                pack, offset = pack + 1, 0
            yield PackRow(number, piece, pack, offset, size)
            offset += size


def _written_pieces(
    leaf: Leaf, store: Packed, process: int
) -> Iterable[tuple[int, int]]:
    """Return number and bytes of each piece of a packed leaf that a process writes."""
    if store.piece == leaf.shape:
        writer = store.writers[0][0] if store.writers else 0
        return ((0, leaf.nbytes),) if writer == process and leaf.nbytes else ()
    cells, itemsize = leaf.cells, leaf.itemsize
    return [
        (piece, cells.box(cells.coordinates(piece)).size * itemsize)
        for piece in written_cells(leaf, process)
    ]
