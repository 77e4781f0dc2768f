"""Saves in the background: one after another for each run, none of them forgotten.

A thread that is no daemon does them: the interpreter waits for it at its exit, however
the main thread ends. A failure that nobody has looked at is raised by the next save of
the run, and printed at exit.
"""

from __future__ import annotations

import atexit
import sys
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any

from ._failure import forget_frames

Work = Callable[[], Any]


class Pending(Future[Any]):
    """The future of one save or drain, which remembers whether it was looked at."""

    def __init__(self) -> None:
        """Make the future of a save that has not begun."""
        super().__init__()
        self.seen = False

    def cancel(self) -> bool:
        """Return False: what was held is saved."""
        return False

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the Checkpoint, or raise what `save` would have raised."""
        found = self.exception(timeout)
        if found is not None:
            raise found
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the save; return what it raised, or None."""
        found = super().exception(timeout)
        self.seen = True
        return found


@dataclass(slots=True)
class _Queue:
    """The work on one run that has not ended, and failures not looked at."""

    url: str
    what: str
    waiting: deque[tuple[Pending, Work]] = field(
        default_factory=deque[tuple[Pending, Work]]
    )
    running: int = 0
    failed: list[Pending] = field(default_factory=list[Pending])


_changed = Condition()
_queues: dict[tuple[str, str], _Queue] = {}


def submit(url: str, work: Work, *, what: str = "save", once: bool = False) -> Pending:
    """Do the work after what is pending for the run, in the background.

    `what` it is, messages say; different work on a run has queues of its own. With
    `once`, work that waits already is enough.
    """
    pending = Pending()
    with _changed:
        queue = _queues.setdefault((what, url), _Queue(url, what))
        if once and queue.waiting:
            return queue.waiting[-1][0]
        queue.waiting.append((pending, work))
        starts = queue.running == 0
        queue.running += 1
    if starts:
        thread = Thread(target=_work_off, args=(queue,), name=f"ckpt-{what}")
        try:
            thread.start()
        except RuntimeError:
            # The interpreter is exiting and starts no more threads.
            _work_off(queue)
    return pending


def wait_for_room(url: str, most: int) -> None:
    """Wait until at most so many saves of the run are pending; raise their failure."""
    with _changed:
        queue = _queues.get(("save", url))
        if queue is None:
            return
        while queue.running > most:
            # A timeout lets an interrupt in.
            _changed.wait(1.0)
        queue.failed = [p for p in queue.failed if not p.seen]
        first = queue.failed[0] if queue.failed else None
    if first is not None:
        first.result()


def wait_until_idle(url: str, *, what: str) -> None:
    """Wait until nothing is pending for the run, whatever becomes of it."""
    with _changed:
        while (queue := _queues.get((what, url))) and queue.running:
            # A timeout lets an interrupt in.
            _changed.wait(1.0)


def take_failure(url: str, *, what: str) -> BaseException | None:
    """Return a failure that nobody has looked at, and forget the others."""
    with _changed:
        queue = _queues.get((what, url))
        failed = [p for p in queue.failed if not p.seen] if queue else []
        if queue is not None:
            queue.failed = []
            if queue.running == 0:
                _queues.pop((what, url), None)
    return failed[0].exception() if failed else None


def note_failure(url: str, failed: Pending) -> None:
    """Have a failure raised by the next save of the run, unless it is looked at."""
    with _changed:
        _queues.setdefault(("save", url), _Queue(url, "save")).failed.append(failed)


def _work_off(queue: _Queue) -> None:
    while True:
        with _changed:
            pending, work = queue.waiting.popleft()
        _do(queue, pending, work)
        # What the save held must be free before the next is waited for.
        del pending, work
        with _changed:
            queue.running -= 1
            _changed.notify_all()
            if queue.running == 0:
                if not queue.failed:
                    _queues.pop((queue.what, queue.url), None)
                return


def _do(queue: _Queue, pending: Pending, work: Work) -> None:
    pending.set_running_or_notify_cancel()
    try:
        done = work()
    except BaseException as error:
        # The error's frames lead here, and hold what was to be saved.
        del work
        forget_frames(error)
        with _changed:
            queue.failed.append(pending)
        pending.set_exception(error)
    else:
        pending.set_result(done)


def _report() -> None:
    """Say at exit which saves failed without anybody having asked."""
    for queue in list(_queues.values()):
        for pending in queue.failed:
            if not pending.seen:
                error: Any = pending.exception()
                text = f"ckpt: a {queue.what} to {queue.url} failed:"
                print(text, file=sys.stderr)
                traceback.print_exception(error, file=sys.stderr)


atexit.register(_report)
