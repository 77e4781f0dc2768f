"""What a leaf of the caller's tree is, and how to get the bytes of a part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from threading import Lock
from typing import Any, cast

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, SingleDeviceSharding

import layouts
from layouts import Box, Leaf, MeshLayout, Pieces, Placement

from ._errors import Unsupported
from ._value import INLINE_BYTES, encode_value

_PLAIN = {
    bool: "bool",
    int: "int",
    float: "float",
    complex: "complex",
    str: "str",
    bytes: "bytes",
}


Held = dict[Box, np.ndarray[Any, Any]]
"""Copies of boxes of an array."""

Fetch = Callable[[Box], np.ndarray[Any, Any]]
"""Reads a box of an array."""

Transfer = Callable[[], np.ndarray[Any, Any]]
"""Waits for a copy that is on its way to host memory, and returns it."""

Shard = tuple[int, Any]
"""The number of an addressable shard, and the device that it is on."""

_listing = Lock()


@dataclass(frozen=True, slots=True)
class Source:
    """A leaf as it will be saved, without a store yet, and the array it comes from.

    The array may be a function that reads a box. One that is `on_host` is the whole
    leaf in each process of a job. `owner` is the
    process that alone has it: the others know no array.
    """

    leaf: Leaf
    pieces: Pieces | None = None
    array: Any = None
    is_on_host: bool = True
    owner: int | None = None

    def fetch(self, box: Box) -> np.ndarray[Any, Any]:
        """Return the values of a box, which lies in one piece, in host memory.

        On CPU devices this is a view of the device's buffer: valid until the caller
        may touch the array again.
        """
        if callable(self.array):
            return cast(Fetch, self.array)(box)
        if isinstance(self.array, dict):
            return cast(Held, self.array)[box]
        if isinstance(self.array, np.ndarray):
            part = cast("np.ndarray[Any, Any]", self.array)[box.slices]
            native = self.leaf.numpy_dtype
            return part if part.dtype == native else part.astype(native)
        data, inside = self.locate(box)
        return host_view(data, inside)

    def start(self, box: Box) -> Transfer:
        """Begin to `fetch` a box; return how to wait for it."""
        if isinstance(self.array, jax.Array):
            data, inside = self.locate(box)
            if not is_in_host_memory(data):
                return start_transfer(data, inside)
        return partial(self.fetch, box)

    def locate(self, box: Box) -> tuple[jax.Array, Box]:
        """Return the local single-device array that holds a box, and where in it."""
        array, piece = cast(jax.Array, self.array), cast(Pieces, self.pieces).piece
        if piece == array.shape:
            return array.addressable_data(0), box
        start = tuple(a // max(p, 1) * p for a, p in zip(box.start, piece, strict=True))
        inside = tuple(a - b for a, b in zip(box.start, start, strict=True))
        shard = _local_shards(array.sharding, array.shape)[start]
        return _shard_data(self.leaf, array, shard), Box(inside, box.shape)


def local_bytes(source: Source) -> Iterator[memoryview]:
    """Yield the bytes of a leaf that is on the host, piece by piece; or its value."""
    if source.pieces is None:
        yield memoryview(repr(source.leaf.value).encode())
        return
    pieces = layouts.Grid(source.leaf.shape, source.pieces.piece)
    for number in range(pieces.length):
        values = source.fetch(pieces.box(pieces.coordinates(number)))
        yield np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def host_view(data: jax.Array, box: Box) -> np.ndarray[Any, Any]:
    """Return a box of a single-device array in host memory.

    On CPU devices it is a view of the device's buffer.
    """
    if is_in_host_memory(data):
        view = np.asarray(data)
        return view if box.shape == data.shape else view[box.slices]
    return start_transfer(data, box)()


def is_in_host_memory(data: jax.Array) -> bool:
    """Tell whether numpy can look at a single-device array where it is."""
    return next(iter(data.devices())).platform == "cpu"


def start_transfer(data: jax.Array, box: Box) -> Transfer:
    """Begin to copy a box of a device's array to host memory; return how to wait.

    No copy is left behind on the caller's array: numpy caches one on arrays that
    are not in host memory, so those are read through a fresh array or a slice.
    """
    if box.shape == data.shape:
        fresh = jax.make_array_from_single_device_arrays(
            data.shape, data.sharding, [data]
        )
    else:
        fresh = jax.lax.dynamic_slice(data, box.start, box.shape)
    fresh.copy_to_host_async()
    if "host" in (data.sharding.memory_kind or ""):
        # What is in a device's host memory, numpy may look at where it is.
        return lambda: np.array(fresh)
    return lambda: np.asarray(fresh)


@lru_cache(maxsize=4096)
def _local_shards(
    sharding: Any, shape: tuple[int, ...]
) -> dict[tuple[int, ...], Shard]:
    """Return, for each local piece's start, an addressable shard that holds it.

    The map of indices iterates in the order in which `addressable_data` counts.
    """
    starts: dict[tuple[int, ...], Shard] = {}
    indices = sharding.addressable_devices_indices_map(shape)
    for number, (device, index) in enumerate(indices.items()):
        start = layouts.box_of_index(index, shape).start
        starts.setdefault(start, (number, device))
    return starts


def _list_shards(array: jax.Array) -> None:
    """Let JAX list an array's shards, in this thread alone.

    It does so at the first look, with no lock: threads that look at the same time find
    the list half made, or with shards twice, and would save one in another's place.
    """
    if not array.is_fully_replicated and array.sharding.addressable_devices:
        with _listing:
            array.addressable_data(0)


def _shard_data(leaf: Leaf, array: jax.Array, shard: Shard) -> jax.Array:
    """Return a shard, refused if threads of the caller have mixed up JAX's list."""
    number, device = shard
    data = array.addressable_data(number)
    if data.devices() != {device}:
        raise Unsupported(
            f"expected shard {number} on {device}, found that of {data.devices()} - at "
            f"`{leaf.path}`: several threads looked at this new array at once; make it "
            "again, and save it before they do"
        )
    return data


def describe_leaf(
    path: str, value: Any, mesh: MeshLayout | None, *, processes: int = 1
) -> Source:
    """Return how a leaf will be saved, or refuse it, naming its path.

    What is on the host, or on devices of one process, each of the `processes` has.
    """
    if isinstance(value, jax.Array):
        return _describe_jax(path, value, mesh, processes)
    source = _describe_host(path, value, mesh)
    if source.pieces is None:
        return source
    holders = _held_by_all(1, processes)
    return replace(source, pieces=Pieces(source.pieces.piece, holders))


@lru_cache(maxsize=64)
def _held_by_all(pieces: int, processes: int) -> layouts.Holders | None:
    return (tuple(range(processes)),) * pieces if processes > 1 else None


def _describe_host(path: str, value: Any, mesh: MeshLayout | None) -> Source:
    if isinstance(value, np.generic):
        scalar = np.asarray(cast("np.generic[Any]", value))
        return _describe_numpy(path, scalar, "numpy_scalar", mesh)
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        if type(array) not in (np.ndarray, np.memmap):
            raise Unsupported(
                f"expected a plain numpy array, found {type(array).__name__} "
                f"- at `{path}`: save np.asarray of it"
            )
        return _describe_numpy(path, array, "numpy", mesh)
    kind = _PLAIN.get(cast("type[Any]", type(value)))
    if kind is None:
        raise Unsupported(
            f"expected an array or a Python scalar, str or bytes, found "
            f"{type(value).__module__}.{type(value).__qualname__} - at `{path}`: "
            "if it is a container, register it (jax.tree_util.register_dataclass, "
            "pytree.register); if not, keep it out of the tree"
        )
    return _describe_plain(path, kind, value)


def _describe_plain(path: str, kind: str, value: Any) -> Source:
    if kind == "str":
        try:
            data = value.encode()
        except UnicodeEncodeError:
            raise Unsupported(
                f"expected text of Unicode characters, found a lone surrogate "
                f"- at `{path}`"
            ) from None
    else:
        data = value if kind == "bytes" else b""
    if len(data) <= INLINE_BYTES:
        return Source(Leaf(path, kind, value=encode_value(value)))
    array = np.frombuffer(data, np.uint8)
    leaf = Leaf(path, kind, "uint8", array.shape)
    return Source(leaf, Pieces(array.shape), array)


def _describe_numpy(
    path: str, array: np.ndarray[Any, Any], kind: str, mesh: MeshLayout | None
) -> Source:
    name = layouts.name_of(array.dtype)
    if name is None:
        raise Unsupported(
            f"expected a dtype that JAX has, found {array.dtype} - at `{path}`: "
            "convert it, or keep it out of the tree"
        )
    leaf = Leaf(path, kind, name, array.shape, _replicated(mesh, array.ndim))
    return Source(leaf, Pieces(array.shape), array)


def _replicated(mesh: MeshLayout | None, rank: int) -> Placement | None:
    return None if mesh is None else Placement(mesh, ((),) * rank)


def _describe_jax(
    path: str, array: jax.Array, mesh: MeshLayout | None, processes: int
) -> Source:
    if isinstance(array, Tracer):
        raise Unsupported(
            f"expected a concrete array, found a tracer - at `{path}`: "
            "save outside jit and other transformations"
        )
    if array.is_deleted():
        raise Unsupported(
            f"expected a live array, found a deleted or donated one - at `{path}`"
        )
    impl = None
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        impl = str(jax.random.key_impl(array))
        array = jax.random.key_data(array)
    name = layouts.name_of(np.dtype(array.dtype))
    if name is None:
        raise Unsupported(
            f"expected a dtype that checkpoints hold, found {array.dtype} - at `{path}`"
        )
    if processes > 1:
        _refuse_foreign(path, array)
    placement, pieces = _place(path, array, mesh)
    is_on_host = bool(array.is_fully_addressable)
    if is_on_host and processes > 1:
        count = layouts.Grid(array.shape, pieces.piece).length
        pieces = Pieces(pieces.piece, _held_by_all(count, processes))
    _list_shards(array)
    leaf = Leaf(
        path,
        "jax" if impl is None else "key",
        name,
        array.shape,
        placement,
        weak=bool(array.weak_type),
        impl=impl,
    )
    return Source(leaf, pieces, array, is_on_host)


def _refuse_foreign(path: str, array: jax.Array) -> None:
    """Refuse an array on devices of one other process: there it is like a host leaf."""
    if not array.sharding.addressable_devices:
        devices = cast("set[Any]", array.sharding.device_set)
        found = {int(device.process_index) for device in devices}
        if len(found) == 1:
            raise Unsupported(
                "expected an array on devices of several processes, or of this one, "
                f"found one of process {min(found)} alone - at `{path}`: lay it on a "
                "mesh that spans processes, or keep it out of the tree"
            )


def _place(
    path: str, array: jax.Array, mesh: MeshLayout | None
) -> tuple[Placement | None, Pieces]:
    sharding, shape = array.sharding, array.shape
    if isinstance(sharding, SingleDeviceSharding):
        found = _replicated(mesh, len(shape))
        kind = _memory(sharding.memory_kind)
        if kind is not None:
            found = replace(found or Placement(None, None), memory=kind)
        return found, Pieces(shape, None)
    if isinstance(sharding, NamedSharding):
        if getattr(sharding.spec, "unreduced", None):
            raise Unsupported(
                f"expected a reduced array, found {sharding.spec} - at `{path}`: "
                "reduce it (jax.reshard to a spec without `unreduced`) before saving"
            )
        return _place_named(sharding, shape)
    return Placement(None, None, _memory(sharding.memory_kind)), _even(path, array)


@lru_cache(maxsize=4096)
def _place_named(
    sharding: NamedSharding, shape: tuple[int, ...]
) -> tuple[Placement, Pieces]:
    spec = layouts.spec_of(sharding.spec, len(shape))
    laid = layouts.mesh_layout(sharding.mesh)
    placement = Placement(laid, spec, _memory(sharding.memory_kind))
    piece = sharding.shard_shape(shape)
    return placement, Pieces(piece, _find_holders(sharding, shape, piece))


def _find_holders(
    sharding: Any, shape: tuple[int, ...], piece: tuple[int, ...]
) -> layouts.Holders | None:
    """Return which processes hold each piece; None when process 0 is the only one."""
    processes = {device.process_index for device in sharding.device_set}
    if processes == {0}:
        return None
    grid = layouts.Grid(shape, piece)
    if len(processes) == 1 or not grid.length:
        return (tuple(sorted(processes)),) * grid.length
    found: list[set[int]] = [set() for _ in range(grid.length)]
    for device, index in sharding.devices_indices_map(shape).items():
        start = layouts.box_of_index(index, shape).start
        at = tuple(a // p for a, p in zip(start, piece, strict=True))
        found[grid.number(at)].add(device.process_index)
    return tuple(tuple(sorted(held)) for held in found)


def _memory(kind: str | None) -> str | None:
    """Return a memory kind worth recording: not the default, device memory."""
    return None if kind in (None, "device") else kind


def _even(path: str, array: jax.Array) -> Pieces:
    """Return the pieces of a sharding that is not a named one, if they are even."""
    boxes = {
        layouts.box_of_index(index, array.shape)
        for index in array.sharding.devices_indices_map(array.shape).values()
    }
    piece = max(box.shape for box in boxes)
    grid = layouts.Grid(array.shape, piece)
    if {grid.box(grid.coordinates(n)) for n in range(grid.length)} != boxes:
        raise Unsupported(
            f"expected an even sharding, found {array.sharding} - at `{path}`"
        )
    return Pieces(piece, _find_holders(array.sharding, array.shape, piece))
