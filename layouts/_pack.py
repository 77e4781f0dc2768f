"""Which pieces stand in a process's packs, and where: a function of the leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ._cut import PACK_BYTES
from ._leaf import Leaf, Packed
from ._name import pack_name


class PackRow(NamedTuple):
    """One piece: leaf and piece numbers, then pack number, byte offset and length."""

    leaf: int
    piece: int
    pack: int
    offset: int
    length: int


def written_cells(leaf: Leaf, process: int) -> Iterable[int]:
    """Return the numbers of the cells of a stored leaf that a process writes."""
    writers = leaf.store.writers if leaf.store else None
    if writers:
        return writers.cells(process)
    return range(leaf.cells.length) if process == 0 else ()


def pack_rows(
    leaves: Sequence[Leaf], process: int, *, limit: int = PACK_BYTES
) -> Iterator[PackRow]:
    """Yield the rows of a process's packs, in the order of the leaves and pieces."""
    pieces = [
        (number, piece, size)
        for number, leaf in enumerate(leaves)
        if isinstance(leaf.store, Packed)
        for piece, size in _written_pieces(leaf, leaf.store, process)
    ]
    places = place_pieces([size for _, _, size in pieces], limit=limit)
    for (number, piece, size), (pack, offset) in zip(pieces, places, strict=True):
        yield PackRow(number, piece, pack, offset, size)


def place_pieces(sizes: Iterable[int], *, limit: int) -> Iterator[tuple[int, int]]:
    """Yield the pack and the offset of each piece of a process.

    >>> list(place_pieces([3, 4, 2], limit=6))
    [(0, 0), (1, 0), (1, 4)]
    """
    pack = offset = 0
    for size in sizes:
        if offset and offset + size > limit:
            pack, offset = pack + 1, 0
        yield pack, offset
        offset += size


def _written_pieces(
    leaf: Leaf, store: Packed, process: int
) -> Iterable[tuple[int, int]]:
    """Return number and bytes of each piece of a packed leaf that a process writes."""
    if store.piece == leaf.shape:
        writer = store.writers.process(0) if store.writers else 0
        return ((0, leaf.nbytes),) if writer == process and leaf.nbytes else ()
    cells, itemsize = leaf.cells, leaf.itemsize
    return [
        (piece, cells.box(cells.coordinates(piece)).size * itemsize)
        for piece in written_cells(leaf, process)
    ]


def pack_sizes(leaves: Sequence[Leaf], *, limit: int = PACK_BYTES) -> dict[str, int]:
    """Return the bytes of every pack of every process by name, in one pass.

    >>> leaf = Leaf("w", "jax", "uint8", (5,), store=Packed((3,)))
    >>> pack_sizes([leaf]), pack_sizes([leaf], limit=4)
    ({'~packs/0-0': 5}, {'~packs/0-0': 3, '~packs/0-1': 2})
    """
    ends: dict[int, list[int]] = {}
    for leaf in leaves:
        if not isinstance(leaf.store, Packed):
            continue
        sizes = (leaf.cells.sizes() * leaf.itemsize).tolist()
        for process, size in zip(leaf.writers(range(len(sizes))), sizes, strict=True):
            packs = ends.setdefault(process, [0])
            if packs[-1] and packs[-1] + size > limit:
                packs.append(0)
            packs[-1] += size
    return {
        pack_name(process, number): size
        for process, packs in sorted(ends.items())
        for number, size in enumerate(packs)
    }
