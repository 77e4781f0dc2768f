"""Items that do not lie in C order: what they span, and how to cut them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import layouts
from layouts import Box

from ._entry import Block, Lazy, Shape, Tensor

CHUNK_BYTES = 4 << 20
"""Leaves are looked through, and cut for several readers, in parts of this size."""


def item_bytes(tensor: Tensor) -> int:
    """Return the bytes that an item takes in a buffer."""
    return layouts.stored_dtype(tensor.dtype).itemsize


def c_strides(shape: Sequence[int], itemsize: int) -> Shape:
    """Return the strides, in bytes, of an array in C order.

    >>> c_strides((2, 3), 4)
    (12, 4)
    """
    return tuple(itemsize * math.prod(shape[d + 1 :]) for d in range(len(shape)))


def is_in_c_order(block: Block, itemsize: int) -> bool:
    """Tell whether the items of a block are one run, in C order."""
    if block.strides is None:
        return True
    at = itemsize
    for size, stride in zip(block.box.shape[::-1], block.strides[::-1], strict=True):
        if size > 1 and stride != at:
            return False
        at *= size
    return True


def span_bytes(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Return how many bytes lie from the first item to the end of the last one."""
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + itemsize


def cut_strided(
    part: Box, strides: Sequence[int], itemsize: int, *, most: int
) -> Iterator[Box]:
    """Yield parts of a box whose items span at most so many bytes each."""
    reach = [(n - 1) * s for n, s in zip(part.shape, strides, strict=True)]
    if sum(reach) + itemsize <= most or not any(reach):
        yield part
        return
    d = max(range(len(reach)), key=lambda n: reach[n])
    half = part.shape[d] // 2
    for at, size in ((0, half), (half, part.shape[d] - half)):
        start, shape = list(part.start), list(part.shape)
        start[d] += at
        shape[d] = size
        cut = Box(tuple(start), tuple(shape))
        yield from cut_strided(cut, strides, itemsize, most=most)


def choose_chunk(tensor: Tensor) -> Shape:
    """Return the shape in which a tensor is looked through: what lies together."""
    shape, data, strides = tensor.shape, tensor.data, None
    if isinstance(data, tuple):
        for block in data:
            if block.blob.codec is not None:
                # Streams are decoded whole.
                return shape
        if len(data) == 1:
            strides = data[0].strides
    elif isinstance(data, Lazy) and 0 not in shape:
        return data.chunk
    return _cut_chunk(shape, strides, item_bytes(tensor))


@lru_cache(maxsize=1024)
def _cut_chunk(shape: Shape, strides: Shape | None, itemsize: int) -> Shape:
    """Return the first part of an array, of the usual size, along what lies nearest."""
    if 0 in shape:
        return shape
    strides = c_strides(shape, itemsize) if strides is None else strides
    most = max(1, CHUNK_BYTES // itemsize)
    chunk = [1] * len(shape)
    for d in sorted(range(len(shape)), key=lambda n: (strides[n], -n)):
        chunk[d] = min(shape[d], most)
        most //= chunk[d]
    return tuple(chunk)


def held_bytes(tensor: Tensor) -> int:
    """Return about how many bytes a thread holds at once, beside the buffers."""
    data = tensor.data
    if isinstance(data, Lazy):
        return 2 * math.prod(data.chunk) * item_bytes(tensor)
    if isinstance(data, tuple):
        coded = [b.box.size for b in data if b.blob.codec is not None]
        return max(CHUNK_BYTES, 2 * max(coded, default=0) * item_bytes(tensor))
    return 0
