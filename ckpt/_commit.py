"""The commit: an attempt is noted, written, and then one small record is created.

Every attempt directory is named by a record or by a note in `steps/`, so whatever a
crash leaves behind is found without listing data:

1. create `steps/<step>-<commit>.attempt`; only then is the directory written;
2. create `steps/<step>.json`, create-only (or replace the record that was read);
3. remove the note.

Removing a step runs the other way: note, record, data, note.
"""

from __future__ import annotations

from collections.abc import Iterable

import layouts
from layouts import CommitRecord

from ._catalog import RECORD_LIMIT, read_record
from ._errors import (
    CommitUnknown,
    Damaged,
    NotFound,
    StepExists,
    StoreError,
    Untrusted,
)
from ._notes import (
    UNFINISHED,
    Attempt,
    doom_note,
    find_notes,
    forget_awaited,
    note_removal,
)
from ._store import Store
from ._uses import find_needed, forget_use
from ._write import run_all


def find_attempts(run: Store) -> list[Attempt]:
    """Return the attempts that are noted and not committed, in order of step."""
    return [a for a in find_notes(run) if not is_committed(run, a.step, a.commit)]


def remove_stale_names(run: Store, attempt: Attempt) -> None:
    """Remove what a writer killed just after its commit left beside the record."""
    note = layouts.attempt_name(attempt.step, attempt.commit)
    run.remove(note + UNFINISHED)
    run.remove(note)


def remove_unfinished_records(run: Store) -> None:
    """Remove records that were never created; a live writer's is behind a lock."""
    for name in run.list("steps"):
        whole = name.removesuffix(UNFINISHED)
        if whole != name and layouts.step_of_record(whole) is not None:
            run.remove(name)


def is_committed(run: Store, step: int, commit: str) -> bool:
    """Tell whether the step's record names this commit."""
    try:
        return read_record(run, step)[0].commit == commit
    except NotFound:
        return False


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
    """Remove an uncommitted attempt's directory and note; return the bytes freed.

    Objects that other steps need stay, and the note with them.
    """
    directory = layouts.attempt_directory(step, commit)
    needed = find_needed(run, directory)
    if needed == frozenset():
        freed = run.remove_tree(directory)
    else:
        freed = _remove_others(run, step, commit, needed)
    run.remove(layouts.record_name(step) + UNFINISHED)
    forget_awaited(run, step, commit)
    forget_use(run, step, commit)
    note = layouts.attempt_name(step, commit)
    run.remove(note + UNFINISHED)
    if needed == frozenset():
        run.remove(note)
    return freed


def _remove_others(
    run: Store, step: int, commit: str, needed: frozenset[str] | None
) -> int:
    """Remove all objects but those needed, the manifest first; return bytes freed."""
    try:
        doom_note(run, step, commit)
    except StoreError as error:
        if error.outcome != "full":
            raise
    freed = 0
    if needed is not None:
        freed = _remove_but(run.child(layouts.attempt_directory(step, commit)), needed)
    doom_note(run, step, commit)
    return freed


def _remove_but(store: Store, needed: frozenset[str]) -> int:
    names = [name for name in store.list("") if name not in needed]
    names.sort(key=lambda name: name != "manifest.json")

    def work(name: str) -> int:
        size = store.size(name) or 0
        return size if store.remove(name) else 0

    first = [work(name) for name in names[:1]]
    return sum(first + run_all(work, names[1:], parallel=store.parallel))


def remove_step(run: Store, step: int, *, commit: str | None = None) -> int:
    """Remove a committed step, its record first; return the bytes freed."""
    return remove_gone(run, unrecord_step(run, step, commit=commit))


def remove_gone(run: Store, gone: Iterable[tuple[int, str]]) -> int:
    """Remove the (step, commit) whose record is gone; return the bytes freed."""
    return sum(remove_attempt(run, step, commit) for step, commit in gone)


def unrecord_step(
    run: Store, step: int, *, commit: str | None = None
) -> list[tuple[int, str]]:
    """Remove the record of a step; return (step, commit) of what `remove_gone` removes.

    A step that was removed or overwritten meanwhile (with `commit`: is another) is not
    this call's to remove: then NotFound, or the newer commit stays.
    """
    try:
        record, data = read_record(run, step)
    except (Damaged, Untrusted):
        if commit is not None:
            raise
        return _unrecord_unreadable(run, step)
    if commit is not None and record.commit != commit:
        raise NotFound(
            f"expected commit {commit} of step {step}, found {record.commit} - in "
            f"{run.url}: it was overwritten"
        )
    note_removal(run, step, record.commit)
    run.remove(layouts.record_name(step), expected=data)
    return [(step, record.commit)]


def _unrecord_unreadable(run: Store, step: int) -> list[tuple[int, str]]:
    """Remove the record that names no commit; return the directories without a note.

    Those with a note are writers' or `prune`'s.
    """
    name = layouts.record_name(step)
    data = run.read(name, limit=RECORD_LIMIT)
    noted = {(note.step, note.commit) for note in find_notes(run)}
    folders = {name.partition("/")[0] for name in run.list("")}
    found = [layouts.attempt_of_directory(folder) for folder in sorted(folders)]
    mine = [a for a in found if a is not None and a[0] == step and a not in noted]
    for _, commit in mine:
        note_removal(run, step, commit)
    run.remove(name, expected=data)
    return mine
