"""Following a run: its checkpoints one after another, as they are committed."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from ._catalog import (
    PathLike,
    check_step,
    committed_steps,
    is_checkpoint,
    locate,
    open_step,
    read_record,
)
from ._checkpoint import Checkpoint
from ._errors import NotFound
from ._store import Store
from ._store_options import GivenOptions
from ._write import run_all

_LOOKS = 32
"""How many known steps are read again at each look: more are read in turn."""


def follow(
    path: PathLike | None = None,
    *,
    after: int | None = None,
    poll: float = 1.0,
    timeout: float | None = None,
    store_options: GivenOptions | None = None,
) -> Iterator[Checkpoint]:
    """Yield each newly committed checkpoint of a run, oldest first, none twice.

    Begins with the newest one there is, or with all steps greater than `after`. A step
    that was overwritten, or removed and saved again, is a new checkpoint. Steps that
    are pruned before they are reached are left out. Looks every `poll` seconds, also
    for a run that does not exist yet; ends when there was nothing new for `timeout`
    seconds (None: never). The time that the caller takes is not counted.

    A checkpoint that is pruned while it is read raises NotFound, and never mixes with
    another. Raises Damaged or StoreError as `open` does; ValueError or TypeError for
    wrong arguments, at once.

    >>> import ckpt
    >>> run = "memory://doc-follow"
    >>> done = ckpt.save({"x": 1}, None, run, step=1)
    >>> for ck in ckpt.follow(run, timeout=0):
    ...     print(ck.step, ckpt.restore(run, step=ck.step))
    1 {'x': 1}
    """
    if after is not None:
        after = check_step(after)
    if not 0 < poll < math.inf:
        raise ValueError(f"expected poll of more than 0 seconds, found {poll}")
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"expected timeout of 0 seconds or more, found {timeout}")
    run = locate(path, store_options)
    if is_checkpoint(run):
        raise ValueError(
            f"expected the path of a run, found a checkpoint - at {run.url}: follow "
            "takes the run's path (the folder that holds steps/)"
        )
    return _follow(run, after, poll, timeout)


@dataclass(slots=True)
class _Seen:
    """The commit of each step that was yielded or passed over, least lately read first.

    Steps that are gone stay: one that comes back as it was is not new.
    """

    commits: dict[int, str] = field(default_factory=dict[int, str])

    def due(self, listed: list[int]) -> list[int]:
        """Return which steps to look at: those not seen, and some that were."""
        there = set(listed)
        known = [step for step in self.commits if step in there][:_LOOKS]
        return sorted([*(there - self.commits.keys()), *known])

    def is_new(self, step: int, commit: str) -> bool:
        """Note what a step holds, and tell whether it held something else before."""
        return self.commits.pop(step, None) != self.commits.setdefault(step, commit)


def _follow(
    run: Store, after: int | None, poll: float, timeout: float | None
) -> Generator[Checkpoint]:
    seen = _Seen()
    first = -1 if after is None else after + 1
    deadline = _deadline(timeout)
    passed_over = after is not None
    while True:
        late = time.monotonic() >= deadline
        changed = _find_changed(run, seen, first)
        if not passed_over:
            changed, passed_over = changed[-1:], True
        for step in changed:
            try:
                opened = open_step(run, step)
            except NotFound:
                continue
            if opened.record is not None:
                seen.is_new(step, opened.record.commit)
            yield Checkpoint(opened)
            deadline = _deadline(timeout)
            late = False
        if late:
            return
        time.sleep(min(poll, max(deadline - time.monotonic(), 0)))


def _deadline(timeout: float | None) -> float:
    return math.inf if timeout is None else time.monotonic() + timeout


def _find_changed(run: Store, seen: _Seen, first: int) -> list[int]:
    """Return the steps whose commit record is not the one seen before, ascending."""
    due = seen.due([step for step in committed_steps(run) if step >= first])
    commits = run_all(lambda step: _commit_of(run, step), due, parallel=run.parallel)
    return [
        step
        for step, commit in zip(due, commits, strict=True)
        if commit is not None and seen.is_new(step, commit)
    ]


def _commit_of(run: Store, step: int) -> str | None:
    try:
        return read_record(run, step)[0].commit
    except NotFound:
        return None
