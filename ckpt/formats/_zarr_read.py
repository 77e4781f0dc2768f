"""Boxes of a Zarr array, read from the chunks that hold them and no others."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from layouts import Box, dtype_of, intersect

from .._errors import Damaged, LimitExceeded
from ._entry import Array, Lazy, Shape
from ._orbax_values import Values
from ._zarr_decode import check_stored, decode, decoded_bytes
from ._zarr_meta import ZarrArray, fill_of

_LARGE = 64 << 20
"""Smaller chunks are believed to be there until they are read."""

_FILLED = 1 << 16
"""How many chunks may be absent where absence is told to be a value."""

_UNIT_BYTES = 1 << 18
_UNITS = 1 << 12

_ABSENT = np.iinfo(np.uint64).max


@dataclass(frozen=True, slots=True)
class Source:
    """A Zarr array among the values of a checkpoint.

    `filled` says that chunks that equal the fill value were not stored.
    """

    array: ZarrArray
    values: Values
    name: str
    filled: bool

    def key(self, cell: Shape) -> str:
        """Return the name of a chunk's value."""
        return join_name(self.name, self.array.key(cell))


def join_name(array: str, name: str) -> str:
    """Return a name below an array's own, which is "" for a tree of one array.

    >>> join_name("a.b", ".zarray"), join_name("", ".zarray")
    ('a.b/.zarray', '.zarray')
    """
    return f"{array}/{name}" if array else name


def check_claim(source: Source, *, count: int) -> None:
    """Refuse an array that is far larger than what is stored, `count` values in all.

    It would be found when it is read too, but memory for it is taken before that.
    """
    array = source.array
    most = _FILLED if source.filled and array.fill is not None else count
    if array.cells > most:
        raise Damaged(
            f"expected at most {most:,} chunks, as many as are there, found "
            f"{array.cells:,} - at `{source.name}`, in "
            f"{source.values.where(source.name)}: restore another step"
        )
    size = decoded_bytes(array.codecs, array.piece, array.dtype)
    if size < _LARGE or not source.values.is_near:
        return
    name = source.key((0,) * len(array.shape))
    stored = source.values.size(name)
    if stored is not None and array.shards is None:
        with _blaming(source, name):
            check_stored(array.codecs, array.chunk, array.dtype, stored=stored)


def make_lazy(source: Source) -> Lazy:
    """Return the reader of an array's boxes, which any thread may call."""
    array = source.array
    index = lru_cache(maxsize=16)(partial(_read_index, source))

    def read(box: Box) -> Array:
        try:
            return _read_box(source, box, index)
        except MemoryError:
            raise LimitExceeded(
                f"expected room for {box.size:,} items of {array.dtype}, found none - "
                f"at {source.values.where(source.name)}: read less at once"
            ) from None

    return Lazy(_unit(array), read)


def _unit(array: ZarrArray) -> Shape:
    """Return what is read at once: chunks, of many tiny ones so many together.

    A small file may claim billions of them, and plans count one by one.
    """
    unit, itemsize = list(array.piece), dtype_of(array.dtype).itemsize
    counts = [-(-n // c) for n, c in zip(array.shape, unit, strict=True)]
    if math.prod(counts) <= _UNITS:
        return array.piece
    least = max(_UNIT_BYTES, math.prod(array.shape) * itemsize // _UNITS) // itemsize
    for d in reversed(range(len(unit))):
        unit[d] *= min(counts[d], -(-least // math.prod(unit)))
    return tuple(unit)


_Index = Callable[[Shape], "Array | None"]


def _read_box(source: Source, box: Box, index: _Index) -> Array:
    array = source.array
    made: Array | None = None
    for cell, chunk in _cells(box, array.chunk):
        for part, values in _read_chunk(source, cell, chunk, box, index):
            if part == box and values.shape == box.shape:
                return np.require(values, requirements=["C", "W"])
            if made is None:
                made = np.empty(box.shape, dtype_of(array.dtype))
            made[part.within(box.start)] = values
    return np.empty(box.shape, dtype_of(array.dtype)) if made is None else made


def _cells(box: Box, chunk: Shape) -> Iterator[tuple[Shape, Box]]:
    """Yield the cells of a grid of chunks that a box meets, and their boxes."""
    if 0 in box.shape:
        return
    spans = [
        range(a // c, -(-(a + n) // c))
        for a, n, c in zip(box.start, box.shape, chunk, strict=True)
    ]
    for cell in itertools.product(*spans):
        yield cell, Box(tuple(i * c for i, c in zip(cell, chunk, strict=True)), chunk)


def _read_chunk(
    source: Source, cell: Shape, chunk: Box, box: Box, index: _Index
) -> Iterator[tuple[Box, Array]]:
    array = source.array
    wanted = intersect(box, chunk) if box.shape else box
    if wanted is None:
        return
    if array.shards:
        yield from _read_shard(source, cell, chunk, wanted, index)
        return
    name = source.key(cell)
    stored = source.values.size(name)
    if stored is None:
        yield wanted, _fill(source, name)
        return
    with _blaming(source, name):
        check_stored(array.codecs, array.chunk, array.dtype, stored=stored)
        data = source.values.get(name, 0, stored)
        items = decode(array.codecs, data, array.chunk, array.dtype)
    yield wanted, items[wanted.within(chunk.start)]


def _read_shard(
    source: Source, cell: Shape, shard: Box, wanted: Box, index: _Index
) -> Iterator[tuple[Box, Array]]:
    array = source.array
    inner = array.piece
    name = source.key(cell)
    places = index(cell)
    if places is None:
        yield wanted, _fill(source, name)
        return
    first = tuple(a // n for a, n in zip(shard.start, inner, strict=True))
    for number, chunk in _cells(wanted, inner):
        at = tuple(n - f for n, f in zip(number, first, strict=True))
        offset, length = map(int, places[at])
        part = intersect(wanted, chunk) if wanted.shape else wanted
        if part is None:
            continue
        if offset == length == _ABSENT:
            yield part, _fill(source, f"{name}[{number}]")
            continue
        with _blaming(source, name):
            check_stored(array.codecs, inner, array.dtype, stored=length)
            data = source.values.get(name, offset, offset + length)
            items = decode(array.codecs, data, inner, array.dtype)
        yield part, items[part.within(chunk.start)]


def _read_index(source: Source, cell: Shape) -> Array | None:
    """Return offset and length of each inner chunk of a shard, None if it is absent."""
    array = source.array
    shards = array.shards
    if shards is None:
        return None
    name = source.key(cell)
    counts = tuple(m // n for m, n in zip(array.chunk, shards.chunk, strict=True))
    size = decoded_bytes(shards.index, (*counts, 2), "uint64") + 4 * shards.index.after
    stored = source.values.size(name)
    if stored is None:
        return None
    with _blaming(source, name):
        if stored < size:
            raise ValueError(f"an index of {size:,} bytes, found {stored:,} in all")
        start = stored - size if shards.at_end else 0
        data = source.values.get(name, start, start + size)
        places = decode(shards.index, data, (*counts, 2), "uint64")
        offsets, lengths = places[..., 0], places[..., 1]
        there = (offsets != _ABSENT) | (lengths != _ABSENT)
        # Lengths first: only then can their sum with an offset not wrap around.
        if (lengths[there] > stored).any() or (
            offsets[there] > stored - lengths[there]
        ).any():
            raise ValueError(f"chunks within {stored:,} bytes, found one past the end")
        if there.any():
            for length in (lengths[there].min(), lengths[there].max()):
                check_stored(array.codecs, array.piece, array.dtype, stored=int(length))
    return places


def _fill(source: Source, name: str) -> Array:
    if source.filled and source.array.fill is not None:
        return fill_of(source.array, where=source.values.where(source.name))
    raise Damaged(
        f"expected a chunk, found none - at `{source.name}`, in "
        f"{source.values.where(name)}: restore another step"
    )


@contextlib.contextmanager
def _blaming(source: Source, name: str) -> Generator[None]:
    """Make a ValueError about bytes the damage of the object they came from."""
    try:
        yield
    except ValueError as error:
        found = str(error).rstrip(".").removeprefix("Expected ")
        found = found.removeprefix("expected ")
        raise Damaged(
            f"expected {found} - at `{source.name}`, in {source.values.where(name)}: "
            "restore another step"
        ) from None
