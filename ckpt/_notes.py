"""Notes in `steps/`: which directories may hold an attempt, what a mirror is owed.

A note is changed only from what was read (`replace`), so of a writer that goes on and
of a `prune` that removes what is left, one learns that the other was first.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import layouts

from ._errors import LimitExceeded, NotFound, StoreError, Unsupported, Untrusted
from ._store import Store

_BYTES = 4096
_TRIES = 3
_ATTEMPT = "ckpt-attempt"
_MIRROR = "ckpt-mirror"
_DOOMED = 0.0
"""When an attempt began that is being removed."""

UNFINISHED = ".tmp"
"""What a local store's `create` appends to a name until the object is whole."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A directory that is, was or will be written, and when that began."""

    step: int
    commit: str
    began: float
    data: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def is_doomed(self) -> bool:
        """Whether the directory is being removed, or kept for other steps."""
        return self.began == _DOOMED

    @property
    def directory(self) -> str:
        """The attempt's directory, relative to the run."""
        return layouts.attempt_directory(self.step, self.commit)

    @property
    def name(self) -> str:
        """The note's name."""
        return layouts.attempt_name(self.step, self.commit)


def note_attempt(run: Store, attempt: Attempt) -> None:
    """Say, durably, that the attempt's directory may hold something."""
    run.create(attempt.name, layouts.frame(_ATTEMPT, {"began": attempt.began}))


def note_removal(run: Store, step: int, commit: str) -> None:
    """Say, durably, that a directory is being removed: nobody goes on with it."""
    note_attempt(run, Attempt(step, commit, _DOOMED))


def take_attempt(run: Store, attempt: Attempt) -> bytes:
    """Note an attempt, or take over one that was broken off; return the note.

    StoreError while the directory is being removed, or another takes it over, too.
    """
    for _ in range(_TRIES):
        data = _own_note(attempt.began)
        if run.create(attempt.name, data):
            return data
        # Gone again between the two: it was a prune's, say.
        with contextlib.suppress(NotFound):
            return _take_over(run, attempt, data)
    raise StoreError(
        f"expected to note step {attempt.step} (commit {attempt.commit}), found its "
        f"note coming and going - in {run.url}: repeat this"
    )


def _take_over(run: Store, attempt: Attempt, data: bytes) -> bytes:
    with run.hold(attempt.name) as free:
        if not free:
            raise StoreError(
                f"expected step {attempt.step} (commit {attempt.commit}) to be free, "
                f"found that another process copies it - in {run.url}: wait for it"
            )
        found = run.read(attempt.name, limit=_BYTES)
    if _parse_began(found) == _DOOMED:
        raise StoreError(
            f"expected step {attempt.step} (commit {attempt.commit}) to be writable, "
            f"found it being removed - in {run.url}: when that prune has ended (or run "
            "ckpt.prune again, if it was killed), repeat this; while other steps reuse "
            "its objects, it cannot be copied there"
        )
    return _swap_mine(run, attempt, found, data)


def keep_attempt(run: Store, attempt: Attempt, mine: bytes) -> bytes:
    """Renew the note that `take_attempt` returned; StoreError if it is not there."""
    return _swap_mine(run, attempt, mine, _own_note(time.time()))


def _own_note(began: float) -> bytes:
    return layouts.frame(_ATTEMPT, {"began": began, "by": secrets.token_hex(8)})


def _swap_mine(run: Store, attempt: Attempt, mine: bytes, data: bytes) -> bytes:
    if not _swap(run, attempt.name, data, expected=mine):
        raise StoreError(
            f"expected to go on writing step {attempt.step} (commit {attempt.commit}), "
            f"found that another process does, or removes it - in {run.url}: nothing "
            "was committed here; repeat this when the other has ended"
        )
    return data


def _swap(run: Store, name: str, data: bytes, *, expected: bytes) -> bool:
    try:
        return run.replace(name, data, expected=expected)
    except Unsupported:
        # A file system without locks: what is read and written here is not one step.
        if run.read(name, limit=_BYTES) != expected:
            return False
        run.remove(name)
        return run.create(name, data)


def doom_attempt(run: Store, attempt: Attempt) -> bool:
    """Say that an attempt is being removed; False when its writer has gone on."""
    if attempt.is_doomed:
        return True
    data = layouts.frame(_ATTEMPT, {"began": _DOOMED})
    if attempt.data is None:
        return run.create(attempt.name, data)
    with contextlib.suppress(NotFound):
        return _swap(run, attempt.name, data, expected=attempt.data)
    return False


def is_live(run: Store, step: int, commit: str) -> bool:
    """Tell whether an attempt is noted, and nobody removes it."""
    with contextlib.suppress(NotFound):
        data = run.read(layouts.attempt_name(step, commit), limit=_BYTES)
        return _parse_began(data) != _DOOMED
    return False


def doom_note(run: Store, step: int, commit: str) -> None:
    """Say that a directory is no attempt any more, whatever its note said."""
    name = layouts.attempt_name(step, commit)
    with contextlib.suppress(NotFound):
        data = run.read(name, limit=_BYTES)
        began = _parse_began(data)
        attempt = Attempt(step, commit, math.nan if began is None else began, data)
        doom_attempt(run, attempt)
        return
    note_removal(run, step, commit)


def forget_attempt(run: Store, step: int, commit: str) -> None:
    """Remove an attempt's note."""
    run.remove(layouts.attempt_name(step, commit))


def find_notes(run: Store) -> list[Attempt]:
    """Return the attempts that are noted, in order of step.

    A note whose text is torn counts as just begun: it may be a writer's.
    """
    found: dict[tuple[int, str], Attempt] = {}
    for name in run.list("steps"):
        whole = name.removesuffix(UNFINISHED)
        parsed = layouts.attempt_of_name(whole)
        if parsed is None or parsed in found:
            continue
        data = None
        with contextlib.suppress(NotFound, LimitExceeded):
            data = run.read(name, limit=_BYTES)
        began = _parse_began(data or b"")
        kept = data if whole == name else None
        found[parsed] = Attempt(*parsed, time.time() if began is None else began, kept)
    return [found[key] for key in sorted(found)]


def _parse_began(data: bytes) -> float | None:
    with contextlib.suppress(KeyError, OverflowError, TypeError, ValueError):
        began = float(layouts.unframe(_ATTEMPT, data)["began"])
        return began if math.isfinite(began) else None
    return None


@dataclass(frozen=True, slots=True)
class Awaited:
    """A commit that a mirror is to have (or has: `done`).

    `mirror` identifies it ("": the note is torn, and any may have it); `replaces` are
    the commits whose place this one may take there.
    """

    step: int
    commit: str
    mirror: str
    replaces: tuple[str, ...] = ()
    done: bool = False
    data: bytes = field(default=b"", repr=False, compare=False)

    @property
    def name(self) -> str:
        """The note's name."""
        return layouts.mirror_name(self.step, self.commit)


def identify(mirror: Store) -> str:
    """Return what stands for a mirror in notes: no URL is ever read from a file."""
    url = os.path.realpath(mirror.url) if os.path.isabs(mirror.url) else mirror.url
    return layouts.digest(url.encode())[:16]


def note_awaited(run: Store, awaited: Awaited) -> None:
    """Say, durably, that a commit is to be copied to the run's mirror."""
    run.create(awaited.name, _encode_awaited(awaited, done=False))


def finish_awaited(run: Store, awaited: Awaited) -> None:
    """Say that the mirror has a commit."""
    with contextlib.suppress(NotFound, Untrusted):
        data = _encode_awaited(awaited, done=True)
        _swap(run, awaited.name, data, expected=awaited.data)


def _encode_awaited(awaited: Awaited, *, done: bool) -> bytes:
    body = {"mirror": awaited.mirror, "replaces": list(awaited.replaces), "done": done}
    return layouts.frame(_MIRROR, body)


def forget_awaited(run: Store, step: int, commit: str) -> None:
    """Remove the note for a mirror: the commit is gone from here."""
    run.remove(layouts.mirror_name(step, commit))


def find_awaited(run: Store) -> list[Awaited]:
    """Return the commits that are noted for a mirror, in order of step."""
    return sorted(_parse_all(run), key=lambda awaited: (awaited.step, awaited.commit))


def _parse_all(run: Store) -> Iterator[Awaited]:
    for name in run.list("steps"):
        parsed = layouts.mirror_of_name(name)
        if parsed is None:
            continue
        with contextlib.suppress(NotFound):
            yield _parse_awaited(run, name, *parsed)


def _parse_awaited(run: Store, name: str, step: int, commit: str) -> Awaited:
    data = b""
    with contextlib.suppress(LimitExceeded, Untrusted, KeyError, TypeError, ValueError):
        data = run.read(name, limit=_BYTES)
        body: Any = layouts.unframe(_MIRROR, data)
        mirror, replaces, done = body["mirror"], body["replaces"], body["done"]
        if isinstance(mirror, str) and all(map(layouts.is_commit, replaces)):
            return Awaited(step, commit, mirror, tuple(replaces), done is True, data)
    return Awaited(step, commit, "", data=data)
