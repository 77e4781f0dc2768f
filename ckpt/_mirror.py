"""A run in two places: saved to the near one, copied to the far one, read from either.

The near one is fast and keeps few steps; its mirror is an object store, say, and keeps
many. Both hold the same commits, so that a step is the same wherever it is read.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from dataclasses import dataclass, replace
from typing import Any

import layouts

from ._attempt import save_snapshot
from ._catalog import (
    Openable,
    Opened,
    PathLike,
    check_step,
    is_checkpoint,
    is_handle,
    locate,
    open_path,
    open_step,
    read_record,
)
from ._checkpoint import Checkpoint
from ._commit import remove_attempt, remove_step
from ._drain import remove_mirrored, start_drain, warn_of_failed_drain
from ._errors import (
    CkptError,
    Damaged,
    LimitExceeded,
    NotFound,
    StoreError,
    Untrusted,
)
from ._job import Job
from ._notes import find_awaited, forget_awaited
from ._snapshot import Snapshot
from ._steps import steps_of_both
from ._store import Store
from ._store_options import GivenOptions
from ._written import Options

_log = logging.getLogger("ckpt")

UNUSABLE = (Damaged, LimitExceeded, NotFound, StoreError, Untrusted)
"""After these a step may still be whole in the other place."""


def save_here(job: Job, run: Store, snapshot: Snapshot, options: Options) -> Checkpoint:
    """Save a step; with a mirror, note that it is to be copied, and begin to copy.

    When the disk is full, steps that the mirror has got are removed here, but for the
    newest, and the save is tried again; when that is not enough, the step goes to the
    mirror at once.
    """
    mirror = options.mirror
    if mirror is None:
        return save_snapshot(job, run, snapshot, options)
    try:
        if job.process == 0:
            warn_of_failed_drain(run, mirror)
        done = _save_near(job, run, snapshot, options, mirror)
    except BaseException as error:
        # Those that go on, as the disk is full for them, need not wait for this one.
        for attempt in (1, 2):
            replace(job, attempt=attempt).withdraw(["room", "begin"], error)
        raise
    if job.process == 0:
        start_drain(
            run,
            mirror,
            keep_local=options.keep_local,
            max_host_bytes=options.max_host_bytes,
        )
    return done


def _save_near(
    job: Job, run: Store, snapshot: Snapshot, options: Options, mirror: Store
) -> Checkpoint:
    try:
        return save_snapshot(job, run, snapshot, options)
    except StoreError as error:
        if error.outcome != "full":
            raise
    again = replace(job, attempt=1)
    removed = again.agree(
        "room", dict[str, Any], decide=lambda _: _make_room(run, mirror)
    )
    if removed:
        try:
            return save_snapshot(again, run, snapshot, options)
        except StoreError as error:
            if error.outcome != "full":
                raise
    if job.process == 0:
        warnings.warn(
            f"expected room for a step, found none - in {run.url}: it is saved to "
            f"{mirror.url} at once",
            stacklevel=5,
        )
    straight = replace(options, mirror=None, beside=run)
    done = save_snapshot(replace(job, attempt=2), mirror, snapshot, straight)
    if job.process == 0:
        _remove_replaced(run, done)
    return done


def _make_room(run: Store, mirror: Store) -> list[int]:
    try:
        removed = remove_mirrored(run, mirror, keep=1)
    except StoreError as error:
        if error.outcome != "full":
            raise
        # To remove a step is noted first: so full is the disk.
        removed = []
    if removed:
        warnings.warn(
            f"expected room for a step, found none - in {run.url}: steps {removed}, "
            f"which {mirror.url} has, were removed",
            stacklevel=7,
        )
    return removed


def _remove_replaced(run: Store, done: Checkpoint) -> None:
    """Remove the near commit of a step that the mirror has a newer one of."""
    with contextlib.suppress(CkptError):
        record, data = read_record(run, done.step)
        if record.commit == done.manifest.commit:
            return
        forget_awaited(run, done.step, record.commit)
        try:
            remove_step(run, done.step, commit=record.commit)
        except StoreError as error:
            if error.outcome != "full":
                raise
            # No room for the note of a removal: better data that nobody finds than an
            # old commit that is taken for the newer one.
            run.remove(layouts.record_name(done.step), expected=data)
            remove_attempt(run, done.step, record.commit)


@dataclass(frozen=True, slots=True)
class Places:
    """Where a checkpoint is looked for: `path`, then `mirror`."""

    path: Openable | None
    mirror: PathLike | None
    options: GivenOptions | None

    @property
    def name(self) -> str:
        """How messages say it."""
        if is_handle(self.path):
            return self.path.opened.store.url
        near = locate(self.path, self.options).url
        return near if self.mirror is None else f"{near} or {self._far().url}"

    def _far(self) -> Store:
        return locate(self.mirror, self.options)

    def open(self, step: int | None) -> tuple[Opened, bool]:
        """Open the newest step (or `step`) where it is nearest; is that the mirror?

        A step that cannot be opened nearby, and is in the mirror, is opened there.
        """
        if self.mirror is None:
            return open_path(self.path, step, self.options), False
        if is_handle(self.path):
            raise ValueError("expected a path with mirror=, found a Checkpoint")
        near, far = locate(self.path, self.options), self._far()
        if is_checkpoint(near):
            raise ValueError(
                f"expected the path of a run with mirror=, found a checkpoint - at "
                f"{near.url}: leave mirror= out"
            )
        here, there = steps_of_both(near, far)
        step = max([*here, *there], default=None) if step is None else check_step(step)
        if step is None:
            raise NotFound(
                f"expected a committed step, found none - in {near.url} and {far.url}"
                f"{far.absence_hint}"
            )
        if step in here:
            try:
                found = open_step(near, step)
                if step not in there or _is_newer_here(near, far, found):
                    return _say(found), False
                _warn_of_two_commits(step, near, far)
            except UNUSABLE as error:
                if step not in there:
                    raise
                _warn_of_other_place(step, error, far)
        return _say(open_step(far, step)), True

    def open_at(self, *, in_mirror: bool, step: int | None) -> Opened:
        """Open a step in the place that another process has chosen."""
        if in_mirror:
            return open_path(self.mirror, step, self.options)
        return open_path(self.path, step, self.options)

    def open_other(self, step: int | None, digest: str) -> Opened | None:
        """Return the same commit in the mirror, None if it does not have it."""
        if self.mirror is None or step is None:
            return None
        try:
            other = open_step(self._far(), step)
        except UNUSABLE:
            return None
        return other if other.digest == digest else None

    def warn_of_mirror(self, step: int, error: CkptError) -> None:
        """Say that a step is read from the mirror, and why."""
        _warn_of_other_place(step, error, self._far())


def _is_newer_here(near: Store, far: Store, found: Opened) -> bool:
    """Tell which of two commits of a step is the newer one, should they differ.

    The near one is, unless its note says that the mirror got it once, or that it may
    not take the place of what is there: then that was saved to the mirror at once.
    """
    step, commit = found.manifest.step, found.manifest.commit
    try:
        there = read_record(far.hurried(), step)[0].commit
    except CkptError:
        return True
    if there == commit:
        return True
    notes = [a for a in find_awaited(near) if (a.step, a.commit) == (step, commit)]
    return not notes or (not notes[0].done and there in notes[0].replaces)


def _warn_of_two_commits(step: int, near: Store, far: Store) -> None:
    warnings.warn(
        f"expected one commit of step {step}, found another in {far.url} than in "
        f"{near.url}, which may not take its place - it is read from {far.url}; to "
        "read the other, leave mirror= out",
        stacklevel=5,
    )


def _warn_of_other_place(step: int, error: CkptError, far: Store) -> None:
    warnings.warn(
        f"expected to read step {step} nearby, found {type(error).__name__}: {error} - "
        f"it is read from {far.url}",
        stacklevel=5,
    )


def _say(opened: Opened) -> Opened:
    _log.info("step %d is read from %s", opened.manifest.step, opened.store.url)
    return opened
