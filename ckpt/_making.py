"""One leaf on its way to the caller: its boxes, their buffers, and what it becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import jax
import numpy as np

import layouts
from layouts import Box, Leaf

from ._cast import convert
from ._catalog import Opened
from ._checkpoint import decode_leaf_value
from ._errors import Untrusted
from ._read import Fill, empty_aligned
from ._target import Target, default_sharding
from ._weak import make_weak

Array = np.ndarray[Any, Any]


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


def plan_making(opened: Opened, target: Target) -> Making:
    """Return what a target needs of its leaf, here."""
    leaf = opened.manifest.leaves[target.number]
    if leaf.store is None:
        return Making(target, leaf, target.sharding, ())
    sharding = target.sharding
    if target.kind == "key" and sharding is None:
        sharding = default_sharding()
    if sharding is None:
        return Making(target, leaf, None, (layouts.whole(leaf.shape),))
    boxes = tuple(dict.fromkeys(local_boxes(sharding, leaf.shape).values()))
    return Making(target, leaf, sharding, boxes)


@lru_cache(maxsize=4096)
def local_boxes(sharding: Any, shape: tuple[int, ...]) -> dict[Any, Box]:
    """Return the box each local device needs."""
    indices = sharding.addressable_devices_indices_map(shape)
    return {d: layouts.box_of_index(index, shape) for d, index in indices.items()}


def empty_buffers(making: Making) -> list[Array]:
    """Return a host buffer for each of the boxes; none for what is no array."""
    if making.leaf.store is None:
        return []
    stored = layouts.stored_dtype(making.leaf.dtype)
    return [empty_aligned(box.shape, stored) for box in making.boxes]


def plan_fill(
    making: Making, boxes: Sequence[Box], buffers: Sequence[Array]
) -> Fill | None:
    """Return how boxes are read into their buffers; None where there are none."""
    if not boxes:
        return None
    plan = layouts.plan_leaf_read(making.target.number, making.leaf, boxes)
    return Fill(plan, tuple(buffers))


def finish(making: Making, filled: Sequence[Array]) -> Any:
    """Return the leaf that the filled buffers make."""
    target, leaf = making.target, making.leaf
    if leaf.store is None:
        return _from_value(making, decode_leaf_value(leaf))
    buffers = [typed(buffer, leaf, target) for buffer in filled]
    if making.sharding is None:
        return _on_host(target, leaf, buffers[0])
    dtype = target.dtype or leaf.numpy_dtype
    array = place_buffers(
        leaf.shape, making.sharding, making.boxes, buffers, dtype=dtype
    )
    return dress(target, leaf, array)


def dress(target: Target, leaf: Leaf, array: jax.Array) -> Any:
    """Return the array as the leaf it stands for: a typed key, or weakly typed."""
    if target.kind == "key":
        return cast("Any", jax.random.wrap_key_data(array, impl=leaf.impl))
    return make_weak(array) if target.weak else array


def typed(buffer: Array, leaf: Leaf, target: Target) -> Array:
    """Return a buffer's values as the target's dtype."""
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
