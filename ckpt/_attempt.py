"""One attempt to save a step: begin, write, prove, commit, each agreed by the job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import layouts
from layouts import CommitRecord, Manifest, PartRef, Reused, WriteLimits

from ._begin import Begun, begin_attempt
from ._catalog import Opened, open_step
from ._checkpoint import Checkpoint
from ._commit import commit_record, is_committed, remove_attempt
from ._errors import (
    BarrierTimeout,
    CkptError,
    CommitUnknown,
    LimitExceeded,
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
from ._reuse import find_candidates, list_places, open_base, refuse_absent
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
from ._uses import forget_use, refuse_unnoted
from ._written import (
    Options,
    prove_parts,
    write_manifest,
    write_part,
    write_share,
)

_SHARED_SECONDS = 10.0
"""How long a process waits to see what process 0 wrote: NFS may show it late."""

_ROUNDS = ("begin", "differ", "written", "commit")

_SETTLE_SECONDS = 10.0
"""How long process 0 waits, after a failure, for the others to stop writing."""


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
    begun = Begun()
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
            reused=Reused() if options.reuse else None,
        )
        if options.reuse and job.process:
            begun.base = open_base(run, answer["base"])
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
    begun: Begun,
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
        attempt = begin_attempt(run, options, begun, clock())
        return {
            "step": attempt.step,
            "commit": attempt.commit,
            "began": attempt.began,
            "own": [post["own"] for post in posts],
            "base": begun.base.post() if begun.base else None,
        }

    answer = job.begin(work, decide=decide)
    if "differ" in answer:
        job.agree("differ", lambda: dict(equal), decide=_refuse_differing)
    return answer


def _describe_call(run: Store, options: Options) -> str:
    return (
        f"save(step={options.step}, overwrite={options.overwrite}, "
        f"codec={options.codec}, max_host_bytes={options.max_host_bytes}"
        f"{', reuse=True' if options.reuse else ''}"
        f"{', mirror=' + options.mirror.url if options.mirror else ''}) to {run.url}"
    )


def _refuse_differing(posts: list[Post]) -> None:
    lines = "\n  ".join(differing_leaves(posts))
    raise Unsupported(
        "expected the same tree on every process, found leaves that differ:\n  "
        f"{lines}\nmake what is on the host equal (broadcast it from one process), or "
        "wrap it in ckpt.PerProcess"
    )


def _write(
    job: Job,
    run: Store,
    draft: Manifest,
    sources: Sequence[Source],
    options: Options,
    begun: Begun,
) -> None:
    """Write this process's cells and part; process 0 then proves and describes all."""
    store = run.child(draft.directory)
    limits = WriteLimits.within(options.max_host_bytes)

    def describe(manifest: Manifest) -> Post:
        begun.part, begun.data = write_part(store, begun.share, manifest)
        return {"bytes": len(begun.data), "sha256": layouts.digest(begun.data)}

    def work() -> Post:
        if job.process:
            _see_note(run, draft)
        plan = plan_save(sources, job.process, limits=limits)
        candidates = None
        if options.reuse:
            candidates = find_candidates(run, begun.base, plan, codec=draft.codec)
        share = write_share(store, draft, plan, sources, options, candidates)
        begun.share = share
        if not options.reuse:
            return describe(share.manifest)
        # Which arrays are not wholly there, process 0 learns from all.
        said = describe(share.manifest) if job.process else {}
        return said | {"reused": share.part.reused.to_json()}

    def decide(posts: list[Post]) -> None:
        manifest = begun.share.manifest
        if options.reuse:
            found = [
                Reused(**{k: tuple(v) for k, v in p["reused"].items()}) for p in posts
            ]
            manifest = replace(manifest, reused=layouts.merge_reused(found))
            posts[0] |= describe(manifest)
        refs = tuple(PartRef(post["bytes"], post["sha256"]) for post in posts)
        manifest = replace(manifest, parts=refs)
        if job.count > 1:
            prove_parts(store, manifest, begun.data)
        begun.opened = write_manifest(store, run, manifest, begun.part)

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
    job: Job, run: Store, attempt: Attempt, options: Options, begun: Begun
) -> None:
    """Make the step exist, once all processes say that they are still there.

    One that gave up waiting says nothing here, so that what it said - that nothing was
    committed - stays true. Each has seen that what it reuses is still there.
    """
    share = begun.share
    places = list_places(share.manifest, share.part)

    def work() -> Post:
        refuse_absent(run, places)
        return {}

    def decide(_: list[Post]) -> None:
        opened = cast(Opened, begun.opened)
        if _needs_others(opened):
            refuse_unnoted(run, attempt)
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
        record = cast(CommitRecord, opened.record)
        commit_record(run, record, replaces=replaced[1] if replaced else None)

    try:
        job.agree("commit", work, decide=decide, unanswered=_SilenceError)
    except _SilenceError as error:
        _resolve_silence(run, attempt, error)
        return
    if job.process == 0:
        # The save is done and cannot fail any more; `prune` finds what stays behind.
        with contextlib.suppress(CkptError):
            forget_attempt(run, attempt.step, attempt.commit)
            if options.reuse and not _needs_others(cast(Opened, begun.opened)):
                forget_use(run, attempt.step, attempt.commit)
            if begun.replaced:
                remove_attempt(run, attempt.step, begun.replaced[0].commit)


def _needs_others(opened: Opened) -> bool:
    reused = opened.manifest.reused
    return reused is not None and bool(reused.directories)


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
