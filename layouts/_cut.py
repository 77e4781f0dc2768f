"""How an array is cut: pieces (one a shard) into objects, objects into chunks.

A chunk is the least that is read and checked. Chunks are cut by halving the longest
dimension, so that the meshes people move between, powers of two in any dimension,
find their boundaries on chunk boundaries.
"""

from __future__ import annotations

import math

from ._box import Shape

CHUNK_BYTES = 512 << 10
"""Chunks are cut to at most this many bytes wherever a dimension can be cut."""

OBJECT_BYTES = 64 << 20
"""Objects (Zarr shards) hold at most this many bytes where they can be cut."""

PACK_PIECE_BYTES = 1 << 20
"""Pieces smaller than this go into their writer's pack."""

PACK_BYTES = 64 << 20
"""A pack is closed and another begun at this size."""


def cut_chunk(
    piece: Shape, itemsize: int, *, shape: Shape, limit: int = CHUNK_BYTES
) -> Shape:
    """Return the chunk shape for pieces of shape `piece` of an array of `shape`.

    Where the array is partitioned a chunk must divide the piece; in a dimension the
    piece spans whole, a prime length is halved all the same and the last chunk is
    clipped (Zarr pads it).

    >>> cut_chunk((1024, 2048), 4, shape=(4096, 4096))
    (256, 512)
    >>> cut_chunk((50257, 768), 4, shape=(50257, 768))
    (393, 192)
    """
    chunk = list(piece)
    while math.prod(chunk) * itemsize > limit:
        cuts = [
            (n, -d, factor)
            for d, n in enumerate(chunk)
            if (factor := _factor(n, spans=piece[d] == shape[d])) > 1
        ]
        if not cuts:
            break
        n, d, factor = max(cuts)
        chunk[-d] = -(-n // factor)
    return tuple(chunk)


def _factor(n: int, *, spans: bool) -> int:
    """Return by how much to cut a length: 2, else its least factor, else 1."""
    if n < 2:
        return 1
    if spans or n % 2 == 0:
        return 2
    return next((p for p in range(3, min(n, 1 << 12), 2) if n % p == 0), 1)


def cut_object(
    piece: Shape,
    chunk: Shape,
    itemsize: int,
    *,
    shape: Shape,
    limit: int = OBJECT_BYTES,
    parts: int = 1,
) -> Shape:
    """Return the object shape: whole chunks, within the limit, never past a piece.

    `parts` asks for at least that many objects a piece where it can be cut, so that
    replicas can share the writing.

    >>> cut_object((4096, 4096), (256, 512), 4, shape=(4096, 4096), limit=16 << 20)
    (1024, 4096)
    """
    cells = [-(-n // c) for n, c in zip(piece, chunk, strict=True)]
    size = math.prod(chunk) * itemsize
    made = 1
    for d in range(len(cells)):
        whole = cells[d]
        while cells[d] > 1 and (size * math.prod(cells) > limit or made < parts):
            factor = _factor(cells[d], spans=piece[d] == shape[d])
            if factor == 1:
                break
            cells[d] = -(-cells[d] // factor)
        made *= -(-whole // cells[d])
    return tuple(n * c for n, c in zip(cells, chunk, strict=True))
