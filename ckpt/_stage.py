"""Filling a device's shard in slabs, where host memory cannot hold it whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

import layouts
from layouts import Box, Grid

Array = np.ndarray[Any, Any]
ReadBox = Callable[[Box], Array]
"""Returns the values of a box of the leaf, ready for the device."""


def needs_staging(sharding: Any) -> bool:
    """Tell whether host buffers are only a stage on the way to the devices."""
    return any(device.platform != "cpu" for device in sharding.device_set)


def place_in_slabs(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    sharding: Any,
    boxes: dict[Any, Box],
    read: ReadBox,
    *,
    limit: int,
) -> jax.Array:
    """Return the array on its devices, with at most `limit` host bytes at a time.

    `boxes` has the box of each local device; a box that several hold is read once.
    """
    bits = _bits_of(dtype)
    holders: dict[Box, list[Any]] = {}
    for device, box in boxes.items():
        holders.setdefault(box, []).append(device)
    shards: dict[Any, jax.Array] = {}
    for box, devices in holders.items():
        places = [
            SingleDeviceSharding(d, memory_kind=sharding.memory_kind) for d in devices
        ]
        built = [_empty(box.shape, bits, place)() for place in places]
        for slab in _slabs(box, dtype.itemsize, limit):
            values = read(slab).view(bits)
            start = tuple(a - b for a, b in zip(slab.start, box.start, strict=True))
            built = [
                _update(base, jax.device_put(values, place), start)
                for base, place in zip(built, places, strict=True)
            ]
            # The slab's memory may be used again only once it has arrived.
            jax.block_until_ready(built)
        if bits != dtype:
            built = [jax.lax.bitcast_convert_type(base, dtype) for base in built]
        shards |= dict(zip(devices, built, strict=True))
    ordered = [shards[device] for device in boxes]
    return jax.make_array_from_single_device_arrays(shape, sharding, ordered)


def _bits_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype to move values as: XLA may compute bfloat16 as float32, which
    would quiet signalling NaNs.
    """
    is_float = dtype.name.startswith(("float", "bfloat")) and dtype.itemsize > 1
    return np.dtype(f"uint{8 * dtype.itemsize}") if is_float else dtype


def _slabs(box: Box, itemsize: int, limit: int) -> Iterator[Box]:
    cell = layouts.cut_chunk(box.shape, itemsize, shape=box.shape, limit=limit)
    grid = Grid(box.shape, cell)
    for number in range(grid.length):
        inner = grid.box(grid.coordinates(number))
        start = tuple(a + b for a, b in zip(box.start, inner.start, strict=True))
        yield Box(start, inner.shape)


@lru_cache(maxsize=256)
def _empty(shape: tuple[int, ...], dtype: np.dtype[Any], place: Any) -> Any:
    return jax.jit(lambda: jnp.empty(shape, dtype), out_shardings=place)


def _insert(base: jax.Array, slab: jax.Array, start: tuple[int, ...]) -> jax.Array:
    return jax.lax.dynamic_update_slice(base, slab, start)


_update = cast("Any", jax.jit(_insert, donate_argnums=0))
