"""Removing steps by a rule, and what failed or killed saves left behind."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from ._catalog import PathLike, committed_steps, locate, open_step
from ._checkpoint import Checkpoint
from ._commit import (
    is_committed,
    remove_attempt,
    remove_gone,
    remove_stale_names,
    remove_unfinished_records,
    unrecord_step,
)
from ._errors import CkptError, NotFound
from ._notes import (
    Attempt,
    Awaited,
    doom_attempt,
    find_awaited,
    find_notes,
    forget_awaited,
)
from ._store import Store
from ._store_options import GivenOptions

ORPHAN_AGE = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Keep:
    """Which steps to keep: the newest `last`, each multiple of `every`, the best ones.

    `best` is (metric, "min" or "max", how many); a step without that metric, or with
    NaN, is never among the best, but while no step has it (misspelt?) all are kept.
    The newest step is always kept.

    >>> Keep(last=2, every=100).last
    2
    """

    last: int | None = None
    every: int | None = None
    best: tuple[str, str, int] | None = None

    def __post_init__(self) -> None:
        if self.last is None and self.every is None and self.best is None:
            raise ValueError("expected last=, every= or best=, found none")
        if self.last is not None and self.last < 1:
            raise ValueError(f"expected last >= 1, found {self.last}")
        if self.every is not None and self.every < 1:
            raise ValueError(f"expected every >= 1, found {self.every}")
        if self.best is not None and (
            len(self.best) != 3
            or self.best[1] not in ("min", "max")
            or self.best[2] < 1
        ):
            raise ValueError(
                f'expected best=(metric, "min" or "max", count), found {self.best!r}'
            )


@dataclass(frozen=True, slots=True)
class Removed:
    """What prune removed: a step, or the leftovers of an attempt at one."""

    step: int
    orphan: bool
    bytes: int


def choose_kept(
    steps: Sequence[int], keep: Keep, metric: Callable[[int], float | None]
) -> set[int]:
    """Return the steps that a rule keeps; pure, given each step's metric.

    >>> sorted(choose_kept([1, 2, 3, 4], Keep(best=("loss", "min", 1)), {2: 0.1}.get))
    [2, 4]
    """
    ordered = sorted(steps)
    kept = set(ordered[-(keep.last or 1) :])
    if keep.every is not None:
        kept |= {s for s in ordered if s % keep.every == 0}
    if keep.best is not None:
        _, mode, count = keep.best
        sign = 1 if mode == "min" else -1
        scored = [(m, s) for s in ordered if (m := metric(s)) is not None]
        if not scored:
            return set(ordered)
        ranked = sorted((sign * m, -s) for m, s in scored if not math.isnan(m))
        kept |= {-s for _, s in ranked[:count]}
    return kept


def prune(
    path: PathLike | None = None,
    *,
    keep: Keep | None = None,
    drop: Iterable[int] = (),
    orphan_age: float = ORPHAN_AGE,
    clock: Callable[[], float] = time.time,
    store_options: GivenOptions | None = None,
) -> list[Removed]:
    """Remove steps, and old leftovers of failed saves; return what was removed.

    `keep` removes the steps its rule does not keep, never the newest, nor one that a
    mirror is still to have. `drop` removes the steps it names, the newest too
    (rollback; a mirror keeps them). Attempts that never committed are removed once they
    are `orphan_age` seconds old (0 on request), so that a live writer is not robbed.
    Each step goes record first, then data. Objects that steps saved with `reuse=True`
    need of it stay until a later prune finds nothing that needs them: `bytes` says what
    was freed.

    >>> import ckpt
    >>> for step in range(3):
    ...     done = ckpt.save({"x": step}, None, "memory://doc-prune", step=step)
    >>> [r.step for r in ckpt.prune("memory://doc-prune", keep=ckpt.Keep(last=2))]
    [0]
    """
    if keep is not None and not isinstance(keep, Keep):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"expected keep=ckpt.Keep(...), found {keep!r:.80}")
    run = locate(path, store_options)
    return prune_run(run, keep=keep, drop=drop, orphan_age=orphan_age, clock=clock)


def prune_run(
    run: Store,
    *,
    keep: Keep | None = None,
    drop: Iterable[int] = (),
    aside: Collection[int] = (),
    orphan_age: float = ORPHAN_AGE,
    clock: Callable[[], float] = time.time,
) -> list[Removed]:
    """Do what `prune` says; steps put `aside` stay, and no rule counts them."""
    dropped = sorted(set(drop))
    known = committed_steps(run)
    absent = [s for s in dropped if s not in known]
    if absent:
        raise NotFound(f"expected steps to drop, found no {absent} - in {run.url}")
    doomed = set(dropped)
    if keep is not None and known:
        rest = [s for s in known if s not in doomed and s not in aside]
        metrics = {step: _metric_of(run, keep, step) for step in rest}
        awaited = {a.step for a in find_awaited(run) if not a.done}
        doomed |= set(rest) - choose_kept(rest, keep, metrics.get) - awaited
        if keep.best and rest and not any(m is not None for m in metrics.values()):
            warnings.warn(
                f"expected the metric {keep.best[0]!r} in a step, found it in none "
                f"- in {run.url}: no step is removed before one has it",
                UserWarning,
                stacklevel=3,
            )
    gone: list[tuple[int, list[tuple[int, str]]]] = []
    for step in sorted(doomed):
        # Another process may prune as well.
        with contextlib.suppress(NotFound):
            gone.append((step, unrecord_step(run, step)))
    handled = {attempt for _, attempts in gone for attempt in attempts}
    awaited = find_awaited(run)
    notes = find_notes(run)
    now = clock()
    orphans: list[Attempt] = []
    for note in notes:
        if now - note.began < orphan_age or (note.step, note.commit) in handled:
            continue
        if is_committed(run, note.step, note.commit):
            remove_stale_names(run, note)
        elif doom_attempt(run, note) and not is_committed(run, note.step, note.commit):
            orphans.append(note)
    # Only now is it said of all that they need nothing of each other any more.
    removed: list[Removed] = []
    for step, attempts in gone:
        freed = remove_gone(run, attempts)
        removed.append(Removed(step, orphan=False, bytes=freed))
    for note in orphans:
        freed = remove_attempt(run, note.step, note.commit)
        if freed or not run.has(note.name):
            removed.append(Removed(note.step, orphan=True, bytes=freed))
    remove_unfinished_records(run)
    _forget_gone(run, awaited, notes)
    return removed


def _forget_gone(
    run: Store, awaited: Sequence[Awaited], notes: Sequence[Attempt]
) -> None:
    """Forget commits for a mirror that are gone: a live writer's attempt is noted."""
    noted = {(note.step, note.commit) for note in notes}
    for gone in awaited:
        if (gone.step, gone.commit) not in noted and not is_committed(
            run, gone.step, gone.commit
        ):
            forget_awaited(run, gone.step, gone.commit)


def _metric_of(run: Store, keep: Keep, step: int) -> float | None:
    if keep.best is None:
        return None
    try:
        found = Checkpoint(open_step(run, step)).metrics.get(keep.best[0])
    except CkptError:  # a damaged step has no metric; it is still a step to keep
        return None
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return None
    try:
        return float(found)
    except OverflowError:
        return math.inf if found > 0 else -math.inf
