"""One stored chunk of a Zarr array back to items, in memory that its shape bounds."""

from __future__ import annotations

import bz2
import math
import zlib
from typing import Any

import numpy as np

from layouts import dtype_of

from .._codec import decode_chunk
from .._crc import checksum
from ._entry import Array, Shape
from ._zarr_meta import Codecs

_RATIO = {"zstd": 40_000, "gzip": 1040, "zlib": 1040, "blosc": 40_000, "bz2": 60_000}
"""What comes out for each byte at most; blosc's zstd makes it as much as zstd does."""

_SLACK = 1 << 16


def decoded_bytes(codecs: Codecs, shape: Shape, dtype: str) -> int:
    """Return how many bytes a chunk is between compression and its last checksums."""
    return math.prod(shape) * dtype_of(dtype).itemsize + 4 * codecs.before


def check_stored(codecs: Codecs, shape: Shape, dtype: str, *, stored: int) -> None:
    """Refuse a stored length that cannot be a chunk's, before anything is allocated."""
    size = decoded_bytes(codecs, shape, dtype)
    data = stored - 4 * codecs.after
    if codecs.compressor is None:
        if data != size:
            raise ValueError(f"{size:,} bytes, found {data:,}")
        return
    # Compression makes nothing much longer; what it makes shorter has a bound too.
    if data > size + size // 8 + _SLACK:
        raise ValueError(f"about {size:,} bytes or fewer, found {data:,}")
    if data * _RATIO[codecs.compressor] + _SLACK < size:
        raise ValueError(f"{size:,} bytes compressed, found only {data:,}")


def decode(codecs: Codecs, data: bytes, shape: Shape, dtype: str) -> Array:
    """Return the items of a chunk; ValueError says what was expected and found."""
    check_stored(codecs, shape, dtype, stored=len(data))
    for _ in range(codecs.after):
        data = _check_sum(data)
    size = decoded_bytes(codecs, shape, dtype)
    data = _decompress(codecs.compressor, data, size)
    for _ in range(codecs.before):
        data = _check_sum(data)
    target = dtype_of(dtype)
    if codecs.big_endian:
        unit = target.itemsize // (2 if target.kind == "c" else 1)
        data = np.frombuffer(data, f"u{unit}").byteswap().tobytes()
    laid = _items(data, target, dtype).reshape([shape[d] for d in codecs.order])
    return laid.transpose(np.argsort(codecs.order)) if shape else laid


def _items(data: bytes, dtype: np.dtype[Any], name: str) -> Array:
    if dtype == np.bool_:
        flat = np.frombuffer(data, np.uint8)
        if flat.max(initial=0) > 1:
            raise ValueError("booleans, found bytes other than 0 and 1")
    elif (bits := name.lstrip("uint")) in ("2", "4"):
        # Only the low bits count: what fills the rest differs from writer to writer.
        unused = 8 - int(bits)
        wide = np.frombuffer(data, np.uint8 if name[0] == "u" else np.int8)
        return ((wide << unused) >> unused).astype(dtype)
    return np.frombuffer(data, dtype)


def _check_sum(data: bytes) -> bytes:
    if len(data) < 4:
        raise ValueError("a checksum, found the end")
    body = data[:-4]
    if checksum(body) != int.from_bytes(data[-4:], "little"):
        raise ValueError("bytes with their CRC-32C, found others")
    return body


def _decompress(compressor: str | None, data: bytes, size: int) -> bytes:
    match compressor:
        case None:
            found = data
        case "gzip" | "zlib":
            found = _inflate(data, size, window=31 if compressor == "gzip" else 15)
        case "bz2":
            found = _bunzip(data, size)
        case _:
            if compressor == "blosc":
                _check_blosc(data, size)
            if not size:
                return b""
            flat = decode_chunk(compressor, data, np.dtype(np.uint8), (size,))
            return flat.data  # pyright: ignore[reportReturnType]
    if len(found) != size:
        raise ValueError(f"{size:,} bytes, found {len(found):,}")
    return found


def _inflate(data: bytes, size: int, *, window: int) -> bytes:
    stream = zlib.decompressobj(window)
    try:
        found = stream.decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(
            f"a {'gzip' if window > 15 else 'zlib'} stream, found {error}"
        ) from None
    if not stream.eof and len(found) <= size:
        raise ValueError("a whole compressed stream, found its beginning")
    return found


def _bunzip(data: bytes, size: int) -> bytes:
    stream = bz2.BZ2Decompressor()
    try:
        found = stream.decompress(data, size + 1)
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"a bz2 stream, found {error}") from None
    if not stream.eof and len(found) <= size:
        raise ValueError("a whole compressed stream, found its beginning")
    return found


def _check_blosc(data: bytes, size: int) -> None:
    # Blosc allocates what its header says.
    if len(data) < 16 or int.from_bytes(data[4:8], "little") != size:
        raise ValueError(f"a blosc header of {size:,} bytes, found another")
