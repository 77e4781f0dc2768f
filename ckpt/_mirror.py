"""A run in two places: saved to the near one, copied to the far one, read from either.

The near one is fast and keeps few steps; its mirror is an object store, say, and keeps
many. Both hold the same commits, so that a step is the same wherever it is read.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, replace

from ._attempt import save_snapshot
from ._catalog import (
    Openable,
    Opened,
    PathLike,
    check_step,
    committed_steps,
    is_checkpoint,
    is_handle,
    locate,
    open_path,
    open_step,
)
from ._checkpoint import Checkpoint
from ._drain import remove_mirrored, start_drain, warn_of_failed_drain
from ._errors import CkptError, Damaged, NotFound, StoreError, Untrusted
from ._job import Job
from ._snapshot import Snapshot
from ._store import Store
from ._store_options import GivenOptions
from ._written import Options

_log = logging.getLogger("ckpt")

UNUSABLE = (Damaged, NotFound, StoreError, Untrusted)
"""After these a step may still be whole in the other place."""


def save_here(job: Job, run: Store, snapshot: Snapshot, options: Options) -> Checkpoint:
    """Save a step; with a mirror, note that it is to be copied, and begin to copy.

    When the disk is full, steps that the mirror has are removed here and the save is
    tried again; when that is not enough, the step goes to the mirror at once.
    """
    mirror = options.mirror
    if mirror is None:
        return save_snapshot(job, run, snapshot, options)
    if job.process == 0:
        warn_of_failed_drain(run, mirror)
    try:
        done = save_snapshot(job, run, snapshot, options)
    except StoreError as error:
        if error.outcome != "full":
            raise
        done = _save_when_full(job, run, snapshot, options, mirror)
    if job.process == 0:
        start_drain(
            run,
            mirror,
            keep_local=options.keep_local,
            max_host_bytes=options.max_host_bytes,
        )
    return done


def _save_when_full(
    job: Job, run: Store, snapshot: Snapshot, options: Options, mirror: Store
) -> Checkpoint:
    again = replace(job, attempt=1)
    removed: list[int] = []
    # All processes come here: the first of them to fail said so to the others.
    with again.refusing("begin"):
        if job.process == 0:
            removed = remove_mirrored(run, mirror, keep=0)
            warnings.warn(
                f"expected room for a step, found none - in {run.url}: removed steps "
                f"{removed}, which {mirror.url} has, and save again",
                stacklevel=5,
            )
    try:
        return save_snapshot(again, run, snapshot, options)
    except StoreError as error:
        if error.outcome != "full":
            raise
    if job.process == 0:
        warnings.warn(
            f"expected room for a step, found none - in {run.url}: save it to "
            f"{mirror.url} at once",
            stacklevel=5,
        )
    straight = replace(options, mirror=None)
    return save_snapshot(replace(job, attempt=2), mirror, snapshot, straight)


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
        here, there = committed_steps(near), _steps_of_mirror(far, near)
        step = max([*here, *there], default=None) if step is None else check_step(step)
        if step is None:
            raise NotFound(
                f"expected a committed step, found none - in {near.url} and {far.url}"
            )
        if step in here:
            try:
                return _say(open_step(near, step)), False
            except UNUSABLE as error:
                if step not in there:
                    raise
                warn_of_other_place(step, error, far)
        return _say(open_step(far, step)), True

    def open_at(self, *, in_mirror: bool, step: int | None) -> Opened:
        """Open a step in the place that another process has chosen."""
        if in_mirror:
            return open_path(self.mirror, step, self.options)
        return open_path(self.path, step, self.options)

    def find_other(self, opened: Opened, error: CkptError) -> Opened | None:
        """Return the same commit in the mirror, when it cannot be read nearby."""
        if self.mirror is None or opened.record is None:
            return None
        far = self._far()
        if opened.run is not None and opened.run.url == far.url:
            return None
        try:
            other = open_step(far, opened.record.step)
        except UNUSABLE:
            return None
        if other.digest != opened.digest:
            return None
        warn_of_other_place(opened.record.step, error, far)
        return _say(other)


def _steps_of_mirror(far: Store, near: Store) -> list[int]:
    try:
        return committed_steps(far)
    except StoreError as error:
        if error.outcome == "refused" or not committed_steps(near):
            raise
        warnings.warn(
            f"expected to see the steps of {far.url}, found {error} - only those of "
            f"{near.url} are looked at",
            stacklevel=4,
        )
        return []


def warn_of_other_place(step: int, error: CkptError, far: Store) -> None:
    """Say that a step is read from the mirror, and why."""
    warnings.warn(
        f"expected to read step {step} nearby, found {type(error).__name__}: {error} - "
        f"it is read from {far.url}",
        stacklevel=5,
    )


def _say(opened: Opened) -> Opened:
    _log.info("step %d is read from %s", opened.manifest.step, opened.store.url)
    return opened
