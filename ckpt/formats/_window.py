"""Bytes of a part of an object, read by range, with few requests for what is small."""

from __future__ import annotations

from dataclasses import dataclass, field

from .._store import Reader
from ._entry import Blob
from ._zip import TAIL, Fetch

_AHEAD = 1 << 12
"""How many bytes are read at least: the next ones are often wanted soon."""


@dataclass(slots=True)
class _Window:
    """The last parts that were read: the end, and one other."""

    reader: Reader
    blob: Blob
    # Both are there from the start, as several threads may look while one reads.
    parts: dict[str, tuple[int, bytes]] = field(
        default_factory=lambda: {"end": (0, b""), "other": (0, b"")}
    )

    def fetch(self, start: int, stop: int) -> bytes:
        for first, data in self.parts.values():
            if first <= start and stop <= first + len(data):
                return data[start - first : stop - first]
        whole = self.blob.length
        first = 0 if whole <= TAIL else start
        last = whole if whole <= TAIL else min(whole, max(stop, start + _AHEAD))
        buffer = bytearray(last - first)
        self.reader.read_into(self.blob.offset + first, buffer)
        data = bytes(buffer)
        if len(data) <= TAIL:
            self.parts["end" if last == whole else "other"] = first, data
        return data[start - first : stop - first]


def fetch_from(reader: Reader, blob: Blob) -> Fetch:
    """Return a function that reads a part of a blob."""
    return _Window(reader, blob).fetch


def fetch_bytes(data: bytes | memoryview) -> Fetch:
    """Return a function that reads a part of bytes in memory."""
    view = memoryview(data)
    return lambda start, stop: bytes(view[start:stop])
