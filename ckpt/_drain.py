"""Bringing the committed steps of a run to its mirror, and keeping few of them here.

A commit that is to be copied is noted in `steps/` before it is made, so a drain that
was killed goes on in any later process; `prune` leaves such a step alone.
"""

from __future__ import annotations

import contextlib
import warnings
from functools import partial

from ._catalog import PathLike, committed_steps, locate, open_step, read_record
from ._commit import find_awaited, forget_awaited, is_committed, remove_step
from ._copy import Counter, Progress, copy_opened, stored_bytes
from ._errors import (
    CkptError,
    Damaged,
    LimitExceeded,
    NotFound,
    StepExists,
    Untrusted,
)
from ._pending import submit, take_failure, wait_for_room
from ._store import Store
from ._store_options import GivenOptions

KEEP_LOCAL = 2


def drain(
    path: PathLike,
    mirror: PathLike,
    *,
    keep_local: int = KEEP_LOCAL,
    max_host_bytes: int | None = None,
    progress: Progress | None = None,
    store_options: GivenOptions | None = None,
) -> list[int]:
    """Copy to the mirror what saves with `mirror=` have left to copy; return the steps.

    Waits for what this process drains in the background, then does the rest, oldest
    first. Steps that the mirror has are then removed from `path`, but for the newest
    `keep_local`. Call it before a job ends, to know that the mirror has all; else the
    next save with `mirror=` goes on. `progress` is called with bytes done and all.

    Raises Damaged, StoreError, StepExists (another commit is there), CommitUnknown.

    >>> import jax.numpy as jnp, ckpt
    >>> near, far = "memory://doc-drain/near", "memory://doc-drain/far"
    >>> done = ckpt.save({"w": jnp.ones(3)}, None, near, mirror=far)
    >>> steps = ckpt.drain(near, far)
    >>> ckpt.steps(far)
    [0]
    """
    check_keep(keep_local)
    run, far = locate(path, store_options), locate(mirror, store_options)
    take_failure(_queue_name(run, far), what="drain")
    with contextlib.suppress(CkptError):
        wait_for_room(_queue_name(run, far), 0, what="drain")
    return drain_run(
        run,
        far,
        keep_local=keep_local,
        max_host_bytes=max_host_bytes,
        progress=progress,
    )


def check_keep(keep_local: int) -> None:
    """Refuse to keep nothing at all."""
    if keep_local < 1:
        raise ValueError(f"expected keep_local of at least 1, found {keep_local}")


def drain_run(
    run: Store,
    mirror: Store,
    *,
    keep_local: int,
    max_host_bytes: int | None = None,
    progress: Progress | None = None,
) -> list[int]:
    """Copy what is noted, oldest first, then remove what need not be kept here.

    A step that cannot be copied keeps no other from it; it is raised at the end.
    """
    copied: list[int] = []
    failed: list[CkptError] = []
    for awaited in find_awaited(run):
        try:
            opened = open_step(run, awaited.step)
            if opened.manifest.commit != awaited.commit:
                continue
            copy_opened(
                opened,
                mirror,
                overwrite=awaited.overwrite,
                max_host_bytes=max_host_bytes,
                count=Counter(progress, stored_bytes(opened) if progress else 0),
            )
        except NotFound:
            continue  # pruned or overwritten
        except (Damaged, LimitExceeded, StepExists, Untrusted) as error:
            failed.append(error)
            continue
        forget_awaited(run, awaited.step, awaited.commit)
        copied.append(awaited.step)
    remove_mirrored(run, mirror, keep=keep_local)
    if failed:
        raise failed[0]
    return copied


def remove_mirrored(run: Store, mirror: Store, *, keep: int) -> list[int]:
    """Remove the steps that the mirror has, but for the newest `keep` of all."""
    steps = committed_steps(run)
    removed: list[int] = []
    for step in steps[: max(len(steps) - keep, 0)]:
        # Another process may remove it, too.
        with contextlib.suppress(NotFound):
            commit = read_record(run, step)[0].commit
            if is_committed(mirror, step, commit):
                remove_step(run, step)
                removed.append(step)
    return removed


def start_drain(
    run: Store, mirror: Store, *, keep_local: int, max_host_bytes: int | None
) -> None:
    """Drain in the background, after what is being drained; exit waits for it."""
    work = partial(
        drain_run, run, mirror, keep_local=keep_local, max_host_bytes=max_host_bytes
    )
    submit(_queue_name(run, mirror), work, what="drain")


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
