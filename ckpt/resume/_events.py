"""The event log: what one process of a run did when, a line of JSON for each event.

A log is a witness, never a part of the training: whatever it cannot write becomes one
warning. On a disk a line is written by one system call, so that a kill loses none that
was added. Objects in a store cannot be appended to: there lines are sent together, as
one more object, so the last ones before a kill are lost.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np

from .._errors import CkptError
from .._local_store import LocalStore
from .._store import Store
from ._event_names import EventName, name_events, parse_name
from ._event_sinks import FileSink, ObjectSink

MAX_LINE = 16 << 10
"""Bytes of a line; an event that is longer loses its fields."""

_MAX_TEXT = 1000
_MAX_ITEMS = 200
_MAX_DEPTH = 3

_LAST = 10**14
"""Milliseconds since 1970, in a far year: what bears a later time is not heeded."""

_FIRST_STEPS = 3
"""Steps always written: the first compiles, the others tell what one takes."""

_SHORTEST, _LONGEST, _LINES = 0.2, 10.0, 2000
"""Seconds between lines of steps: a share of the time since the start, within these."""


class _Sink(Protocol):
    def write(self, line: bytes) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class EventLog:
    """The events of one process from its start to its end; a context manager.

    Every method is safe to call from any thread and raises nothing.

    >>> from ckpt._store import open_store
    >>> with EventLog.open(open_store("memory://doc-events"), process=0) as log:
    ...     log.add("resume", step=0, seconds=0.1, fresh=True)
    ...     for step in range(1, 4):
    ...         log.step(step)
    ...     log.add("stop", step=3, reason="finished")
    >>> import ckpt.resume
    >>> ckpt.resume.goodput("memory://doc-events").steps
    3
    """

    def __init__(
        self,
        where: str,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a log that writes nowhere yet: `open` makes one that does."""
        self.where = where
        self._clock = clock
        self._monotonic = monotonic
        # Reentrant: a signal handler may add an event while its thread adds another.
        self._lock = threading.RLock()
        self._sink: _Sink | None = None
        self._began = monotonic()
        self._steps = 0
        self._next = 0.0
        self._held: tuple[float, float, int] | None = None
        self._warned = False

    @classmethod
    def open(
        cls,
        run: Store,
        *,
        process: int,
        processes: int = 1,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        **told: Any,
    ) -> EventLog:
        """Begin a log of this process in a run, and add the event "start".

        That has `process`, `processes`, the host's name, the process id and what else
        is `told`. `clock` is seconds since 1970, `monotonic` seconds that never go
        back. What goes wrong is a warning, and a log that writes nothing.
        """
        log = cls(run.url, clock=clock, monotonic=monotonic)
        try:
            began = _choose_begin(run, process, int(clock() * 1000))
            log._sink = _open_sink(run, began, process, monotonic, log._warn)
        except (CkptError, OSError, ValueError) as error:
            log._warn(error)
        # Two logs must not begin alike: a store takes equal bytes for its own.
        me = {"host": _host(), "pid": os.getpid(), "log": secrets.token_hex(8)}
        log.add("start", process=process, processes=processes, **(me | told))
        return log

    def add(self, event: str, /, **fields: Any) -> None:
        """Write an event with these fields: numbers, texts and lists of them.

        A step that `step` has held back is written before it.
        """
        try:
            with self._lock:
                if self._sink is not None:
                    self._write_held(self._sink)
                    line = _encode(self._clock(), self._monotonic(), event, fields)
                    self._sink.write(line)
        except Exception as error:
            self._warn(error)

    def step(self, step: int) -> None:
        """Tell that a step is done; cheap enough to call after each.

        Of many steps few are written: the first three, then one in 0.2 s, later one in
        a 2000th of the time since the start, at least one in 10 s. The one before
        another event is written too.
        """
        try:
            with self._lock:
                now = self._monotonic()
                self._steps += 1
                self._held = self._clock(), now, int(step)
                if self._steps > _FIRST_STEPS and now < self._next:
                    return
                if self._sink is not None:
                    self._write_held(self._sink)
                pause = min(max(_SHORTEST, (now - self._began) / _LINES), _LONGEST)
                self._next = now + pause
        except Exception as error:
            self._warn(error)

    def flush(self) -> None:
        """Begin to send what was added, where lines are sent together."""
        self._finish(close=False)

    def close(self) -> None:
        """Write what was held back and end the log; harmless when repeated.

        Where lines are sent it waits for that, but not longer than 15 seconds.
        """
        self._finish(close=True)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _finish(self, *, close: bool) -> None:
        try:
            with self._lock:
                sink = self._sink
                if sink is None:
                    return
                self._write_held(sink)
                if close:
                    self._sink = None
            # Not under the lock: others may add events while the last are sent.
            sink.close() if close else sink.flush()
        except Exception as error:
            self._warn(error)

    def _write_held(self, sink: _Sink) -> None:
        if self._held is not None:
            wall, now, step = self._held
            self._held = None
            sink.write(_encode(wall, now, "step", {"step": step}))

    def _warn(self, error: BaseException) -> None:
        if self._warned:
            return
        self._warned = True
        text = (
            "the event log of this process is not whole, so that the goodput of the "
            f"run cannot be told exactly - in {self.where}: {error}"
        )
        try:
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        except RuntimeWarning:
            # Where warnings are errors this one still must not end the training.
            print(f"ckpt: {text}", file=sys.stderr)


def _host() -> str:
    try:
        return socket.gethostname()
    except OSError:
        return ""


def _choose_begin(run: Store, process: int, now: int) -> int:
    """Return milliseconds since 1970 that are later than all earlier logs'.

    So that the order of logs is the order of starts, though a clock was set back.
    """
    # One listing a job is enough: of many processes others' order matters little.
    if process:
        return now
    found: list[EventName | None] = []
    with contextlib.suppress(CkptError):
        found = [parse_name(name) for name in run.list("events")]
    began = (name.began for name in found if name is not None)
    return max([now, *(one + 1 for one in began if one < _LAST)])


def _open_sink(
    run: Store,
    began: int,
    process: int,
    monotonic: Callable[[], float],
    warn: Callable[[BaseException], None],
) -> _Sink:
    if isinstance(run, LocalStore):
        run.make_folders(["events"])
        return FileSink.open(run, began=began, process=process, warn=warn)
    name = name_events(began, process, 0)
    return ObjectSink(run, name, monotonic=monotonic, warn=warn, patient=process > 0)


def _encode(wall: float, now: float, event: str, fields: dict[str, Any]) -> bytes:
    head = {"t": round(wall, 6), "m": round(now, 6), "event": _plain(event)}
    line = _dump(head | {k: _try_plain(v) for k, v in fields.items() if k not in head})
    return line if len(line) <= MAX_LINE else _dump(head | {"cut": len(line)})


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _try_plain(value: Any) -> Any:
    try:
        return _plain(value)
    except Exception:
        # Its own text failed: what is told beside it still counts.
        return f"<{type(value).__name__}>"


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON can hold it, cut to a size that a log can hold."""
    if isinstance(value, np.generic):
        value = cast("Any", value.item())
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 63 else hex(value)[:_MAX_TEXT]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(value)
    if isinstance(value, BaseException):
        value = f"{type(value).__name__}: {value}"
    if depth > _MAX_DEPTH:
        return "..."
    if isinstance(value, (list, tuple)):
        items = cast("list[Any]", value)
        return [_plain(item, depth + 1) for item in items[:_MAX_ITEMS]]
    if isinstance(value, dict):
        pairs = list(cast("dict[Any, Any]", value).items())[:_MAX_ITEMS]
        return {str(k)[:_MAX_TEXT]: _plain(v, depth + 1) for k, v in pairs}
    return str(value)[:_MAX_TEXT]
