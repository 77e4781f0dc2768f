"""What tells a process to stop: signals, a file that appears, a function that says so.

Signals are heard by a thread that reads what Python's own handler writes (its wakeup
descriptor), so a process that waits in XLA hears them too. A second signal of the same
kind ends the process at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from threading import Event, Thread, current_thread, main_thread
from types import FrameType
from typing import Any

from jax._src import distributed

from .._warn import warn_from_thread

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""What preempts: SIGTERM of clouds and Kubernetes, SIGUSR1 of Slurm's --signal."""

_AGAIN_SECONDS = 0.1
"""Launchers may deliver one notice twice; what comes later is a second one."""

_POLL_SECONDS = 1.0

Source = str | os.PathLike[str] | Callable[[], bool]
"""A file whose existence is a notice, or a function that tells of one."""


_listening: weakref.WeakSet[Notices] = weakref.WeakSet()


class Notices:
    """Listens until it is closed, and calls `tell` with what was heard.

    `tell` is called from a thread. A file or function is asked once a second, until it
    has said yes; a file must be gone before it can tell a second time.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        *,
        signals: Sequence[int] = SIGNALS,
        source: Source | None = None,
        end: Callable[[int], Any] = os._exit,
    ) -> None:
        """Begin to listen; signals can be heard only where the main thread begins."""
        self._tell, self._source, self._end = tell, source, end
        self._signals = tuple(signal.Signals(number) for number in signals)
        if not {signal.SIGKILL, signal.SIGSTOP}.isdisjoint(self._signals):
            raise ValueError(f"expected signals that can be heard, found {signals}")
        self._heard: dict[int, float] = {}
        self._before: dict[int, Any] = {}
        self._stop = Event()
        self._told = False
        self._ours, self._wakeup = socket.socketpair()
        self._wakeup.setblocking(False)
        self._is_woken = False
        if self._signals and current_thread() is not main_thread():
            warnings.warn(
                "expected the main thread, found another: signals are not heard here; "
                "enter the run on the main thread, or give notice=",
                stacklevel=3,
            )
            self._signals = ()
        if self._signals:
            self._listen_for_wakeup()
        self._client: Any = distributed.global_state.client
        self._take_signals()
        _listening.add(self)
        self._thread = Thread(target=self._hear, name="ckpt-notices", daemon=True)
        self._thread.start()
        if source is not None:
            # A thread of its own, which nobody waits for: it may block for long.
            Thread(target=self._ask, name="ckpt-notice", daemon=True).start()

    def renew_if_taken(self) -> None:
        """Hear signals again that jax.distributed has taken since.

        It sets the handler of its preemption service below Python, which still shows
        ours; so what tells is that it was initialised.
        """
        if distributed.global_state.client is not self._client:
            self._client = distributed.global_state.client
            self._take_signals()

    def _take_signals(self) -> None:
        for number in self._signals:
            before = signal.signal(number, self._heed)
            self._before.setdefault(number, before)

    def forget(self) -> None:
        """Take the next notice for a first one."""
        self._heard.clear()

    def close(self) -> None:
        """Stop listening, and put back what handled the signals before."""
        _listening.discard(self)
        self._stop.set()
        with contextlib.suppress(OSError):
            self._wakeup.send(b"\0")
        self._thread.join()
        if self._is_woken:
            self._take_wakeup(-1)
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)
        self._ours.close()
        self._wakeup.close()

    def leave_forked(self) -> None:
        """Let a forked child be ended by signals, and tell the parent nothing."""
        if self._is_woken:
            signal.set_wakeup_fd(-1)
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)
        self._ours.close()
        self._wakeup.close()

    def _take_wakeup(self, fd: int) -> bool:
        """Set the descriptor if ours is set still; tell whether it was."""
        found = signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
        if found != self._wakeup.fileno():
            # An event loop has begun to listen since.
            signal.set_wakeup_fd(found)
        return found == self._wakeup.fileno()

    def _listen_for_wakeup(self) -> None:
        fd = self._wakeup.fileno()
        before = signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
        if before != -1:
            # An event loop listens there. Ours is told by Python's handlers, later.
            signal.set_wakeup_fd(before)
        self._is_woken = before == -1

    def _heed(self, number: int, frame: FrameType | None) -> None:
        if not (self._is_woken and self._take_wakeup(self._wakeup.fileno())):
            with contextlib.suppress(OSError):
                self._wakeup.send(bytes([number]))

    def _hear(self) -> None:
        while not self._stop.is_set():
            for number in self._ours.recv(64):
                if number in self._signals and not self._stop.is_set():
                    self._hear_signal(number)

    def _ask(self) -> None:
        while self._source is not None and not self._stop.wait(_POLL_SECONDS):
            self._ask_source()

    def _hear_signal(self, number: int) -> None:
        now = time.monotonic()
        first = self._heard.setdefault(number, now)
        if first == now:
            self._tell(signal.Signals(number).name)
        elif now - first > _AGAIN_SECONDS:
            # 128 and the signal's number, as a shell says of one that it ended.
            self._end(128 + number)

    def _ask_source(self) -> None:
        if self._source is None:
            return
        try:
            if callable(self._source):
                found = bool(self._source())
                name = getattr(self._source, "__name__", "notice")
            else:
                found = os.path.exists(self._source)
                name = os.fspath(self._source)
        except Exception as error:
            self._source = None
            warn_from_thread(
                f"expected notice= to return whether there is a notice, found it raise "
                f"{type(error).__name__}: {error!s:.200}: it is not asked any more"
            )
            return
        if found and not self._told and not self._stop.is_set():
            self._tell(name)
        self._told = found


def _leave_forked() -> None:
    for notices in list(_listening):
        notices.leave_forked()


os.register_at_fork(after_in_child=_leave_forked)
