"""Values of four bits, two a byte, the first in the low half: float4_e2m1fn."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

import layouts
from layouts import Box

from .._errors import Damaged, NotFound
from .._store import CutShort, Store
from ._entry import Array, Blob, Lazy, Shape

_DTYPE = layouts.dtype_of("float4_e2m1fn")
_CHUNK_ITEMS = 1 << 20


def read_nibbles(store: Store, blob: Blob, shape: Shape, *, where: str) -> Lazy:
    """Return what reads boxes of values that lie in C order, two in each byte."""
    chunk = list(shape)
    for d in range(len(shape)):
        if math.prod(chunk) <= _CHUNK_ITEMS:
            break
        inner = math.prod(chunk[d + 1 :])
        chunk[d] = max(1, _CHUNK_ITEMS // max(inner, 1))
    return Lazy(tuple(chunk), partial(_read, store, blob, shape, where))


def _read(store: Store, blob: Blob, shape: Shape, where: str, box: Box) -> Array:
    if not box.size:
        return np.empty(box.shape, _DTYPE)
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    first = sum(a * s for a, s in zip(box.start, strides, strict=True))
    last = sum((a - 1) * s for a, s in zip(box.stop, strides, strict=True))
    packed = np.empty(last // 2 + 1 - first // 2, np.uint8)
    try:
        with store.open(blob.name) as reader:
            reader.read_into(blob.offset + first // 2, packed)
    except (CutShort, NotFound):
        raise Damaged(
            f"expected {blob.length:,} bytes, found them cut off - at {where}"
        ) from None
    items = unpack_nibbles(packed)[first % 2 :]
    # Windows of a run: what lies between the box's rows is passed over.
    return np.lib.stride_tricks.as_strided(items, box.shape, strides).copy()


def unpack_nibbles(packed: Array) -> Array:
    """Return the values of packed bytes.

    >>> unpack_nibbles(np.array([0x21], np.uint8)).astype(float).tolist()
    [0.5, 1.0]
    """
    items = np.empty(2 * len(packed), np.uint8)
    np.bitwise_and(packed, 15, out=items[0::2])
    np.right_shift(packed, 4, out=items[1::2])
    return items.view(_DTYPE)


def pack_nibbles(values: Array) -> Array:
    """Return the bytes of an even number of values.

    >>> pack_nibbles(np.array([0.5, 1.0], _DTYPE)).tolist()
    [33]
    """
    items = values.reshape(-1).view(np.uint8)
    return (items[0::2] & 15) | (items[1::2] << 4)
