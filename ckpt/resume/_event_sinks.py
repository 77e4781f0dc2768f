"""Where the lines of an event log go: to a file at once, to a store together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeAlias

from .. import _place as place
from .._errors import CkptError
from .._local_store import LocalStore
from .._store import Store
from ._event_names import name_events, parse_name

Warn: TypeAlias = Callable[[BaseException], None]

_TRIES = 1000

_HELD_BYTES = 4 << 20
"""Bytes of lines that wait for a store that fails; what is above is dropped."""

_SEND_SECONDS, _SEND_MOST, _SENDS = 60.0, 600.0, 200
"""Seconds between two objects: a share of the time since the start, within these."""

_CLOSE_SECONDS = 15.0


class FileSink:
    """A file of this log alone, to which lines are appended."""

    def __init__(self, fd: int, *, warn: Warn) -> None:
        """Take over an open descriptor."""
        self._fd = fd
        self._warn = warn
        self._torn = False

    @classmethod
    def open(cls, run: LocalStore, *, began: int, process: int, warn: Warn) -> FileSink:
        """Make the file in the run's folder `events`, later if its name is taken."""
        parts = [*filter(None, run.within.split("/")), "events"]
        with place.entered(run.root, parts) as at:
            for late in range(_TRIES):
                leaf = name_events(began + late, process).partition("/")[2]
                try:
                    return cls(place.make_file(at, leaf), warn=warn)
                except FileExistsError:
                    continue
        raise FileExistsError(f"{_TRIES} logs have begun at {began} already")

    def write(self, line: bytes) -> None:
        """Append a line by one system call, which a kill does not undo."""
        if self._torn:
            # A disk that was full took a part of a line: begin another.
            line = b"\n" + line
        try:
            done = os.write(self._fd, line)
        except OSError as error:
            self._warn(error)
            return
        self._torn = done < len(line)
        if self._torn:
            self._warn(OSError(f"the file took {done} of {len(line)} bytes"))

    def flush(self) -> None:
        """Do nothing: what was written is in the file."""

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class ObjectSink:
    """Objects of a store, one for all the lines that came since the last."""

    def __init__(
        self,
        run: Store,
        name: str,
        *,
        monotonic: Callable[[], float],
        warn: Warn,
        patient: bool,
    ) -> None:
        """Begin the log of which `name` is the first piece.

        `patient` is for the many processes whose logs are read only when that of
        process 0 is not there.
        """
        self._run = run.hurried()
        self._name = name
        self._piece = 0
        self._monotonic = monotonic
        self._warn = warn
        self._began = self._sent = monotonic()
        self._least = _SEND_MOST if patient else _SEND_SECONDS
        self._lines: list[bytes] = []
        self._wanted = False
        self._lock = threading.RLock()
        self._sender: threading.Thread | None = None

    def write(self, line: bytes) -> None:
        """Keep a line; begin to send those that are kept when it is time."""
        with self._lock:
            self._lines.append(line)
            now = self._monotonic()
            pause = min(max(self._least, (now - self._began) / _SENDS), _SEND_MOST)
            due = now - self._sent >= pause
        if due:
            self.flush()

    def flush(self) -> None:
        """Begin to send what was kept, unless that is under way."""
        with self._lock:
            self._sent = self._monotonic()
            self._wanted = bool(self._lines)
            if self._sender is not None or not self._wanted:
                return
            # Not a daemon: the interpreter must not end amid a request.
            sender = threading.Thread(target=self._send, name="ckpt-events")
            try:
                sender.start()
            except RuntimeError:
                # The interpreter is exiting and starts no more threads.
                self._send()
            else:
                self._sender = sender

    def close(self) -> None:
        """Send what is left and wait for it, but not for long."""
        # Twice: lines may have come when the first sender was about to end.
        for _ in range(2):
            self.flush()
            with self._lock:
                sender = self._sender
            if sender is not None:
                sender.join(_CLOSE_SECONDS)
                if sender.is_alive():
                    return

    def _send(self) -> None:
        lines: list[bytes] = []
        try:
            while True:
                with self._lock:
                    if not self._wanted:
                        return
                    self._wanted = False
                    lines, self._lines = self._lines, []
                self._create(b"".join(lines))
        except (CkptError, OSError, ValueError) as error:
            with self._lock:
                self._lines = _keep_newest([*lines, *self._lines])
            self._warn(error)
        finally:
            with self._lock:
                self._sender = None

    def _create(self, data: bytes) -> None:
        while not self._run.create(self._name, data):
            # Another start of this process has the name: only its first piece can
            # meet that.
            found = parse_name(self._name)
            if found is None or self._piece:
                raise FileExistsError(f"another log has written {self._name}")
            self._name = name_events(found.began + 1, found.process, 0)
        self._piece += 1
        found = parse_name(self._name)
        if found is not None:
            self._name = name_events(found.began, found.process, self._piece)


def _keep_newest(lines: list[bytes]) -> list[bytes]:
    size = 0
    for count, line in enumerate(reversed(lines)):
        size += len(line)
        if size > _HELD_BYTES:
            return lines[len(lines) - count :]
    return lines
