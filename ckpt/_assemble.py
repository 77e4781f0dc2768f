"""From host buffers to what the caller wants: jax arrays, numpy, Python values."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import NamedSharding

import layouts
from layouts import Box, Wants

from ._catalog import Opened
from ._checkpoint import partition_spec, read_box
from ._exchange import (
    EXCHANGE_BYTES,
    can_move,
    find_wants,
    gather_bytes,
    give_up,
    lay_round,
    move_agreed,
    move_bits,
    read_round,
    refuse_lost,
)
from ._job import ALONE, Job, Post
from ._making import (
    Making,
    dress,
    empty_buffers,
    finish,
    local_boxes,
    plan_fill,
    plan_making,
    typed,
)
from ._read import Fill, fill_buffers
from ._stage import needs_staging, place_in_slabs
from ._target import Target
from ._together import is_global

Array = np.ndarray[Any, Any]

_STAGED_BYTES = 2 << 30
"""Host memory for buffers on their way to accelerators, unless the caller says."""


def assemble_leaves(
    opened: Opened,
    targets: Sequence[Target],
    *,
    max_host_bytes: int | None,
    staged: Callable[[Any], bool] = needs_staging,
    job: Job = ALONE,
    alone: Container[str] | None = None,
) -> list[Any]:
    """Read and build every target, in order, within the budget.

    One leaf that is wanted in the same way twice (tied) is read once. `staged` tells
    of a sharding whether its host buffers are not the data itself. In a `job` of
    several, what several of its processes want is read by one of them; not where the
    path is in `alone`, nor anywhere if that is None.
    """
    spread = {} if alone is None else _find_spread(opened, targets, job, alone)
    makings = [
        plan_making(opened, spread.get(n, target)) for n, target in enumerate(targets)
    ]
    budget = max_host_bytes
    if budget is None and any(m.sharding and staged(m.sharding) for m in makings):
        budget = _STAGED_BYTES
    shared = {} if alone is None else _find_shared(makings, job, alone)
    rest = [n for n in range(len(makings)) if n not in shared]
    with job.refusing("read-0"):
        made = _assemble_alone(opened, makings, rest, budget, staged)
        plan = _describe_plan(makings, shared, spread, alone) if job.count > 1 else ""
    made |= _assemble_shared(opened, makings, shared, job, budget, plan)
    # All have read what they had to: nobody waits in vain in what follows.
    for n in spread:
        made[n] = move_bits(made[n], targets[n].sharding)
    return [made[n] for n in range(len(makings))]


def _find_spread(
    opened: Opened, targets: Sequence[Target], job: Job, alone: Container[str]
) -> dict[int, Target]:
    """Return how leaves are read that XLA then spreads over more devices, by number."""
    found: dict[int, Target] = {}
    if job.count == 1:
        return found
    device = cast("Any", jax.local_devices()[0])
    memories = (None, device.default_memory().kind)
    for number, target in enumerate(targets):
        leaf, sharding = opened.manifest.leaves[target.number], target.sharding
        plain = target.kind == "jax" and not target.weak and can_move(target.dtype)
        if not plain or not target.laid or target.path in alone:
            continue
        if sharding.memory_kind not in memories:
            continue
        owners = _owners(sharding.mesh)
        finer = layouts.spread_spec(leaf, target.laid[1], target.laid[0], owners)
        if finer is not None:
            laid = NamedSharding(
                sharding.mesh, partition_spec(finer), memory_kind=sharding.memory_kind
            )
            found[number] = replace(target, sharding=laid)
    return found


@lru_cache(maxsize=64)
def _owners(mesh: Any) -> tuple[int, ...]:
    """Return the process of each position of a mesh."""
    return tuple(device.process_index for device in mesh.devices.flat)


def _assemble_alone(
    opened: Opened,
    makings: Sequence[Making],
    numbers: Sequence[int],
    budget: int | None,
    staged: Callable[[Any], bool],
) -> dict[int, Any]:
    """Make leaves of which this process reads what it wants."""
    made: dict[int, Any] = {}
    for group in _groups(numbers, [makings[n].nbytes for n in numbers], budget):
        if budget and makings[group[0]].is_larger(budget, staged):
            made[group[0]] = _build_in_slabs(opened, makings[group[0]], budget)
            continue
        buffers = {n: empty_buffers(makings[n]) for n in group}
        fills = [plan_fill(makings[n], makings[n].boxes, buffers[n]) for n in group]
        filled = [f for f in fills if f is not None]
        fill_buffers(opened, filled, max_host_bytes=budget)
        made |= {n: finish(makings[n], buffers[n]) for n in group}
        del buffers, fills, filled
        if budget is not None:
            jax.block_until_ready([made[n] for n in group])
    return made


def _find_shared(
    makings: Sequence[Making], job: Job, alone: Container[str]
) -> dict[int, Wants]:
    """Return who wants what of the leaves that are read together, by making."""
    if job.count == 1:
        return {}
    found: dict[int, Wants] = {}
    for number, making in enumerate(makings):
        if making.target.path in alone:
            continue
        wants = find_wants(making.sharding, making.leaf.shape, job.count)
        if layouts.shares_reads(making.leaf, wants):
            found[number] = wants
    return found


def _assemble_shared(
    opened: Opened,
    makings: Sequence[Making],
    shared: Mapping[int, Wants],
    job: Job,
    budget: int | None,
    plan: str,
) -> dict[int, Any]:
    """Make leaves that several processes want: each reads a part for all of them.

    All meet before each exchange, so that none waits in it for one that failed.
    """
    if job.count == 1:
        return {}
    limit = min(budget or EXCHANGE_BYTES, EXCHANGE_BYTES)
    made: dict[int, Any] = {}
    loads: dict[int, int] = {}
    count = 0
    numbers = list(shared)
    # All processes number them alike, whatever each makes beside.
    items = {n: item for item, n in enumerate(numbers)}
    for group in _groups(numbers, [makings[n].leaf.nbytes for n in numbers], limit):
        with job.refusing(f"read-{count}"):
            buffers = {n: empty_buffers(makings[n]) for n in group}
            fills: list[Fill | None] = []
            for n in group:
                boxes = layouts.boxes_alone(makings[n].leaf, shared[n], job.process)
                at = [makings[n].boxes.index(box) for box in boxes]
                fills.append(plan_fill(makings[n], boxes, [buffers[n][k] for k in at]))
            filled = [f for f in fills if f is not None]
            fill_buffers(opened, filled, max_host_bytes=budget)
            places = {items[n]: makings[n].target.number for n in group}
            targets = {
                items[n]: list(zip(makings[n].boxes, buffers[n], strict=True))
                for n in group
            }
            units = layouts.share_reads(
                {items[n]: makings[n].leaf for n in group},
                {items[n]: shared[n] for n in group},
                most=limit // job.count,
                loads=loads,
            )
        for exchange in layouts.plan_rounds(units, limit=limit, processes=job.count):
            post = {"plan": plan, "exchange": layouts.digest(repr(exchange).encode())}
            with job.refusing(f"read-{count}"):
                mine = read_round(opened, exchange, places, job)
            gathered = move_agreed(
                job,
                f"read-{count}",
                partial(gather_bytes, mine),
                post=post,
                decide=_check_same,
            )
            count += 1
            if isinstance(gathered, str):
                give_up(job, f"read-{count}", gathered)
            with job.refusing(f"read-{count}"):
                lay_round(exchange, gathered, targets)
        with job.refusing(f"read-{count}"):
            made |= {n: finish(makings[n], buffers[n]) for n in group}
    job.agree(f"read-{count}", lambda: {"plan": plan}, decide=_check_same)
    return made


def _describe_plan(
    makings: Sequence[Making],
    shared: Mapping[int, Wants],
    spread: Mapping[int, Target],
    alone: Container[str] | None,
) -> str:
    """Return a digest of what must be the same in all processes before they meet."""
    said: list[Any] = [alone is None]
    for number, making in enumerate(makings):
        target, sharding = making.target, making.target.sharding
        if alone is not None and target.path in alone:
            continue
        where = "here"
        if sharding is not None and is_global(sharding):
            where = _name_sharding(sharding)
        kind = target.kind, str(target.dtype), target.weak
        said.append((target.number, kind, where, number in shared, number in spread))
    return layouts.digest(repr(said).encode())


@lru_cache(maxsize=4096)
def _name_sharding(sharding: Any) -> str:
    devices = tuple(sharding._device_assignment)
    return f"{sharding} on {[device.id for device in devices]}"


def _check_same(posts: list[Post]) -> None:
    refuse_lost(posts)
    if any(post != posts[0] for post in posts):
        raise ValueError(
            "expected every process to restore the same leaves in the same way, found "
            "that they differ: pass the same mesh, like, specs, select and broadcast, "
            "and restore from one thread at a time"
        )


def _build_in_slabs(opened: Opened, making: Making, budget: int) -> Any:
    target, leaf = making.target, making.leaf
    dtype = target.dtype or leaf.numpy_dtype

    def read(box: Box) -> Array:
        values = read_box(opened, target.number, box, max_host_bytes=budget)
        return typed(values, leaf, target)

    boxes = local_boxes(making.sharding, leaf.shape)
    array = place_in_slabs(
        leaf.shape, dtype, making.sharding, boxes, read, limit=max(budget // 2, 1)
    )
    return dress(target, leaf, array)


def _groups(
    numbers: Sequence[int], sizes: Sequence[int], budget: int | None
) -> Iterator[list[int]]:
    """Yield numbers of leaves to make together, within the budget where one is."""
    group: list[int] = []
    held = 0
    for number, size in zip(numbers, sizes, strict=True):
        if budget is not None and group and held + size > budget:
            yield group
            group, held = [], 0
        group.append(number)
        held += size
    if group:
        yield group
