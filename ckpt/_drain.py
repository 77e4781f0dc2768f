"""Bringing the committed steps of a run to its mirror, and keeping few of them here.

A commit that is to be copied is noted in `steps/` before it is made, so a drain that
was killed goes on in any later process, and `prune` leaves such a step alone. When the
mirror has it the note says so: then, and only then, a drain may remove it here.
"""

from __future__ import annotations

import contextlib
import warnings
from functools import partial

from ._catalog import PathLike, committed_steps, locate, open_step, read_record
from ._commit import is_committed, remove_step
from ._copy import Progress, copy_opened, count_bytes, count_up, is_same_place
from ._errors import (
    CkptError,
    Damaged,
    LimitExceeded,
    NotFound,
    StoreError,
    Untrusted,
)
from ._job import joined
from ._notes import Awaited, find_awaited, finish_awaited, identify
from ._pending import submit, take_failure, wait_until_idle
from ._store import Store
from ._store_options import GivenOptions

KEEP_LOCAL = 2
_JOB_SECONDS = 24 * 3600.0


def drain(
    path: PathLike,
    mirror: PathLike,
    *,
    keep_local: int = KEEP_LOCAL,
    max_host_bytes: int | None = None,
    progress: Progress | None = None,
    barrier_timeout: float = _JOB_SECONDS,
    store_options: GivenOptions | None = None,
) -> list[int]:
    """Copy to the mirror what saves with `mirror=` have left to copy; return the steps.

    Waits for the saves and drains of this process, then does the rest, oldest first.
    Steps that the mirror has got are then removed from `path`, but for the newest
    `keep_local`. Call it before a job ends, to know that the mirror has all; else the
    next save with `mirror=` goes on. `progress` is called with the bytes done and all
    bytes of one step after another. In a job of several processes all call it: process
    0 copies, the others wait for it, at most `barrier_timeout` seconds.

    A step that cannot be copied keeps no other from it, and is raised at the end
    (Damaged, StepExists for another commit there, ..); StoreError at once when the
    mirror does not answer. Steps owed to another mirror are warned of.

    >>> import jax.numpy as jnp, ckpt
    >>> near, far = "memory://doc-drain/near", "memory://doc-drain/far"
    >>> done = ckpt.save({"w": jnp.ones(3)}, None, near, mirror=far)
    >>> steps = ckpt.drain(near, far)
    >>> ckpt.steps(far)
    [0]
    """
    with joined(barrier_timeout) as job:
        with job.refusing("begin"):
            check_keep(keep_local)
            run, far = locate(path, store_options), locate(mirror, store_options)
            refuse_same_place(run, far)
            wait_until_idle(run.url, what="save")
            if not committed_steps(run) and not committed_steps(far):
                raise NotFound(f"expected a run with steps, found none - in {run.url}")

        def decide(_: object) -> list[int]:
            wait_until_idle(_queue_name(run, far), what="drain")
            take_failure(_queue_name(run, far), what="drain")
            copied = drain_run(
                run,
                far,
                keep_local=keep_local,
                max_host_bytes=max_host_bytes,
                progress=progress,
            )
            warn_of_others(run, far)
            return copied

        call = f"drain({run.url}, {far.url})"
        return job.begin(lambda: {"call": call}, decide=decide)


def check_keep(keep_local: int) -> None:
    """Refuse to keep nothing at all."""
    if keep_local < 1:
        raise ValueError(f"expected keep_local of at least 1, found {keep_local}")


def refuse_same_place(run: Store, mirror: Store) -> None:
    """Refuse a mirror that is the run itself: to remove steps there loses them."""
    if is_same_place(run, mirror):
        raise ValueError(f"expected mirror= to be another run, found {run.url} twice")


def drain_run(
    run: Store,
    mirror: Store,
    *,
    keep_local: int,
    max_host_bytes: int | None = None,
    progress: Progress | None = None,
) -> list[int]:
    """Copy what is noted, oldest first, then remove what need not be kept here."""
    refuse_same_place(run, mirror)
    copied: list[int] = []
    failed: list[CkptError] = []
    for awaited in find_awaited(run):
        if awaited.done or awaited.mirror not in ("", identify(mirror)):
            continue
        try:
            if _copy_awaited(run, mirror, awaited, max_host_bytes, progress):
                copied.append(awaited.step)
        except CkptError as error:
            if isinstance(error, StoreError) and not _answers(mirror):
                raise
            failed.append(error)
    remove_mirrored(run, mirror, keep=keep_local)
    if failed:
        raise failed[0]
    return copied


def _answers(mirror: Store) -> bool:
    """Tell whether it is not the mirror that failed, but a step."""
    try:
        committed_steps(mirror.hurried())
    except StoreError:
        return False
    return True


def _copy_awaited(
    run: Store,
    mirror: Store,
    awaited: Awaited,
    max_host_bytes: int | None,
    progress: Progress | None,
) -> bool:
    """Copy one commit; False when it was pruned or overwritten."""
    try:
        opened = open_step(run, awaited.step)
        if opened.manifest.commit != awaited.commit:
            return False
        copy_opened(
            opened,
            mirror,
            allow=lambda commit: commit in awaited.replaces,
            max_host_bytes=max_host_bytes,
            count=count_up(progress, count_bytes(opened) if progress else 0),
        )
    except NotFound:
        if is_committed(run, awaited.step, awaited.commit):
            raise
        return False
    finish_awaited(run, awaited)
    return True


def remove_mirrored(run: Store, mirror: Store, *, keep: int) -> list[int]:
    """Remove the steps that the mirror has got and has, but for the newest `keep`."""
    got = {
        awaited.step: awaited.commit
        for awaited in find_awaited(run)
        if awaited.done and awaited.mirror == identify(mirror)
    }
    steps = committed_steps(run)
    removed: list[int] = []
    for step in steps[: max(len(steps) - keep, 0)]:
        # Another process may remove or overwrite it, too. A damaged record stays.
        with contextlib.suppress(NotFound, Damaged, Untrusted, LimitExceeded):
            if (
                step in got
                and read_record(run, step)[0].commit == got[step]
                and is_committed(mirror, step, got[step])
            ):
                remove_step(run, step, commit=got[step])
                removed.append(step)
    return removed


def warn_of_others(run: Store, mirror: Store) -> None:
    """Say which steps are owed to another mirror than this one."""
    owed = [a for a in find_awaited(run) if not a.done]
    steps = [a.step for a in owed if a.mirror not in ("", identify(mirror))]
    if steps:
        warnings.warn(
            f"expected all steps of {run.url} to be copied to {mirror.url}, found "
            f"{steps} owed to another mirror: drain to that one, too",
            stacklevel=6,
        )


def start_drain(
    run: Store, mirror: Store, *, keep_local: int, max_host_bytes: int | None
) -> None:
    """Drain in the background, after what is being drained; exit waits for it."""
    work = partial(
        drain_run, run, mirror, keep_local=keep_local, max_host_bytes=max_host_bytes
    )
    # One that waits will find all that is noted by then.
    submit(_queue_name(run, mirror), work, what="drain", once=True)


def warn_of_failed_drain(run: Store, mirror: Store) -> None:
    """Say that a drain in the background failed: the next one does its work."""
    error = take_failure(_queue_name(run, mirror), what="drain")
    if error is not None:
        warnings.warn(
            f"expected the steps of {run.url} to be copied to {mirror.url}, found "
            f"{type(error).__name__}: {error} - it is tried again after this save",
            stacklevel=4,
        )


def _queue_name(run: Store, mirror: Store) -> str:
    return f"{run.url} -> {mirror.url}"
