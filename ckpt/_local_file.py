"""One file open for reading, or being written: complete, in order, or an error."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ._errors import CkptError
from ._place import lock_file, sync_file, write_all
from ._store import Buffer, CutShort, view_bytes

Explain: TypeAlias = Callable[[OSError], CkptError]


_FLUSH_BYTES = 128 << 20


class LocalReader:
    """One regular file, open for reading."""

    def __init__(self, fd: int, *, size: int, where: str, explain: Explain) -> None:
        """Take over an open descriptor."""
        self._fd = fd
        self._where = where
        self._explain = explain
        self._seeking = threading.Lock()
        self.size = size

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` from `offset`; CutShort when the file ends before that."""
        view = view_bytes(buffer)
        done = 0
        try:
            while done < len(view):
                got = self._read_some(offset + done, view[done:])
                if not got:
                    raise CutShort(
                        f"Expected {offset + len(view):,} bytes or more, found "
                        f"{offset + done:,} (truncated) - at {self._where}. Restore "
                        "another step."
                    )
                done += got
        except OSError as error:
            raise self._explain(error) from error

    def _read_some(self, offset: int, view: memoryview[Any]) -> int:
        if sys.platform != "win32":
            return os.preadv(self._fd, [view], offset)
        with self._seeking:
            os.lseek(self._fd, offset, os.SEEK_SET)
            data = os.read(self._fd, min(len(view), 1 << 24))
        view[: len(data)] = data
        return len(data)

    def status(self) -> os.stat_result:
        """Return what the file system says of the file that is open."""
        return os.fstat(self._fd)

    def lock(self) -> bool:
        """Lock the file until it is closed; False while another has it locked."""
        return lock_file(self._fd)

    def sync(self) -> None:
        """Make the file's bytes durable, whoever wrote them."""
        try:
            sync_file(self._fd)
        except OSError as error:
            raise self._explain(error) from error

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> LocalReader:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class LocalWriter:
    """One new file, written from front to back."""

    def __init__(
        self,
        fd: int,
        *,
        size: int | None,
        durable: bool,
        publish: Callable[[], None] | None,
        discard: Callable[[os.stat_result], None],
        explain: Explain,
    ) -> None:
        """Take over an open descriptor; `discard` removes the name of this file.

        `publish` gives a complete file the name that it is for.
        """
        self._fd = fd
        self._mine = os.fstat(fd)
        self._size = size
        self._durable = durable
        self._publish = publish
        self._discard = discard
        self._explain = explain
        self._written = 0
        self._writing = threading.Lock()

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers."""
        try:
            self._written = write_all(self._fd, buffers, offset=self._written)
        except OSError as error:
            raise self._explain(error) from error

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers at an offset, and begin to make them durable."""
        try:
            if sys.platform != "win32":
                end = write_all(self._fd, buffers, offset=offset)
            else:
                with self._writing:
                    os.lseek(self._fd, offset, os.SEEK_SET)
                    end = write_all(self._fd, buffers, offset=offset)
            with self._writing:
                before = self._written // _FLUSH_BYTES
                self._written += end - offset
                flush = self._durable and self._written // _FLUSH_BYTES > before
            # The disk works while others still write.
            if flush:
                sync_file(self._fd)
        except OSError as error:
            raise self._explain(error) from error

    def close(self) -> None:
        """Make the file durable; without that, remove it and raise."""
        if self._fd < 0:
            return
        if self._size is not None and self._size != self._written:
            self.abort()
            raise ValueError(
                f"Expected {self._size:,} bytes to be written, found {self._written:,}."
            )
        try:
            # After a failed fsync the kernel may call the lost pages clean: a second
            # one on this file would succeed and mean nothing. So the file goes.
            if self._durable:
                sync_file(self._fd)
            fd, self._fd = self._fd, -1
            os.close(fd)
            if self._publish:
                self._publish()
        except OSError as error:
            self.abort()
            raise self._explain(error) from error

    def abort(self) -> None:
        """Close the file and remove its name, as far as that is possible."""
        fd, self._fd = self._fd, -1
        with contextlib.suppress(OSError):
            if fd >= 0:
                os.close(fd)
        with contextlib.suppress(OSError, CkptError):
            self._discard(self._mine)

    def __enter__(self) -> LocalWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        if raised[0] is None:
            self.close()
        elif self._fd >= 0:
            self.abort()
