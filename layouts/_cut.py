"""How an array is cut: pieces (one a shard) into objects, objects into chunks.

A chunk is the least that is read and checked. People move between meshes that cut any
dimension in two, four or eight: so dimensions are halved, each into eight parts before
any into more, and the boundaries of such meshes are boundaries of chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ._box import Shape

CHUNK_BYTES = 512 << 10
"""Chunks are cut to at most this many bytes wherever a dimension can be cut."""

OBJECT_BYTES = 64 << 20
"""Objects (Zarr shards) hold at most this many bytes where they can be cut."""

PACK_PIECE_BYTES = 1 << 20
"""Pieces smaller than this go into their writer's pack."""

PACK_BYTES = 64 << 20
"""A pack is closed and another begun at this size."""

_SMALL_FACTOR = 7
_LARGE_FACTOR = 1 << 12
_PARTS = 8
"""Each dimension is first cut into this many parts."""

_RUN_BYTES = 256
"""Unless that leaves the last dimension with runs shorter than this."""


def cut_chunk(
    piece: Shape, itemsize: int, *, shape: Shape, limit: int = CHUNK_BYTES
) -> Shape:
    """Return the chunk shape for pieces of shape `piece` of an array of `shape`.

    Where the array is partitioned a chunk must divide the piece; in a dimension the
    piece spans whole, a prime length is halved all the same and the last chunk is
    clipped (Zarr pads it).

    >>> cut_chunk((1024, 2048), 4, shape=(4096, 4096))
    (256, 512)
    >>> cut_chunk((4096, 32, 128), 2, shape=(4096, 32, 128))
    (512, 4, 128)
    >>> cut_chunk((50257, 768), 4, shape=(50257, 768))
    (786, 96)
    """
    chunk = list(piece)
    last = len(chunk) - 1
    while math.prod(chunk) * itemsize > limit:
        cuts: list[_Cut] = []
        for d, n in enumerate(chunk):
            parts = shape[d] // n
            run = n // 2 * itemsize
            if n % 2 == 0 and parts < _PARTS and (d < last or run >= _RUN_BYTES):
                cuts.append(_Cut(_PARTS - parts, n, -d, n // 2))
            elif cut := _cut_length(n, d, piece[d], spans=piece[d] == shape[d]):
                cuts.append(cut)
        if not cuts:
            break
        best = max(cuts)
        chunk[-best.dimension] = best.length
    return tuple(chunk)


class _Cut(NamedTuple):
    """A way to cut one dimension; the greatest is taken."""

    lacking: int
    weight: int
    dimension: int
    length: int


def _cut_length(n: int, dimension: int, piece: int, *, spans: bool) -> _Cut | None:
    """Return how to cut a length where eight parts are made already, or cannot be.

    The longest dimension is cut first, but not where that would lose boundaries that
    others will want, or leave slivers: such a dimension counts an eighth.
    """
    if n < 2:
        return None
    if spans and (n % 2 == 0 or piece % 2 or piece % n):
        return _Cut(0, n, -dimension, -(-n // 2))
    factor = least_factor(n)
    if 1 < factor <= _SMALL_FACTOR:
        return _Cut(0, n, -dimension, n // factor)
    if spans:
        return _Cut(0, n // 8, -dimension, -(-n // 2))
    length = n // factor
    return _Cut(0, min(n // 8, length), -dimension, length) if factor > 1 else None


def least_factor(n: int) -> int:
    """Return the least factor of a length, or 1 if that is too large to cut by."""
    if n % 2 == 0:
        return 2
    limit = min(n, _LARGE_FACTOR)
    return next((p for p in range(3, limit + 1, 2) if n % p == 0), 1)


def cut_object(
    piece: Shape,
    chunk: Shape,
    itemsize: int,
    *,
    shape: Shape,
    limit: int = OBJECT_BYTES,
    parts: int = 1,
    least: int = PACK_PIECE_BYTES,
) -> Shape:
    """Return the object shape: whole chunks, within the limit, never past a piece.

    `parts` asks for so many objects that as many replicas can share the writing of a
    piece within a tenth of evenly, or where that takes objects of less than `least`
    bytes, for objects that come near it.

    >>> cut_object((4096, 4096), (256, 512), 4, shape=(4096, 4096), limit=16 << 20)
    (1024, 4096)
    >>> cut_object((4096, 4096), (256, 512), 4, shape=(4096, 4096), parts=2)
    (2048, 4096)
    """
    whole = [-(-n // c) for n, c in zip(piece, chunk, strict=True)]
    spans = [n == m for n, m in zip(piece, shape, strict=True)]
    total, size = math.prod(whole), math.prod(chunk) * itemsize
    best: tuple[int, list[int]] | None = None
    cells = whole
    for cells in _cut_cells(whole, spans):
        held = math.prod(cells)
        if held * size > limit:
            continue
        if best and held * size < least:
            break
        made = math.prod([-(-w // c) for w, c in zip(whole, cells, strict=True)])
        most = min(-(-made // parts) * held, total)
        if best is None or most <= best[0]:
            best = most, cells
        if 10 * most * parts <= 11 * total:
            break
    chosen = best[1] if best else cells
    return tuple(n * c for n, c in zip(chosen, chunk, strict=True))


def _cut_cells(whole: list[int], spans: list[bool]) -> Iterator[list[int]]:
    """Yield ever smaller parts of a grid of chunks, the first dimension cut first.

    They divide the piece evenly but where it spans the array.
    """
    cells = list(whole)
    yield cells
    for d in range(len(cells)):
        while cells[d] > 1:
            factor = 2 if spans[d] else least_factor(cells[d])
            if factor == 1:
                break
            cells = [*cells[:d], -(-cells[d] // factor), *cells[d + 1 :]]
            yield cells
