"""A look at an object from front to back, of which most bytes are passed over."""

from __future__ import annotations

from .._errors import Damaged
from .._store import Reader

_FIRST = 16 * 1024
_LARGEST = 1024 * 1024


class Skim:
    """The bytes of an object, fetched as they are asked for, with few requests.

    What follows on is fetched in larger and larger parts; after a jump they are small
    again. Not for several threads at once.
    """

    def __init__(self, source: Reader | bytes, *, where: str) -> None:
        """Look at an open object, or at bytes in memory; `where` is for messages."""
        self.where = where
        self._reader = None if isinstance(source, bytes) else source
        self.size = len(source) if isinstance(source, bytes) else source.size
        self._start = 0
        self._bytes = source if isinstance(source, bytes) else b""
        self._ahead = _FIRST

    def take(self, at: int, length: int) -> bytes:
        """Return `length` bytes from `at`; Damaged where the object ends before."""
        if at + length > self.size:
            raise Damaged(
                f"expected {length:,} bytes at byte {at:,} in {self.where}, found its "
                f"end at {self.size:,}: the file is cut short, fetch it again"
            )
        begin = at - self._start
        if self._reader is not None and not (
            begin >= 0 and begin + length <= len(self._bytes)
        ):
            self._fetch(self._reader, at, length)
            begin = 0
        return self._bytes[begin : begin + length]

    def byte(self, at: int) -> int:
        """Return the byte at `at`, as `take` does."""
        begin = at - self._start
        if 0 <= begin < len(self._bytes):
            return self._bytes[begin]
        return self.take(at, 1)[0]

    def _fetch(self, reader: Reader, at: int, length: int) -> None:
        stop = self._start + len(self._bytes)
        follows = self._start <= at <= stop and stop > 0
        self._ahead = min(4 * self._ahead, _LARGEST) if follows else _FIRST
        buffer = bytearray(min(max(length, self._ahead), self.size - at))
        reader.read_into(at, buffer)
        self._start, self._bytes = at, bytes(buffer)
