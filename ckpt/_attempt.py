"""One attempt to save a step: begin, write, prove, commit, each agreed by the job."""

from __future__ import annotations

import contextlib
import secrets
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import layouts
from layouts import CommitRecord, Manifest, PartRef, WriteLimits

from ._catalog import (
    Opened,
    check_step,
    committed_steps,
    is_checkpoint,
    open_step,
    read_record,
)
from ._checkpoint import Checkpoint
from ._commit import commit_record, is_committed, remove_attempt
from ._errors import (
    BarrierTimeout,
    CkptError,
    CommitUnknown,
    LimitExceeded,
    NotFound,
    StepExists,
    StoreError,
    Unsupported,
)
from ._job import Job, Post
from ._notes import (
    Attempt,
    Awaited,
    find_awaited,
    forget_attempt,
    identify,
    note_attempt,
    note_awaited,
)
from ._snapshot import (
    Snapshot,
    complete,
    describe_equal,
    differing_leaves,
    plan_save,
    post_own,
)
from ._source import Source
from ._store import Store
from ._written import Options, Written, prove_parts, write_manifest, write_share

_SHARED_SECONDS = 10.0
"""How long a process waits to see what process 0 wrote: NFS may show it late."""

_ROUNDS = ("begin", "differ", "written", "commit")

_SETTLE_SECONDS = 10.0
"""How long process 0 waits, after a failure, for the others to stop writing."""


@dataclass(slots=True)
class _Begun:
    """What process 0 knows of the attempt while it is made."""

    attempt: Attempt | None = None
    replaced: tuple[CommitRecord, bytes] | None = None
    replaces: tuple[str, ...] = ()
    opened: Opened | None = None


def save_snapshot(
    job: Job,
    run: Store,
    snapshot: Snapshot,
    options: Options,
    *,
    clock: Callable[[], float] = time.time,
) -> Checkpoint:
    """Save what was described, together with the other processes of the job.

    When it raises anything but CommitUnknown, readers see the run as it was before.
    """
    begun = _Begun()
    try:
        answer = _begin(job, run, snapshot, options, begun, clock)
        attempt = Attempt(answer["step"], answer["commit"], answer["began"])
        structure, sources = complete(snapshot, answer["own"], job)
        draft = Manifest(
            attempt.step,
            attempt.commit,
            structure,
            (),
            (),
            options.codec,
            options.metrics,
            {"began": attempt.began},
        )
        _write(job, run, draft, sources, options, begun)
        _commit(job, run, attempt, options, begun)
    except CommitUnknown:
        raise
    except BaseException as error:
        # Whatever it was, in a round or between them: the others need not wait for us.
        job.withdraw(_ROUNDS, error)
        if job.process == 0 and begun.attempt:
            _give_up(job, run, begun.attempt, error)
        if isinstance(error, layouts.LayoutError):
            raise _as_refusal(error, run) from error
        raise
    if begun.opened is not None:
        return Checkpoint(begun.opened)
    return Checkpoint(_open_committed(run, attempt))


def _as_refusal(error: layouts.LayoutError, run: Store) -> CkptError:
    where = f"what would be a step of {run.url}"
    if isinstance(error, layouts.TooLarge):
        return LimitExceeded(f"{error} - in {where}")
    return Unsupported(f"{error} - in {where}")


def _begin(
    job: Job,
    run: Store,
    snapshot: Snapshot,
    options: Options,
    begun: _Begun,
    clock: Callable[[], float],
) -> Post:
    """Agree on the step and the attempt's name; process 0 notes it."""
    several = job.count > 1
    equal = describe_equal(snapshot) if several else {}

    def work() -> Post:
        return {
            "call": _describe_call(run, options),
            "leaves": layouts.digest(repr(equal).encode()) if several else "",
            "own": post_own(snapshot) if several else [[]],
        }

    def decide(posts: list[Post]) -> Post:
        if any(post["leaves"] != posts[0]["leaves"] for post in posts):
            return {"differ": True}
        attempt = _note(run, options, begun, clock())
        return {
            "step": attempt.step,
            "commit": attempt.commit,
            "began": attempt.began,
            "own": [post["own"] for post in posts],
        }

    answer = job.begin(work, decide=decide)
    if "differ" in answer:
        job.agree("differ", lambda: dict(equal), decide=_refuse_differing)
    return answer


def _describe_call(run: Store, options: Options) -> str:
    return (
        f"save(step={options.step}, overwrite={options.overwrite}, "
        f"codec={options.codec}, max_host_bytes={options.max_host_bytes}"
        f"{', mirror=' + options.mirror.url if options.mirror else ''}) to {run.url}"
    )


def _refuse_differing(posts: list[Post]) -> None:
    lines = "\n  ".join(differing_leaves(posts))
    raise Unsupported(
        "expected the same tree on every process, found leaves that differ:\n  "
        f"{lines}\nmake what is on the host equal (broadcast it from one process), or "
        "wrap it in ckpt.PerProcess"
    )


def _note(run: Store, options: Options, begun: _Begun, began: float) -> Attempt:
    if is_checkpoint(run):
        raise ValueError(
            f"expected the path of a run, found a checkpoint - at {run.url}: "
            "save takes the run's path (the folder that holds steps/)"
        )
    step = options.step
    beside = options.beside
    if beside is None:
        known: list[int] = []
    else:
        known = _steps_beside(beside.hurried(), run, needed=step is None)
    if step is None:
        step = check_step(max([*committed_steps(run), *known], default=-1) + 1)
    elif step in known and not options.overwrite:
        raise StepExists(
            f"expected step {step} to be free, found it committed in the run's other "
            f"place ({beside.url if beside else ''}): save another step, or pass "
            "overwrite=True"
        )
    elif step in known and beside is not None:
        with contextlib.suppress(CkptError):
            begun.replaces = (read_record(beside.hurried(), step)[0].commit,)
    begun.replaced = _replaced(run, step, overwrite=options.overwrite)
    attempt = Attempt(step, secrets.token_hex(8), began)
    run.make_folders(["", "steps"])
    note_attempt(run, attempt)
    begun.attempt = attempt
    return attempt


def _steps_beside(beside: Store, run: Store, *, needed: bool) -> list[int]:
    """Return the steps that the other place of a run has; none if it is silent.

    To choose a step they are `needed` where this place has none: it may be a new disk.
    """
    try:
        return committed_steps(beside)
    except StoreError as error:
        if needed and not committed_steps(run):
            raise
        warnings.warn(
            f"expected to see the steps of {beside.url}, found {error} - saved without",
            stacklevel=2,
        )
        return []


def _replaced(
    run: Store, step: int, *, overwrite: bool
) -> tuple[CommitRecord, bytes] | None:
    """Return the record an overwrite replaces; refuse to replace without it."""
    if not run.has(layouts.record_name(step)):
        return None
    if not overwrite:
        raise StepExists(
            f"expected step {step} to be free, found it committed - in {run.url}: "
            "save another step, or pass overwrite=True"
        )
    with contextlib.suppress(NotFound):
        return read_record(run, step)
    return None


def _write(
    job: Job,
    run: Store,
    draft: Manifest,
    sources: Sequence[Source],
    options: Options,
    begun: _Begun,
) -> None:
    """Write this process's cells and part; process 0 then proves and describes all."""
    store = run.child(layouts.attempt_directory(draft.step, draft.commit))
    limits = WriteLimits.within(options.max_host_bytes)
    written: list[Written] = []

    def work() -> Post:
        if job.process:
            _see_note(run, draft)
        plan = plan_save(sources, job.process, limits=limits)
        mine = write_share(store, draft, plan, sources, options)
        written.append(mine)
        return {"bytes": len(mine.data), "sha256": layouts.digest(mine.data)}

    def decide(posts: list[Post]) -> None:
        mine = written[0]
        refs = tuple(PartRef(post["bytes"], post["sha256"]) for post in posts)
        manifest = replace(mine.manifest, parts=refs)
        if job.count > 1:
            prove_parts(store, manifest, mine.data)
        begun.opened = write_manifest(store, run, manifest, mine.part)

    job.agree("written", work, decide=decide)


def _see_note(run: Store, draft: Manifest) -> None:
    """Refuse a folder in which this process does not see what process 0 wrote."""
    name = layouts.attempt_name(draft.step, draft.commit)
    deadline = time.monotonic() + _SHARED_SECONDS
    while not run.has(name):
        if time.monotonic() > deadline:
            raise Unsupported(
                "expected a folder that all processes share, found nothing of what "
                f"process 0 wrote ({name}) - in {run.url}: save to a shared file "
                "system or an object store"
            )
        time.sleep(0.05)


def _commit(
    job: Job, run: Store, attempt: Attempt, options: Options, begun: _Begun
) -> None:
    """Make the step exist, once all processes say that they are still there.

    One that gave up waiting says nothing here, so that what it said - that nothing was
    committed - stays true.
    """

    def decide(_: list[Post]) -> None:
        replaced = begun.replaced
        if replaced:
            # From the commit on nothing else names the old data.
            old = replaced[0].commit
            note_attempt(run, Attempt(attempt.step, old, time.time()))
        if options.mirror:
            mirror = identify(options.mirror)
            may = begun.replaces
            if replaced:
                # A drain may bring the near commit there before this one.
                may += (replaced[0].commit, *_replaced_before(run, replaced[0].commit))
            note_awaited(run, Awaited(attempt.step, attempt.commit, mirror, may))
        record = cast(CommitRecord, cast(Opened, begun.opened).record)
        commit_record(run, record, replaces=replaced[1] if replaced else None)

    try:
        job.agree("commit", dict[str, Any], decide=decide, unanswered=_SilenceError)
    except _SilenceError as error:
        _resolve_silence(run, attempt, error)
        return
    if job.process == 0:
        # The save is done and cannot fail any more; `prune` finds what stays behind.
        with contextlib.suppress(CkptError):
            forget_attempt(run, attempt.step, attempt.commit)
            if begun.replaced:
                remove_attempt(run, attempt.step, begun.replaced[0].commit)


def _replaced_before(run: Store, commit: str) -> tuple[str, ...]:
    """Return what a commit that is being replaced was to replace in the mirror."""
    found = [a.replaces for a in find_awaited(run) if a.commit == commit and not a.done]
    return found[0] if found else ()


class _SilenceError(Exception):
    """Process 0 may have committed the step, and does not say so."""


def _resolve_silence(run: Store, attempt: Attempt, error: Exception) -> None:
    """Find out what became of a commit that process 0 fell silent over."""
    with contextlib.suppress(Exception):
        if is_committed(run, attempt.step, attempt.commit):
            return
    raise CommitUnknown(
        f"expected to learn whether step {attempt.step} was committed, found that "
        f"process 0 does not say ({error}) - in {run.url}: look at steps() later"
    ) from error


def _open_committed(run: Store, attempt: Attempt) -> Opened:
    try:
        opened = open_step(run, attempt.step)
    except CkptError as error:
        raise CommitUnknown(
            f"expected to open step {attempt.step}, which process 0 has committed, "
            f"found that this process cannot ({error}) - in {run.url}"
        ) from error
    if opened.manifest.commit != attempt.commit:
        raise CommitUnknown(
            f"expected commit {attempt.commit} of step {attempt.step}, which process 0 "
            f"has committed, found it replaced already - in {run.url}"
        )
    return opened


def _give_up(job: Job, run: Store, attempt: Attempt, error: BaseException) -> None:
    """Remove what an attempt wrote, unless it is committed or still being written.

    An interrupt may come when the commit has happened: then the data stays. So it does
    while another process may write to it: `prune` finds it by its note.
    """
    if run.is_remote and getattr(error, "outcome", "") == "unknown":
        # What was sent may arrive yet: without a note nobody would find it.
        return
    waits = isinstance(error, Exception) and not isinstance(error, BarrierTimeout)
    if not job.has_ended("written", within=_SETTLE_SECONDS if waits else 0.0):
        return
    with contextlib.suppress(Exception):
        if not is_committed(run, attempt.step, attempt.commit):
            remove_attempt(run, attempt.step, attempt.commit)
