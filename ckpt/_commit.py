"""The commit: an attempt is noted, written, and then one small record is created.

Every attempt directory is named by a record or by a note in `steps/`, so whatever a
crash leaves behind is found without listing data:

1. create `steps/<step>-<commit>.attempt`; only then is the directory written;
2. create `steps/<step>.json`, create-only (or replace the record that was read);
3. remove the note.

Removing a step runs the other way: note, record, data, note.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import layouts
from layouts import CommitRecord

from ._catalog import RECORD_BYTES, read_record
from ._errors import (
    CommitUnknown,
    Damaged,
    LimitExceeded,
    NotFound,
    StepExists,
    StoreError,
    Untrusted,
)
from ._store import Store

_NOTE_BYTES = 4096
_NOTE = "ckpt-attempt"
_AWAITED = "ckpt-mirror"
_UNFINISHED = ".tmp"
"""What a local store's `create` appends to a name until the object is whole."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A directory that is, was or will be written, and when that began."""

    step: int
    commit: str
    began: float

    @property
    def directory(self) -> str:
        """The attempt's directory, relative to the run."""
        return layouts.attempt_directory(self.step, self.commit)


def note_attempt(run: Store, attempt: Attempt) -> None:
    """Say, durably, that the attempt's directory may hold something."""
    name = layouts.attempt_name(attempt.step, attempt.commit)
    run.create(name, layouts.frame(_NOTE, {"began": attempt.began}))


def renew_attempt(run: Store, attempt: Attempt) -> None:
    """Note an attempt as begun now, whether it is new or goes on: it is no orphan."""
    name = layouts.attempt_name(attempt.step, attempt.commit)
    data = layouts.frame(_NOTE, {"began": attempt.began})
    if not run.create(name, data):
        with contextlib.suppress(NotFound, LimitExceeded):
            run.replace(name, data, expected=run.read(name, limit=_NOTE_BYTES))


def forget_attempt(run: Store, step: int, commit: str) -> None:
    """Remove an attempt's note."""
    run.remove(layouts.attempt_name(step, commit))


def find_notes(run: Store) -> list[Attempt]:
    """Return the attempts that are noted, in order of step.

    A note whose text is torn counts as just begun: it may be a writer's.
    """
    found: dict[tuple[int, str], Attempt] = {}
    for name in run.list("steps"):
        parsed = layouts.attempt_of_name(name.removesuffix(_UNFINISHED))
        if parsed is not None:
            found.setdefault(parsed, Attempt(*parsed, _began(run, name)))
    return [found[key] for key in sorted(found)]


def find_attempts(run: Store) -> list[Attempt]:
    """Return the attempts that are noted and not committed, in order of step."""
    return [a for a in find_notes(run) if not is_committed(run, a.step, a.commit)]


@dataclass(frozen=True, slots=True)
class Awaited:
    """A commit that a mirror is to have, in the place of another one or not."""

    step: int
    commit: str
    overwrite: bool


def note_awaited(run: Store, awaited: Awaited) -> None:
    """Say, durably, that a commit is to be copied to the run's mirror."""
    name = layouts.mirror_name(awaited.step, awaited.commit)
    run.create(name, layouts.frame(_AWAITED, {"overwrite": awaited.overwrite}))


def forget_awaited(run: Store, step: int, commit: str) -> None:
    """Say that the mirror has a commit, or that it need not have it."""
    run.remove(layouts.mirror_name(step, commit))


def find_awaited(run: Store) -> list[Awaited]:
    """Return the commits that are noted for a mirror, in order of step."""
    found = [(layouts.mirror_of_name(name), name) for name in run.list("steps")]
    return [
        Awaited(*parsed, _replaces(run, name))
        for parsed, name in sorted((p, n) for p, n in found if p is not None)
    ]


def _replaces(run: Store, name: str) -> bool:
    """Tell what a note says of `overwrite`; no when it is torn."""
    with contextlib.suppress(NotFound, LimitExceeded, KeyError, TypeError, ValueError):
        body = layouts.unframe(_AWAITED, run.read(name, limit=_NOTE_BYTES))
        return body["overwrite"] is True
    return False


def remove_stale_names(run: Store, attempt: Attempt) -> None:
    """Remove what a writer killed just after its commit left beside the record."""
    note = layouts.attempt_name(attempt.step, attempt.commit)
    run.remove(note + _UNFINISHED)
    run.remove(note)


def remove_unfinished_records(run: Store) -> None:
    """Remove records that were never created; a live writer's is behind a lock."""
    for name in run.list("steps"):
        whole = name.removesuffix(_UNFINISHED)
        if whole != name and layouts.step_of_record(whole) is not None:
            run.remove(name)


def is_committed(run: Store, step: int, commit: str) -> bool:
    """Tell whether the step's record names this commit."""
    try:
        return read_record(run, step)[0].commit == commit
    except NotFound:
        return False


def _began(run: Store, name: str) -> float:
    senseless = (
        NotFound,
        LimitExceeded,
        KeyError,
        OverflowError,
        TypeError,
        ValueError,
    )
    with contextlib.suppress(*senseless):
        return float(layouts.unframe(_NOTE, run.read(name, limit=_NOTE_BYTES))["began"])
    return time.time()


def commit_record(run: Store, record: CommitRecord, *, replaces: bytes | None) -> None:
    """Make the step exist: create its record, or replace the one that was read.

    An error of that one write is resolved by reading back; `CommitUnknown` when even
    that fails. `StepExists` when another writer was first.
    """
    name, data = layouts.record_name(record.step), record.encode()
    try:
        if replaces is None:
            done = run.create(name, data)
        else:
            done = run.replace(name, data, expected=replaces)
    except StoreError as error:
        done = _resolve(run, record, error)
    if not done and not is_committed(run, record.step, record.commit):
        raise StepExists(
            f"expected step {record.step} to be free, found it committed by another "
            f"writer - in {run.url}: save another step, or pass overwrite=True"
        )


def _resolve(run: Store, record: CommitRecord, error: StoreError) -> bool:
    """Find out whether a commit that raised took place all the same."""
    try:
        committed = is_committed(run, record.step, record.commit)
    except Exception as unreadable:
        raise CommitUnknown(
            f"expected to learn whether step {record.step} (commit {record.commit}) "
            f"was committed, found the record unreadable - in {run.url}: "
            "look at steps() once the store answers again"
        ) from unreadable
    if not committed and error.outcome == "unknown":
        # It may still come: the data stays until `prune` finds it old.
        raise CommitUnknown(
            f"expected step {record.step} (commit {record.commit}) to be committed, "
            f"found it not yet so after an error ({error}) - in {run.url}: look at "
            "steps() once the store answers again"
        ) from error
    if not committed:
        raise error
    if error.outcome == "unsynced":
        # Once a sync has failed no later one can be believed.
        raise CommitUnknown(
            f"expected step {record.step} (commit {record.commit}) to be durable, "
            "found it committed, perhaps only until a power cut - in "
            f"{run.url}: check the disk, then save another step"
        ) from error
    return True


def remove_attempt(run: Store, step: int, commit: str) -> int:
    """Remove an uncommitted attempt's directory and note; return the bytes freed."""
    freed = run.remove_tree(layouts.attempt_directory(step, commit))
    run.remove(layouts.record_name(step) + _UNFINISHED)
    forget_awaited(run, step, commit)
    note = layouts.attempt_name(step, commit)
    run.remove(note + _UNFINISHED)
    run.remove(note)
    return freed


def remove_step(run: Store, step: int) -> int:
    """Remove a committed step, its record first; return the bytes freed.

    A step that was removed or overwritten meanwhile is not this call's to remove: then
    NotFound, or the newer commit stays.
    """
    try:
        record, data = read_record(run, step)
    except (Damaged, Untrusted):
        return _remove_unreadable(run, step)
    note_attempt(run, Attempt(step, record.commit, 0.0))
    run.remove(layouts.record_name(step), expected=data)
    return remove_attempt(run, step, record.commit)


def _remove_unreadable(run: Store, step: int) -> int:
    """Remove a step whose record names no commit, and its directories without a note.

    Those with a note are writers' or `prune`'s.
    """
    name = layouts.record_name(step)
    data = run.read(name, limit=RECORD_BYTES)
    noted = {(note.step, note.commit) for note in find_notes(run)}
    folders = {name.partition("/")[0] for name in run.list("")}
    found = [layouts.attempt_of_directory(folder) for folder in sorted(folders)]
    mine = [a for a in found if a is not None and a[0] == step and a not in noted]
    for _, commit in mine:
        note_attempt(run, Attempt(step, commit, 0.0))
    run.remove(name, expected=data)
    return sum(remove_attempt(run, step, commit) for _, commit in mine)
