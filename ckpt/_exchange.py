"""Reading once what several processes want, and spreading it over devices by XLA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from threading import Event, Thread
from typing import Any, NoReturn, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import layouts
from layouts import Box, Round, Wants

from ._catalog import Opened
from ._errors import CkptError
from ._job import Job, Post
from ._read import Fill, empty_aligned, fill_buffers, scatter

Array = np.ndarray[Any, Any]

_SUB_BYTE = {"int2", "int4", "uint2", "uint4", "float4_e2m1fn"}

_NAMING_SECONDS = 5.0
"""How long processes wait, after an exchange that failed, to see who is missing."""

EXCHANGE_BYTES = 256 << 20
"""How much is exchanged at once, unless the caller's budget is smaller."""


@lru_cache(maxsize=4096)
def find_wants(sharding: Any, shape: tuple[int, ...], processes: int) -> Wants:
    """Return which processes want which boxes of an array; the same on each of them.

    What goes to the host, or to devices of one process, each of them wants.
    """
    everybody = tuple(range(processes))
    if sharding is None:
        return ((layouts.whole(shape), everybody),)
    found: dict[Box, set[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        box = layouts.box_of_index(index, shape)
        found.setdefault(box, set()).add(device.process_index)
    if len({device.process_index for device in sharding.device_set}) == 1:
        return tuple((box, everybody) for box in found)
    return tuple((box, tuple(sorted(held))) for box, held in found.items())


def read_round(
    opened: Opened, round: Round, leaves: Mapping[int, int], job: Job
) -> Array:
    """Return this process's bytes of a round, read and verified.

    `leaves` has the number in the manifest of each of the round's items.
    """
    mine = empty_aligned((round.length,), np.dtype(np.uint8))
    fills: list[Fill] = []
    for unit, offset in zip(round.units, round.offsets, strict=True):
        if unit.reader == job.process:
            number = leaves[unit.item]
            leaf = opened.manifest.leaves[number]
            part = mine[offset : offset + unit.nbytes]
            values = part.view(layouts.stored_dtype(leaf.dtype))
            plan = layouts.plan_leaf_read(number, leaf, [unit.box])
            fills.append(Fill(plan, (values.reshape(unit.box.shape),)))
    fill_buffers(opened, fills)
    return mine


def lay_round(
    round: Round,
    gathered: Array,
    targets: Mapping[int, Sequence[tuple[Box, Array]]],
) -> None:
    """Copy what all have read into the buffers that want it, by item."""
    for unit, offset in zip(round.units, round.offsets, strict=True):
        part = gathered[unit.reader, offset : offset + unit.nbytes]
        for box, buffer in targets[unit.item]:
            scatter(
                unit.box, part.view(buffer.dtype).reshape(unit.box.shape), box, buffer
            )


def gather_bytes(mine: Array) -> Array:
    """Return the bytes of all processes, a row each; a collective of one device each.

    Every process must come here, with as many bytes.
    """
    return _move_rows(mine, PartitionSpec())


def trade_bytes(mine: Array) -> Array:
    """Return what each process has for this one; a collective of one device each.

    `mine` has a row for each process, as long on all of them, who must all come here.
    """
    return _move_rows(mine, PartitionSpec(None, "process"))[:, 0]


def _move_rows(mine: Array, spec: PartitionSpec) -> Array:
    """Return this process's part of the rows of all, laid by another spec."""
    mesh = _process_mesh(tuple(cast("list[Any]", jax.devices())))
    sharded = NamedSharding(mesh, PartitionSpec("process"))
    here = next(d for d in mesh.devices.flat if d.process_index == jax.process_index())
    row = jax.device_put(mine[None], here)
    shape = (mesh.devices.size, *mine.shape)
    rows = jax.make_array_from_single_device_arrays(shape, sharded, [row])
    # The caller's ambient mesh may be of other devices.
    with jax.set_mesh(mesh):
        return np.asarray(_lay_by(mesh, spec)(rows).addressable_data(0))


def move_agreed(
    job: Job,
    name: str,
    move: Callable[[], Array],
    *,
    post: Post,
    decide: Callable[[list[Post]], None],
) -> Array | str:
    """Agree on a round, then gather or trade bytes; return why where that failed.

    Whoever has agreed takes part, also when it is interrupted meanwhile: the others
    would wait in XLA for ever. They do so for the timeout of the job at most. Where
    this returns a text, `give_up` in the next round.
    """
    agree = partial(job.agree, name, lambda: post, decide=decide)
    trade = _Trade(agree, move, job.timeout)
    try:
        return trade.run()
    except Exception:
        raise
    except BaseException as error:
        job.withdraw([name], error)
        trade.settle()
        raise


def give_up(job: Job, name: str, why: str) -> NoReturn:
    """Raise, after an exchange that failed: the one that is missing, if one is."""
    late = replace(job, timeout=min(job.timeout, _NAMING_SECONDS))
    late.agree(name, lambda: {"lost": why}, decide=refuse_lost)
    raise _describe_lost(job.process, why)


def refuse_lost(posts: list[Post]) -> None:
    """Raise if a process has told that its exchange failed."""
    for process, post in enumerate(posts):
        if why := post.get("lost"):
            raise _describe_lost(process, why)


def _describe_lost(process: int, why: str) -> CkptError:
    return CkptError(
        "expected that all processes exchange what they hold, found on process "
        f"{process}: {why}"
    )


class _Trade:
    """An exchange in a thread of its own, where no interrupt comes between."""

    def __init__(
        self, agree: Callable[[], None], move: Callable[[], Array], timeout: float
    ) -> None:
        self._agree, self._move, self._timeout = agree, move, timeout
        self._before = list(_last)
        self._agreed = Event()
        self._refusal: Exception | None = None
        self._found: Array | str = ""
        self._thread = Thread(target=self._work, name="ckpt-trade", daemon=True)

    def run(self) -> Array | str:
        """Return what has arrived, or what went wrong after all had agreed."""
        _last[:] = [self._thread]
        self._thread.start()
        self._agreed.wait()
        if not self.settle():
            return f"its exchange did not end within {self._timeout:g} s"
        if self._refusal is not None:
            raise self._refusal
        return self._found

    def settle(self) -> bool:
        """Wait for the end, unless it does not come in time."""
        if self._thread.is_alive():
            self._thread.join(self._timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._agree()
        except Exception as error:
            self._refusal = error
            return
        finally:
            self._agreed.set()
        try:
            _wait_for(self._before)
            self._found = self._move()
        except Exception as error:
            self._found = f"{type(error).__name__}: {error!s:.400}"


_last: list[Thread] = []
"""The exchange that was begun last: another one must not overtake it."""


def _wait_for(threads: Sequence[Thread]) -> None:
    for thread in threads:
        if thread.is_alive():
            thread.join()


def can_move(dtype: np.dtype[Any] | None) -> bool:
    """Tell whether arrays of a dtype go from device to device bit for bit."""
    return dtype is not None and dtype.name not in _SUB_BYTE


def move_bits(array: jax.Array, sharding: Any) -> jax.Array:
    """Return the array on another sharding of the same devices, bit for bit.

    A collective: every process must come here. Small floats go as integers: XLA may
    compute with them as float32, which would quiet signalling NaNs.
    """
    _wait_for(_last)
    dtype = np.dtype(array.dtype)
    if not sharding.addressable_devices:
        # Not one of those that have it: it is not for this process to move it.
        made = jax.make_array_from_single_device_arrays
        return made(array.shape, sharding, [], dtype=dtype)
    is_float = dtype.itemsize < 4 and dtype.name.startswith(("float", "bfloat"))
    bits = np.dtype(f"uint{8 * dtype.itemsize}") if is_float else dtype
    with jax.set_mesh(sharding.mesh):
        moved = jax.device_put(_cast_bits(array, bits), sharding)
        return _cast_bits(moved, dtype)


def _cast_bits(array: jax.Array, dtype: np.dtype[Any]) -> jax.Array:
    if array.dtype == dtype:
        return array
    return jax.lax.bitcast_convert_type(array, dtype)


@lru_cache(maxsize=2)
def _process_mesh(devices: tuple[Any, ...]) -> Mesh:
    """Return a mesh of the first device of each process."""
    first: dict[int, Any] = {}
    for device in sorted(devices, key=lambda d: d.id):
        first.setdefault(device.process_index, device)
    chosen = [first[process] for process in sorted(first)]
    return Mesh(np.array(chosen), ("process",))


@lru_cache(maxsize=4)
def _lay_by(mesh: Mesh, spec: PartitionSpec) -> Any:
    def identity(rows: jax.Array) -> jax.Array:
        return rows

    return jax.jit(identity, out_shardings=NamedSharding(mesh, spec))
