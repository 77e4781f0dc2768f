"""One remote object: read by ranges, or gathered and sent whole."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from threading import Lock

from ._errors import StoreError
from ._request import PastEnd
from ._store import Buffer, CutShort, view_bytes


class KvReader:
    """One object, read by ranges."""

    def __init__(
        self, get: Callable[[int, int], bytes], *, where: str, size: int
    ) -> None:
        """Read what `get` returns for a range; PastEnd when the object ends before."""
        self._get = get
        self._where = where
        self.size = size

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` from `offset`; CutShort when the object ends before that."""
        view = view_bytes(buffer)
        if not len(view):
            return
        stop = offset + len(view)
        try:
            data = self._get(offset, stop)
        except PastEnd:
            data = b""
        if len(data) != len(view):
            raise CutShort(
                f"Expected {stop:,} bytes or more, found fewer (truncated) - at "
                f"{self._where}. Restore another step."
            )
        view[:] = data

    def sync(self) -> None:
        """Do nothing: what a store has acknowledged is durable."""

    def close(self) -> None:
        """Do nothing: there is no connection to give back."""

    def __enter__(self) -> KvReader:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class KvWriter:
    """One new object, gathered in memory and sent whole when it is closed."""

    def __init__(
        self, create: Callable[[bytes], bool], *, where: str, size: int | None
    ) -> None:
        """Begin an object that `create` makes, unless its name is taken."""
        self._create = create
        self._where = where
        self._size = size
        self._gathered: io.BytesIO | None = io.BytesIO()
        self._writing = Lock()

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers."""
        if self._gathered is None:
            raise ValueError("Expected an open writer, found a closed one.")
        for buffer in buffers:
            self._gathered.write(view_bytes(buffer))

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers at an offset."""
        with self._writing:
            if self._gathered is not None:
                self._gathered.seek(offset)
            self.write(buffers)

    def close(self) -> None:
        """Send the object; it is durable when this returns."""
        if self._gathered is None:
            return
        data = self._gathered.getvalue()
        self.abort()
        if self._size is not None and self._size != len(data):
            raise ValueError(
                f"Expected {self._size:,} bytes to be written, found {len(data):,}."
            )
        if not self._create(data):
            raise StoreError(
                f"Expected no object, found one - at {self._where}. Objects are "
                "written once: choose another name."
            )

    def abort(self) -> None:
        """Forget what was written: nothing was sent."""
        self._gathered = None

    def __enter__(self) -> KvWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        if raised[0] is None:
            self.close()
        else:
            self.abort()
