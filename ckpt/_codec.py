"""Chunks compressed and back, by TensorStore's own Zarr v3 codecs.

What is stored is what the codecs of a Zarr v3 array make of it, so that any reader of
Zarr reads it. The table of codecs and their levels is closed.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorstore as ts

_SECONDS = 600.0
_KEPT = 16
"""How many arrays each thread keeps open: one per size of chunk."""

Array = np.ndarray[Any, Any]


class _Open(threading.local):
    """The arrays this thread has open, the latest used last."""

    def __init__(self) -> None:
        self.codecs: OrderedDict[
            tuple[str, int, int], tuple[ts.TensorStore, ts.KvStore]
        ]
        self.codecs = OrderedDict()


_open = _Open()


def codec_document(codec: str | None, itemsize: int) -> list[dict[str, Any]]:
    """Return the Zarr v3 codecs, in JSON, of arrays with items of `itemsize` bytes.

    `codec` is None, "zstd", "gzip" or "blosc"; ValueError for anything else.

    >>> codec_document("gzip", 1)
    [{'name': 'bytes'}, {'name': 'gzip', 'configuration': {'level': 5}}]
    """
    first: dict[str, Any] = {"name": "bytes"}
    if itemsize > 1:
        first["configuration"] = {"endian": "little"}
    match codec:
        case None:
            return [first]
        case "zstd":
            configuration: dict[str, Any] = {"level": 3, "checksum": False}
        case "gzip":
            configuration = {"level": 5}
        case "blosc":
            configuration = {
                "cname": "zstd",
                "clevel": 5,
                "shuffle": "bitshuffle",
                "typesize": itemsize,
                "blocksize": 0,
            }
        case _:
            raise ValueError(
                f"Expected codec None, 'zstd', 'gzip' or 'blosc', found {codec!r}."
            )
    return [first, {"name": codec, "configuration": configuration}]


def encode_chunk(codec: str | None, chunk: Array) -> bytes:
    """Return a chunk's items in C order, little-endian, compressed.

    >>> data = encode_chunk("zstd", np.zeros((64, 64), np.float32))
    >>> decode_chunk("zstd", data, np.dtype("float32"), (64, 64)).sum()
    np.float32(0.0)
    """
    native = np.ascontiguousarray(chunk, chunk.dtype.newbyteorder("<"))
    if codec is None or not native.nbytes:
        codec_document(codec, native.itemsize)
        return native.tobytes()
    array, kv = _open_codec(codec, native.itemsize, native.nbytes)
    flat = native.reshape(-1).view(np.uint8)
    written = array.write(flat)  # pyright: ignore[reportUnknownMemberType]
    written.result(timeout=_SECONDS)
    data = kv.read("c/0").result(timeout=_SECONDS).value
    kv.write("c/0", None).result(timeout=_SECONDS)
    return data


def decode_chunk(
    codec: str | None, data: bytes, dtype: np.dtype[Any], shape: Sequence[int]
) -> Array:
    """Return the chunk of this dtype and shape that `data` was made from.

    ValueError when `data` is anything else; memory is bounded by the shape.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if codec is None or not size:
        codec_document(codec, dtype.itemsize)
        if len(data) != size:
            raise ValueError(f"Expected {size:,} bytes, found {len(data):,}.")
        flat = np.frombuffer(bytearray(data), np.uint8)
    else:
        flat = _decompress(codec, data, itemsize=dtype.itemsize, size=size)
    if dtype == np.bool_ and flat.max(initial=0) > 1:
        raise ValueError("Expected booleans, found bytes other than 0 and 1.")
    little = flat.view(dtype.newbyteorder("<")).reshape(shape)
    return little.astype(dtype, copy=False)


def _decompress(codec: str, data: bytes, *, itemsize: int, size: int) -> Array:
    array, kv = _open_codec(codec, itemsize, size)
    kv.write("c/0", data).result(timeout=_SECONDS)
    try:
        return array.read().result(timeout=_SECONDS)
    except Exception as error:
        # TensorStore's own text holds the whole specification.
        reason = str(error).partition("[")[0].strip()[:200]
        raise ValueError(
            f"Expected {size:,} bytes compressed by {codec}, found: {reason}."
        ) from None
    finally:
        kv.write("c/0", None).result(timeout=_SECONDS)


def _open_codec(
    codec: str, itemsize: int, size: int
) -> tuple[ts.TensorStore, ts.KvStore]:
    """Return an array of one chunk of `size` bytes, and the memory that holds it."""
    opened = _open.codecs
    key = (codec, itemsize, size)
    if key in opened:
        opened.move_to_end(key)
        return opened[key]
    # A context is a memory of its own: nobody else can see or change the chunk.
    context = ts.Context()
    # Bytes of any meaning: codecs know items only by their size, which blosc is told.
    codecs = [{"name": "bytes"}, *codec_document(codec, itemsize)[1:]]
    grid = {"name": "regular", "configuration": {"chunk_shape": [size]}}
    spec: dict[str, Any] = {
        "driver": "zarr3",
        "kvstore": {"driver": "memory"},
        "metadata": {
            "shape": [size],
            "data_type": "uint8",
            "chunk_grid": grid,
            "fill_value": 0,
            "codecs": codecs,
        },
        "assume_metadata": True,
        "fill_missing_data_reads": False,
        "store_data_equal_to_fill_value": True,
    }
    opening = ts.open(spec, context=context)  # pyright: ignore[reportUnknownMemberType]
    array = opening.result(timeout=_SECONDS)
    kv = ts.KvStore.open({"driver": "memory"}, context=context)
    opened[key] = array, kv.result(timeout=_SECONDS)
    if len(opened) > _KEPT:
        opened.popitem(last=False)
    return opened[key]
