"""Opening one checkpoint in all processes of a job."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import jax

import pytree

from ._catalog import Opened
from ._errors import CkptError, NotFound, Unsupported
from ._failure import forget_frames
from ._job import Job, Post
from ._mirror import UNUSABLE, Places
from ._store import Store

T = TypeVar("T")

_ROUNDS = 64
"""How many rounds of reading an interrupted process withdraws from: few have more."""


def spans_processes(mesh: Any, like: Any) -> bool:
    """Tell whether what is restored goes to devices of several processes.

    Every process finds the same, whichever devices are its own.
    """
    if jax.process_count() == 1:
        return False
    if isinstance(mesh, jax.sharding.Mesh) and _count(mesh.devices.flat) > 1:
        return True
    leaves = () if like is None else pytree.flatten(like)[0].values()
    return any(is_global(getattr(leaf, "sharding", None)) for leaf in leaves)


@lru_cache(maxsize=4096)
def is_global(sharding: Any) -> bool:
    """Tell whether a sharding has devices of several processes."""
    try:
        return sharding is not None and _count(sharding.device_set) > 1
    except (AttributeError, ValueError):
        # On an AbstractMesh it is nowhere.
        return False


def refuse_memory(store: Store, job: Job) -> None:
    """Refuse a place that each process of a job would have for itself."""
    if job.count > 1 and store.url.startswith("memory://"):
        raise Unsupported(
            "expected a folder that all processes share, or an object store, found "
            f"{store.url}, which each process has for itself"
        )


def _count(devices: Iterable[Any]) -> int:
    return len({device.process_index for device in devices})


_READS = ("begin", *(f"read-{n}" for n in range(_ROUNDS)))


@contextmanager
def withdrawing(job: Job, rounds: Iterable[str] = _READS) -> Generator[None]:
    """Tell the others when this process is interrupted, also while it waits."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        job.withdraw(rounds, error)
        raise


@dataclass(frozen=True, slots=True)
class Chosen:
    """The checkpoint that all processes restore, where it is, and the budget of all."""

    url: str
    step: int | None
    digest: str
    in_mirror: bool
    budget: int | None
    opened: Opened | None = None


def choose_together(
    job: Job, places: Places, step: int | None, max_host_bytes: int | None
) -> Chosen:
    """Choose a step, as process 0 finds it; that process has it open."""
    found: list[Opened] = []

    def work() -> Post:
        # One process does not look at its path twice.
        call = f"restore({places.name}, step={step})" if job.count > 1 else ""
        return {"call": call, "budget": max_host_bytes}

    def decide(posts: list[Post]) -> Post:
        opened, in_mirror = places.open(step)
        found.append(opened)
        budgets = [post["budget"] for post in posts if post["budget"] is not None]
        return {
            "url": opened.store.url,
            "step": opened.record.step if opened.record else None,
            "digest": opened.digest,
            "in_mirror": in_mirror,
            "budget": min(budgets, default=None),
        }

    answer = job.begin(work, decide=decide)
    return Chosen(**answer, opened=found[0] if found else None)


def read_nearest(
    job: Job,
    places: Places,
    chosen: Chosen,
    read: Callable[[Job, Callable[[], Opened]], T],
) -> T:
    """Read what was chosen; where it cannot be read nearby, from the mirror."""
    if places.mirror is None or chosen.in_mirror:
        return read(job, lambda: _open_chosen(places, chosen))
    again = replace(job, attempt=1)
    try:
        return read(job, lambda: _open_chosen(places, chosen))
    except UNUSABLE as error:
        failed = error
    except BaseException as error:
        # Those that go to the mirror need not wait for this one.
        again.withdraw(["other", "read-0"], error)
        raise
    # The frames of the error hold what was read so far.
    forget_frames(failed)
    try:
        other = _open_other(again, places, chosen, failed)
        return read(again, lambda: other)
    except BaseException as error:
        again.withdraw([f"read-{n}" for n in range(_ROUNDS)], error)
        raise


def _open_chosen(places: Places, chosen: Chosen) -> Opened:
    if chosen.opened is not None:
        return chosen.opened
    opened = places.open_at(in_mirror=chosen.in_mirror, step=chosen.step)
    if opened.digest != chosen.digest:
        raise NotFound(
            f"expected the checkpoint that process 0 opened, found another - in "
            f"{opened.store.url}: restore it again"
        )
    return opened


def _open_other(job: Job, places: Places, chosen: Chosen, failed: CkptError) -> Opened:
    """Open the same commit in the mirror, if all processes can; else raise again."""
    found: list[Opened | None] = []

    def work() -> Post:
        found.append(places.open_other(chosen.step, chosen.digest))
        return {"there": found[0] is not None}

    def decide(posts: list[Post]) -> Post:
        if not all(post["there"] for post in posts):
            raise failed
        return {}

    job.agree("other", work, decide=decide)
    opened = found[0]
    if opened is None or chosen.step is None:
        raise failed
    places.warn_of_mirror(chosen.step, failed)
    return opened
