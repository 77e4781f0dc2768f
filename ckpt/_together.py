"""Opening one checkpoint in all processes of a job."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import jax

import pytree

from ._catalog import Opened
from ._errors import NotFound
from ._job import Job, Post
from ._mirror import Places

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


def _count(devices: Iterable[Any]) -> int:
    return len({device.process_index for device in devices})


@contextmanager
def withdrawing(job: Job) -> Generator[None]:
    """Tell the others when this process is interrupted, also while it waits."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        job.withdraw(["begin", *(f"read-{n}" for n in range(_ROUNDS))], error)
        raise


def open_together(
    job: Job,
    places: Places,
    step: int | None,
    max_host_bytes: int | None,
) -> tuple[Opened, int | None]:
    """Open the step that process 0 chooses; return it and the budget of all."""
    if job.count == 1:
        return places.open(step)[0], max_host_bytes
    found: list[Opened] = []

    def work() -> Post:
        return {
            "call": f"restore({places.name}, step={step})",
            "budget": max_host_bytes,
        }

    def decide(posts: list[Post]) -> Post:
        opened, in_mirror = places.open(step)
        found.append(opened)
        budgets = [post["budget"] for post in posts if post["budget"] is not None]
        return {
            "step": found[0].record.step if found[0].record else None,
            "in_mirror": in_mirror,
            "digest": found[0].digest,
            "budget": min(budgets, default=None),
        }

    answer = job.begin(work, decide=decide)
    if not found:
        with job.refusing("read-0"):
            in_mirror = answer["in_mirror"]
            found.append(places.open_at(in_mirror=in_mirror, step=answer["step"]))
            _check_same(found[0], answer["digest"])
    return found[0], answer["budget"]


def _check_same(opened: Opened, digest: str) -> None:
    if opened.digest != digest:
        raise NotFound(
            f"expected the checkpoint that process 0 opened, found another - in "
            f"{opened.store.url}: restore it again"
        )
