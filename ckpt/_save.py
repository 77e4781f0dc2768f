"""The calls that save: check, describe, and attempt, at once or in the background."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import layouts
from layouts import WriteLimits

from ._catalog import PathLike, check_step, locate
from ._checkpoint import Checkpoint
from ._drain import KEEP_LOCAL, check_keep, refuse_same_place
from ._errors import CkptError
from ._hold import hold_snapshot
from ._job import BARRIER_SECONDS, Job, join, joined, leave
from ._metrics import plain_metrics
from ._mirror import save_here
from ._pending import Pending, note_failure, submit, wait_for_room
from ._snapshot import Snapshot, describe_tree, plan_known
from ._staging import give_back
from ._store import Store
from ._store_options import GivenOptions
from ._together import refuse_memory
from ._written import Options, check_budget


def save(
    state: Any,
    mesh: Any = None,
    path: PathLike | None = None,
    *,
    step: int | None = None,
    metrics: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    codec: str | None = None,
    max_host_bytes: int | None = None,
    reuse: bool = False,
    barrier_timeout: float = BARRIER_SECONDS,
    mirror: PathLike | None = None,
    keep_local: int = KEEP_LOCAL,
    store_options: GivenOptions | None = None,
) -> Checkpoint:
    """Save a pytree as one committed step of a run, durable when this returns.

    `mesh` lays out only leaves that have no mesh of their own (replicated); it may be
    None. `path` is a run: $CKPT_PATH or ./checkpoints by default; `step` is the newest
    step + 1 by default. `codec` is None, "zstd", "gzip" or "blosc"; `max_host_bytes`
    bounds the host memory used beyond the data itself. If this raises anything but
    CommitUnknown, readers see the run as it was before (an interrupt may come just
    after the commit); what was written is removed, or is an orphan for `prune`.

    With `reuse` large arrays are not written again where they equal the run's newest
    step's, if that was saved with `reuse` too: the step then needs objects that lie in
    other steps' directories, which `prune` keeps for it. What is compared is whole
    objects of up to 64 MiB, by a 128-bit hash; a tree that changes throughout is only
    hashed in vain.

    In a job of several processes all must call this, with the same arguments (`step`
    among them: it tells calls apart; `metrics` are process 0's). Each writes its share;
    leaves on the host must be equal everywhere, but those in a `PerProcess`.
    `barrier_timeout` is for how many seconds a process waits for the others each time
    it has to. When one fails or stays away, all raise.

    With `mirror` the step is committed in `path` and then copied there in the
    background (`ckpt.drain` waits for that, and so does the interpreter's exit); of
    what the mirror has, `path` keeps the newest `keep_local` steps. A full disk makes
    room by removing steps that the mirror has, but for the newest; when that is not
    enough the step is saved to the mirror, and the Checkpoint returned lies there. Both
    are warned of, and so are copies that fail: the next save tries them again.
    `store_options` say how to reach object stores.

    Raises StepExists, Unsupported (naming the leaf), StoreError, CommitUnknown,
    BarrierTimeout (naming the processes), and what an earlier `save_async` to this run
    raised, if nobody has looked at its future; ValueError or TypeError for wrong
    arguments, before any I/O.

    >>> import jax.numpy as jnp, ckpt
    >>> done = ckpt.save({"w": jnp.ones(3)}, None, "memory://doc-save", step=7)
    >>> done.step, ckpt.steps("memory://doc-save")
    (7, [7])
    """
    with joined(barrier_timeout) as job:
        with job.refusing("begin"):
            options = _check(step, metrics, overwrite, codec, max_host_bytes, reuse)
            _refuse_swapped(state, path)
            run = locate(path, store_options)
            refuse_memory(run, job)
            options = _with_mirror(options, run, job, mirror, keep_local, store_options)
            snapshot = describe_tree(state, mesh, job)
            wait_for_room(run.url, 0)
        return save_here(job, run, snapshot, options)


def save_async(
    state: Any,
    mesh: Any = None,
    path: PathLike | None = None,
    *,
    step: int | None = None,
    metrics: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    codec: str | None = None,
    max_host_bytes: int | None = None,
    reuse: bool = False,
    barrier_timeout: float = BARRIER_SECONDS,
    max_pending: int = 1,
    mirror: PathLike | None = None,
    keep_local: int = KEEP_LOCAL,
    store_options: GivenOptions | None = None,
) -> Future[Checkpoint]:
    """Copy the state to host memory, then save it in the background as `save` does.

    When this returns, the caller may donate, delete or mutate everything. The future's
    result is the Checkpoint, or raises what `save` would have raised. A failure that
    nobody has looked at is raised by the next save of the run, and printed at the
    interpreter's exit, which waits for what is pending.

    The saves of a run are done one after another; while `max_pending` of them have not
    ended, this waits. A state that does not fit into `max_host_bytes` is written before
    this returns, with a UserWarning that says so.

    >>> import jax.numpy as jnp, ckpt
    >>> pending = ckpt.save_async({"w": jnp.ones(3)}, None, "memory://doc-async")
    >>> pending.result().step
    0
    """
    job = join(barrier_timeout)
    try:
        with job.refusing("begin"):
            options = _check(step, metrics, overwrite, codec, max_host_bytes, reuse)
            _check_pending(max_pending)
            _refuse_swapped(state, path)
            run = locate(path, store_options)
            refuse_memory(run, job)
            options = _with_mirror(options, run, job, mirror, keep_local, store_options)
            snapshot = describe_tree(state, mesh, job)
            wait_for_room(run.url, max_pending - 1)
            held = _hold(job, snapshot, options)
            if held is None:
                wait_for_room(run.url, 0)
    except BaseException:
        leave(job)
        raise
    if held is None:
        return _save_now(job, run, snapshot, options)
    options = replace(options, in_background=True)
    return submit(run.url, partial(_save_and_leave, job, run, held, options))


def _hold(job: Job, snapshot: Snapshot, options: Options) -> Snapshot | None:
    """Return the snapshot with copies of what is written; None if they do not fit."""
    limits = WriteLimits.within(options.max_host_bytes)
    plan = plan_known(snapshot, job, limits=limits)
    budget = options.max_host_bytes
    if budget is None or plan.nbytes <= budget // 2:
        return hold_snapshot(snapshot, plan)
    warnings.warn(
        f"save_async writes {plan.nbytes:,} bytes before it returns: half of "
        f"max_host_bytes={budget:,} does not hold a copy of them",
        stacklevel=3,
    )
    return None


def _save_now(
    job: Job, run: Store, snapshot: Snapshot, options: Options
) -> Future[Checkpoint]:
    done = Pending()
    try:
        done.set_result(_save_and_leave(job, run, snapshot, options))
    except CkptError as error:
        done.set_exception(error)
        note_failure(run.url, done)
    return done


def _save_and_leave(
    job: Job, run: Store, snapshot: Snapshot, options: Options
) -> Checkpoint:
    try:
        return save_here(job, run, snapshot, options)
    finally:
        leave(job)
        give_back(snapshot.memory)


def _refuse_swapped(state: Any, path: PathLike | None) -> None:
    """Refuse save(path, state), which would save the text of the path."""
    if path is None and isinstance(state, (str, os.PathLike)):
        raise TypeError(
            f"expected save(state, mesh, path), found {state!r:.80} as state and no "
            "path: pass the tree first"
        )


def _check(
    step: int | None,
    metrics: Mapping[str, Any] | None,
    overwrite: bool,
    codec: str | None,
    max_host_bytes: int | None,
    reuse: bool,
) -> Options:
    if step is not None:
        step = check_step(step)
    if overwrite and step is None:
        raise ValueError("expected step= with overwrite=True, found none")
    if codec not in layouts.CODECS:
        raise ValueError(
            f"expected codec to be one of {layouts.CODECS}, found {codec!r}"
        )
    check_budget(max_host_bytes)
    return Options(
        step,
        plain_metrics(metrics or {}),
        overwrite,
        codec,
        max_host_bytes,
        reuse=bool(reuse),
    )


def _with_mirror(
    options: Options,
    run: Store,
    job: Job,
    mirror: PathLike | None,
    keep_local: int,
    store_options: GivenOptions | None,
) -> Options:
    if mirror is None:
        return options
    check_keep(keep_local)
    far = locate(mirror, store_options)
    refuse_same_place(run, far)
    refuse_memory(far, job)
    return replace(options, mirror=far, beside=far, keep_local=keep_local)


def _check_pending(most: int) -> None:
    if most < 1:
        raise ValueError(f"expected max_pending of at least 1, found {most}")
