"""Notes of what a step may need of other directories, and what follows from them.

`steps/<step>-<commit>.reuse` is made before a save looks at what it may reuse, and lies
there for as long as the step does. So whoever removes a directory learns from a listing
who needs objects of it: a save makes its note and then looks whether the record of the
step it reuses is there; a removal takes the record away and then looks at the notes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import layouts

from ._catalog import Opened, open_step, read_record
from ._errors import CkptError, LimitExceeded, NotFound, StoreError
from ._notes import UNFINISHED, Attempt, is_live
from ._store import Store

_REUSE = "ckpt-reuse"
_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Use:
    """What a commit may need: directories, or any (None: the note is torn)."""

    step: int
    commit: str
    directories: frozenset[str] | None

    def may_need(self, directory: str) -> bool:
        """Tell whether the commit may need objects of a directory."""
        return self.directories is None or directory in self.directories


def note_use(run: Store, attempt: Attempt, directories: Iterable[str]) -> None:
    """Say, durably, which directories an attempt, and the step it makes, may need."""
    body = {"commit": attempt.commit, "directories": sorted(directories)}
    name = layouts.reuse_name(attempt.step, attempt.commit)
    run.create(name, layouts.frame(_REUSE, body))


def has_use(run: Store, step: int, commit: str) -> bool:
    """Tell whether a commit may need other directories: that of a copy does not."""
    return run.has(layouts.reuse_name(step, commit))


def refuse_unnoted(run: Store, attempt: Attempt) -> None:
    """Refuse to commit what nobody would keep objects for any more."""
    # A prune that has doomed the attempt removes what it needs before its notes.
    if not (
        is_live(run, attempt.step, attempt.commit)
        and has_use(run, attempt.step, attempt.commit)
    ):
        raise StoreError(
            f"expected the notes of what step {attempt.step} reuses, found them gone - "
            f"in {run.url}: nothing was committed; let prune(orphan_age=) leave live "
            "saves alone, and save again"
        )


def forget_use(run: Store, step: int, commit: str) -> None:
    """Remove the note: the step is gone, or has all that it needs."""
    name = layouts.reuse_name(step, commit)
    run.remove(name + UNFINISHED)
    run.remove(name)


def find_uses(run: Store) -> list[Use]:
    """Return what is noted, in order of step."""
    found: list[Use] = []
    for name in run.list("steps"):
        parsed = layouts.reuse_of_name(name)
        if parsed is not None:
            with contextlib.suppress(NotFound):
                found.append(Use(*parsed, _read_directories(run, name)))
    return sorted(found, key=lambda use: (use.step, use.commit))


def _read_directories(run: Store, name: str) -> frozenset[str] | None:
    with contextlib.suppress(LimitExceeded, KeyError, TypeError, ValueError):
        data = run.read(name, limit=_BYTES)
        found: Any = layouts.unframe(_REUSE, data)["directories"]
        if isinstance(found, list):
            return frozenset(map(str, cast("list[Any]", found)))
    return None


def find_needed(run: Store, directory: str) -> frozenset[str] | None:
    """Return which objects of a directory others need; None: it may be any.

    The directory must not be a committed step's any more. It is looked again until no
    note is new: one that was made meanwhile may stand in for one that is gone.
    """
    needed: set[str] = set()
    held: set[str] | None = None
    seen: set[tuple[int, str]] = set()
    while True:
        uses = [u for u in find_uses(run) if u.may_need(directory)]
        new = [use for use in uses if (use.step, use.commit) not in seen]
        if not new:
            return frozenset(needed)
        if held is None:
            held = {n for n in run.child(directory).list("") if "/c/" in n}
        for use in new:
            seen.add((use.step, use.commit))
            found = _needed_by(run, use, directory)
            if found is None:
                return None
            needed |= found
            if held <= needed:
                # More cannot be needed: the other notes need not be looked at.
                return frozenset(needed)


def _needed_by(run: Store, use: Use, directory: str) -> set[str] | None:
    try:
        opened = _open_user(run, use)
        if opened is None:
            return None
        reused = opened.manifest.reused
        if reused is None or directory not in reused.directories:
            return set()
        return {
            layouts.object_name(opened.manifest, found.leaf, found.object)
            for process in range(opened.manifest.processes)
            for found in opened.part(process).objects
            if found.source == directory
        }
    except NotFound:
        return set()
    except StoreError:
        raise
    except CkptError:
        # It is damaged, and may yet be mended from a copy.
        return None


def _open_user(run: Store, use: Use) -> Opened | None:
    """Open the step of a note; None while it is being saved, NotFound when it is gone.

    The attempt is looked at first: a save removes its note after it has committed.
    """
    if is_live(run, use.step, use.commit):
        return None
    if read_record(run, use.step)[0].commit != use.commit:
        raise NotFound(
            f"expected commit {use.commit} of step {use.step}, found another"
        )
    return open_step(run, use.step)


def find_used_directories(run: Store) -> frozenset[str]:
    """Return the directories that steps need objects of, or saves may need."""
    found: set[str] = set()
    for use in find_uses(run):
        noted = use.directories or frozenset[str]()
        try:
            opened = _open_user(run, use)
        except NotFound:
            continue
        except StoreError:
            raise
        except CkptError:
            opened = None
        if opened is None:
            found |= noted
        elif opened.manifest.reused is not None:
            found |= noted.intersection(opened.manifest.reused.directories)
    return frozenset(found)
