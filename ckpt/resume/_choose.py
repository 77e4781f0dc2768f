"""Resuming: the newest committed step that verifies, chosen by all processes alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax

from .._catalog import PathLike, locate
from .._errors import (
    Damaged,
    LimitExceeded,
    NotFound,
    StructureMismatch,
    Untrusted,
)
from .._job import Post, joined
from .._restore import restore
from .._steps import own_steps
from .._store import Store
from .._store_options import GivenOptions
from .._together import spans_processes
from .._warn import warn_caller
from ._rng import pack_rngs, set_global_rngs, unpack_rngs
from ._stream import Stream
from ._tree import STATE, Saved, read_saved

T = TypeVar("T")

_UNREADABLE = (Damaged, LimitExceeded, NotFound, Untrusted)
"""What is wrong with a step itself, so that an older one may be whole."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is, and how it is reached."""

    path: PathLike | None
    mirror: PathLike | None
    barrier_timeout: float
    store_options: GivenOptions | None

    def open(self) -> Store:
        """Return the run's store."""
        return locate(self.path, self.store_options)

    def open_all(self) -> list[Store]:
        """Return the run's store, and its mirror's if there is one."""
        far = [] if self.mirror is None else [locate(self.mirror, self.store_options)]
        return [self.open(), *far]

    @property
    def url(self) -> str:
        """The run's place, as messages name it."""
        return self.open().url


@dataclass(frozen=True, slots=True)
class Resumed:
    """A step that was loaded, the newer ones, and why those tried were skipped."""

    saved: Saved
    state: Any
    skipped: Mapping[int, str]
    later: frozenset[int]


def find_steps(place: Place) -> list[int]:
    """Return the committed steps, as process 0 finds them."""
    with joined(place.barrier_timeout) as job:

        def decide(_: list[Post]) -> list[int]:
            return own_steps(
                place.path, mirror=place.mirror, store_options=place.store_options
            )

        return job.begin(lambda: {"call": f"resume({place.url})"}, decide=decide)


def load_newest(
    place: Place,
    mesh: Any,
    like: Any,
    *,
    step: int | None,
    check: Callable[[Saved], None],
    options: Mapping[str, Any],
) -> Resumed | None:
    """Load the newest step that is whole, or that one; None when there is none at all.

    `check` sees what was saved beside the state before that is read. What is damaged
    is skipped, with a warning; Damaged when nothing that was committed can be loaded.
    """
    known = find_steps(place)
    if step is not None and step not in known:
        raise NotFound(
            f"expected step {step}, found {_list(known)} - in {place.url}: resume one "
            "of those, or leave step= out"
        )
    skipped: dict[int, str] = {}
    for candidate in [step] if step is not None else reversed(known):
        try:
            saved = _read_together(place, candidate, check)
            state = _restore_state(place, mesh, like, candidate, options)
        except _UNREADABLE as error:
            skipped[candidate] = f"{type(error).__name__}: {error}"
            _warn_skipped(place, candidate, skipped[candidate])
            continue
        later = frozenset(number for number in known if number > candidate)
        return Resumed(saved, state, skipped, later)
    if not known:
        return None
    raise Damaged(
        f"expected a step to resume from, found none of {_list(list(skipped))} whole - "
        f"in {place.url}: nothing was begun anew; see ckpt.verify, restore a copy of "
        "the run (mirror=), or begin another run in another folder:\n  "
        + "\n  ".join(f"step {number}: {why}" for number, why in skipped.items())
    )


def _read_together(place: Place, step: int, check: Callable[[Saved], None]) -> Saved:
    """Read what this process needs beside the state; all fail where one does."""

    def work() -> Saved:
        saved = read_saved(
            place.path,
            step,
            process=jax.process_index(),
            processes=jax.process_count(),
            mirror=place.mirror,
            store_options=place.store_options,
        )
        check(saved)
        return saved

    return agree_on(place, f"beside step={step}", work)


def _restore_state(
    place: Place, mesh: Any, like: Any, step: int, options: Mapping[str, Any]
) -> Any:
    # With a leaf that is always there: a state may have none.
    wanted = {"state": pack_rngs(like), "run": ""}
    read = partial(
        restore,
        place.path,
        mesh,
        step=step,
        like=wanted,
        select=STATE,
        mirror=place.mirror,
        barrier_timeout=place.barrier_timeout,
        store_options=place.store_options,
        **options,
    )
    try:
        if spans_processes(mesh, wanted):
            tree = read()
        else:
            # Each reads for itself: where one fails, all have to know.
            tree = agree_on(place, f"step={step}", read)
    except StructureMismatch as error:
        raise StructureMismatch(
            f"{error}\nthe model or the optimizer is not the one that was saved: "
            'resume with that, or say what may differ (rename=, missing="keep", '
            'extra="ignore", cast=), or begin another run in another folder'
        ) from None
    return unpack_rngs(tree["state"], like)


def go_on(place: Place, saved: Saved, stream: Stream | None) -> Stream | None:
    """Set the generators and the data to where a step has them."""
    here, process = jax.process_count(), jax.process_index()
    same = saved.processes == here
    # Of a job of the same size each process has read its own alone.
    hosts = saved.hosts * here if same else saved.hosts
    if process < len(hosts):
        set_global_rngs(hosts[process].get("rngs", {}))
    if stream is None or saved.told.get("data") is None:
        return stream
    positions: list[Any] = [host.get("data") for host in hosts]
    return agree_on(
        place,
        "data",
        lambda: stream.restored(positions, process=process, processes=here),
    )


def agree_on(place: Place, what: str, work: Callable[[], T]) -> T:
    """Do this process's part of something that must fail everywhere or nowhere."""
    found: list[T] = []
    with joined(place.barrier_timeout) as job:

        def post() -> Post:
            found.append(work())
            return {"call": f"resume({place.url}, {what})"}

        job.begin(post, decide=lambda _: None)
    return found[0]


def _list(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[-8:]))
    if not shown:
        return "no steps"
    return f"steps {'.., ' if len(numbers) > 8 else ''}{shown}"


def _warn_skipped(place: Place, step: int, why: str) -> None:
    warn_caller(
        f"expected to resume from step {step}, found it unusable ({why}) - in "
        f"{place.url}: an older step is tried"
    )
