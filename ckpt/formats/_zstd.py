"""Streams of zstd frames that do not say how long they become.

TensorStore's codec wants to know the size. The frames are walked first, block by block:
that bounds the size, and memory, before anything is decoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .._codec import decode_chunk
from .._errors import Damaged, LimitExceeded, Unsupported

_MAGIC = 0xFD2FB528
_SKIPPED = range(0x184D2A50, 0x184D2A60)
_BLOCK = 128 * 1024
_BLOCKS = 100_000
_FRAMES = 200
"""Each one costs a request of TensorStore or two; honest streams have one to three."""
_WINDOW = 128 * 1024 * 1024
"""The largest window that zstd itself accepts unless told otherwise."""
_SIZE = re.compile(r"at uncompressed byte (\d+)")


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stream, which becomes between `least` and `most` bytes."""

    start: int
    stop: int
    least: int
    most: int


def decode_zstd(data: bytes, *, limit: int, guess: int) -> bytes:
    """Return what a stream of zstd frames holds, `limit` bytes at most.

    `guess` is the likely size: right, it spares decoding twice. Damaged for anything
    that is not such a stream, LimitExceeded for a longer one; memory is bounded by
    `limit` and the window, which is 128 MiB at most.

    >>> frame = bytes.fromhex("28b52ffd0058190000616263")
    >>> decode_zstd(frame + frame, limit=10, guess=1)
    b'abcabc'
    """
    parts: list[bytes] = []
    # All frames are walked before the first is decoded.
    for frame in list(walk_frames(data, limit=limit)):
        part = data[frame.start : frame.stop]
        most = min(frame.most, limit)
        parts.append(_decode_frame(part, frame.least, most, guess=guess))
        limit -= len(parts[-1])
        guess -= len(parts[-1])
    return parts[0] if len(parts) == 1 else b"".join(parts)


def walk_frames(data: bytes, *, limit: int) -> Iterator[Frame]:
    """Yield the frames of a stream by their headers and those of their blocks alone.

    Damaged where frames and blocks do not follow one another to the end, LimitExceeded
    where they hold more than `limit` bytes for certain, or ask for too much memory.
    """
    # Honest writers make blocks as large as they can; others must not cost hours.
    blocks = _BLOCKS + limit // 1024
    at = count = 0
    while at < len(data):
        magic = _take(data, at, 4)
        if magic in _SKIPPED:
            at += 8 + _take(data, at + 4, 4)
            if at > len(data):
                raise _broken("its end", len(data))
            continue
        if magic != _MAGIC:
            raise _broken(f"a frame that begins with {magic:#010x}", at)
        start = at
        at, known, summed, largest = _read_header(data, at + 4)
        low, high, last = 0, 0, False
        while not last:
            header = _take(data, at, 3)
            last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            if kind == 3 or size > largest:
                raise _broken(f"a block of type {kind} and {size:,} bytes", at)
            at += 3 + (1 if kind == 1 else size)
            low += size if kind < 2 else 0
            high += size if kind < 2 else largest
            blocks -= 1
            if low > limit or blocks < 0:
                raise _too_long(limit)
        at += 4 * summed
        if at > len(data):
            raise _broken("its end", len(data))
        if known is not None:
            if not low <= known <= high:
                raise _broken(f"a frame said to hold {known:,} bytes", start)
            low = high = known
        count += 1
        limit -= low
        if limit < 0 or count > _FRAMES:
            raise _too_long(limit + low)
        yield Frame(start, at, low, high)


def _read_header(data: bytes, at: int) -> tuple[int, int | None, bool, int]:
    """Return where a frame's blocks begin, its size, if summed, its largest block."""
    descriptor = _take(data, at, 1)
    at += 1
    single, summed = bool(descriptor & 32), bool(descriptor & 4)
    if descriptor & 8:
        raise _broken("a frame header with a reserved bit", at - 1)
    window = 0
    if not single:
        exponent, mantissa = divmod(_take(data, at, 1), 8)
        window = (1 << 10 + exponent) // 8 * (8 + mantissa)
        at += 1
    identifier = (0, 1, 2, 4)[descriptor & 3]
    if identifier and _take(data, at, identifier):
        raise Unsupported(
            "expected a zstd stream of its own, found one that needs a dictionary: "
            "write it again without"
        )
    at += identifier
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    known = _take(data, at, width) + (256 if width == 2 else 0) if width else None
    at += width
    window = known if single and known is not None else window
    if window > _WINDOW:
        raise LimitExceeded(
            f"expected a zstd window of {_WINDOW:,} bytes at most, found {window:,}: "
            "write it again with a smaller one"
        )
    return at, known, summed, min(window, _BLOCK)


def _decode_frame(data: bytes, least: int, most: int, *, guess: int) -> bytes:
    """Decode with the size that is likely, the largest, and then the right one.

    A wrong size is an error that says after how many bytes the frame ended.
    """
    size, tried = min(max(guess, least, 1), most), set[int]()
    while size and size not in tried:
        tried.add(size)
        try:
            return decode_chunk("zstd", data, np.dtype(np.uint8), (size,)).tobytes()
        except ValueError as error:
            reason = str(error).partition("found: ")[2].strip(".")
        if "End of data expected" in reason:
            if size == most:
                raise _too_long(most)
            size = most
        elif "Not enough data" in reason:
            found = _SIZE.search(reason)
            if found is None:
                raise Unsupported(
                    "expected TensorStore to say how long a zstd stream is, found: "
                    f"{reason}: write the checkpoint again without compression"
                )
            size = int(found[1])
        else:
            raise _broken(reason.partition('"c/0": ')[2] or reason, None)
    if size:
        raise _broken("one that ends in two places", None)
    return b""


def _take(data: bytes, at: int, width: int) -> int:
    if at + width > len(data):
        raise _broken("its end", len(data))
    return int.from_bytes(data[at : at + width], "little")


def _broken(found: str, at: int | None) -> Damaged:
    where = "" if at is None else f" at byte {at:,}"
    return Damaged(f"expected a stream of whole zstd frames, found {found}{where}")


def _too_long(limit: int) -> LimitExceeded:
    return LimitExceeded(
        f"expected a zstd stream of {limit:,} bytes at most, found a longer one"
    )
