"""From host buffers to what the caller wants: jax arrays, numpy, Python values."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import NamedSharding

import layouts
from layouts import Box, Leaf, Round, Wants

from ._cast import convert
from ._catalog import Opened
from ._checkpoint import decode_leaf_value, partition_spec, read_box
from ._errors import Untrusted
from ._exchange import (
    EXCHANGE_BYTES,
    can_move,
    find_wants,
    gather_bytes,
    lay_round,
    move_bits,
    read_round,
)
from ._job import ALONE, Job, Post
from ._read import Fill, empty_aligned, fill_buffers
from ._stage import needs_staging, place_in_slabs
from ._target import Target, default_sharding
from ._together import is_global
from ._weak import make_weak

Array = np.ndarray[Any, Any]

_STAGED_BYTES = 2 << 30
"""Host memory for buffers on their way to accelerators, unless the caller says."""


@dataclass(frozen=True, slots=True)
class Making:
    """A target, the distinct local boxes it needs, and where each goes."""

    target: Target
    leaf: Leaf
    sharding: Any
    boxes: tuple[Box, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the host buffers."""
        if self.leaf.store is None:
            return 0
        return sum(box.size for box in self.boxes) * self.leaf.itemsize

    def is_larger(self, budget: int, staged: Callable[[Any], bool]) -> bool:
        """Tell whether the buffers are a stage that the budget cannot hold."""
        return bool(self.sharding) and self.nbytes > budget and staged(self.sharding)


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
        _plan_making(opened, spread.get(n, target)) for n, target in enumerate(targets)
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
    device = cast("Any", jax.local_devices()[0])
    memories = (None, device.default_memory().kind)
    for number, target in enumerate(targets):
        leaf, sharding = opened.manifest.leaves[target.number], target.sharding
        plain = target.kind == "jax" and not target.weak and can_move(target.dtype)
        if job.count == 1 or not plain or not target.laid or target.path in alone:
            continue
        if sharding.memory_kind not in memories:
            continue
        owners = tuple(d.process_index for d in sharding.mesh.devices.flat)
        finer = layouts.spread_spec(leaf, target.laid[1], target.laid[0], owners)
        if finer is not None:
            laid = NamedSharding(
                sharding.mesh, partition_spec(finer), memory_kind=sharding.memory_kind
            )
            found[number] = replace(target, sharding=laid)
    return found


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
        buffers = {n: _empty_buffers(makings[n]) for n in group}
        fills = [_fill(makings[n], makings[n].boxes, buffers[n]) for n in group]
        fill_buffers(opened, [f for f in fills if f is not None])
        made |= {n: _finish(makings[n], buffers[n]) for n in group}
        del buffers, fills
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
            buffers = {n: _empty_buffers(makings[n]) for n in group}
            fills: list[Fill | None] = []
            for n in group:
                boxes = layouts.boxes_alone(makings[n].leaf, shared[n], job.process)
                at = [makings[n].boxes.index(box) for box in boxes]
                fills.append(_fill(makings[n], boxes, [buffers[n][k] for k in at]))
            fill_buffers(opened, [f for f in fills if f is not None])
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
            mine = _read_together(opened, exchange, places, job, f"read-{count}", post)
            count += 1
            with job.refusing(f"read-{count}"):
                lay_round(exchange, gather_bytes(mine), targets)
        with job.refusing(f"read-{count}"):
            made |= {n: _finish(makings[n], buffers[n]) for n in group}
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


def _read_together(
    opened: Opened,
    exchange: Round,
    places: Mapping[int, int],
    job: Job,
    name: str,
    post: Post,
) -> Array:
    """Read this process's part of an exchange, and wait until all have theirs."""
    read: list[Array] = []

    def work() -> Post:
        read.append(read_round(opened, exchange, places, job))
        return post

    job.agree(name, work, decide=_check_same)
    return read[0]


def _check_same(posts: list[Post]) -> None:
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
        return _typed(read_box(opened, target.number, box), leaf, target)

    boxes = _local_boxes(making.sharding, leaf.shape)
    array = place_in_slabs(
        leaf.shape, dtype, making.sharding, boxes, read, limit=max(budget // 2, 1)
    )
    return _dress(target, leaf, array)


def _plan_making(opened: Opened, target: Target) -> Making:
    leaf = opened.manifest.leaves[target.number]
    if leaf.store is None:
        return Making(target, leaf, target.sharding, ())
    sharding = target.sharding
    if target.kind == "key" and sharding is None:
        sharding = default_sharding()
    if sharding is None:
        return Making(target, leaf, None, (layouts.whole(leaf.shape),))
    boxes = tuple(dict.fromkeys(_local_boxes(sharding, leaf.shape).values()))
    return Making(target, leaf, sharding, boxes)


@lru_cache(maxsize=4096)
def _local_boxes(sharding: Any, shape: tuple[int, ...]) -> dict[Any, Box]:
    """Return the box each local device needs."""
    indices = sharding.addressable_devices_indices_map(shape)
    return {d: layouts.box_of_index(index, shape) for d, index in indices.items()}


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


def _empty_buffers(making: Making) -> list[Array]:
    """Return a host buffer for each of the boxes; none for what is no array."""
    if making.leaf.store is None:
        return []
    stored = layouts.stored_dtype(making.leaf.dtype)
    return [empty_aligned(box.shape, stored) for box in making.boxes]


def _fill(
    making: Making, boxes: Sequence[Box], buffers: Sequence[Array]
) -> Fill | None:
    if not boxes:
        return None
    plan = layouts.plan_leaf_read(making.target.number, making.leaf, boxes)
    return Fill(plan, tuple(buffers))


def _finish(making: Making, filled: Sequence[Array]) -> Any:
    target, leaf = making.target, making.leaf
    if leaf.store is None:
        return _from_value(making, decode_leaf_value(leaf))
    buffers = [_typed(buffer, leaf, target) for buffer in filled]
    if making.sharding is None:
        return _on_host(target, leaf, buffers[0])
    dtype = target.dtype or leaf.numpy_dtype
    array = place_buffers(
        leaf.shape, making.sharding, making.boxes, buffers, dtype=dtype
    )
    return _dress(target, leaf, array)


def _dress(target: Target, leaf: Leaf, array: jax.Array) -> Any:
    """Return the array as the leaf it stands for: a typed key, or weakly typed."""
    if target.kind == "key":
        return cast("Any", jax.random.wrap_key_data(array, impl=leaf.impl))
    return make_weak(array) if target.weak else array


def _typed(buffer: Array, leaf: Leaf, target: Target) -> Array:
    values = buffer.view(leaf.numpy_dtype)
    if target.dtype is None or target.dtype == values.dtype:
        return values
    return convert(values, target.dtype)


def _on_host(target: Target, leaf: Leaf, values: Array) -> Any:
    if target.kind == "str":
        try:
            return values.tobytes().decode()
        except UnicodeDecodeError as error:
            raise Untrusted(
                f"expected UTF-8, found other bytes - at `{leaf.path}`"
            ) from error
    if target.kind == "bytes":
        return values.tobytes()
    if target.kind == "numpy_scalar":
        return values[()]
    if target.kind in ("numpy", "jax", "key"):
        return values
    return values.item()


def _from_value(making: Making, value: Any) -> Any:
    """Make what is wanted of a Python value kept in the manifest."""
    target = making.target
    if target.dtype is None:
        return value
    array = convert(np.asarray(value), target.dtype)
    if target.kind == "numpy_scalar":
        return array[()]
    if making.sharding is None:
        return array
    # Not device_put, which would compare the values of all processes.
    made = jax.make_array_from_callback(
        array.shape, making.sharding, lambda _: array, dtype=array.dtype
    )
    return make_weak(made) if target.weak else made


def place_buffers(
    shape: tuple[int, ...],
    sharding: Any,
    boxes: Sequence[Box],
    buffers: Sequence[Array],
    *,
    dtype: np.dtype[Any],
) -> jax.Array:
    """Return the jax array whose local shards are the buffers.

    Devices in host memory take an aligned buffer as it is, without a copy.
    """
    if not boxes:
        # A process without devices in the mesh knows the array all the same.
        made = jax.make_array_from_single_device_arrays
        return made(shape, sharding, [], dtype=dtype)
    if len(boxes) == 1:
        only = buffers[0]
        return jax.make_array_from_callback(shape, sharding, lambda _: only)
    by_start = {
        tuple(zip(b.start, b.stop, strict=True)): x
        for b, x in zip(boxes, buffers, strict=True)
    }

    def pick(index: Any) -> Array:
        box = layouts.box_of_index(cast("tuple[slice, ...]", index), shape)
        return by_start[tuple(zip(box.start, box.stop, strict=True))]

    return jax.make_array_from_callback(shape, sharding, pick)
