"""The least a checkpoint could do: one file for each device shard, and no format.

As many threads as cores write and fsync, or read into the buffers that become the
arrays. No structure, no checksum, no other mesh: a bound, not a library.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

# The alignment at which JAX takes a host buffer over without a copy.
_ALIGNMENT = 64


def save(state: Any, folder: Path) -> None:
    folder.mkdir(parents=True)
    jobs = [
        (folder / _name(i, shard.index), shard.data)
        for i, leaf in enumerate(jax.tree.leaves(state))
        for shard in leaf.addressable_shards
        if shard.replica_id == 0
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: _write(*job), jobs))
    for path in (folder, folder.parent):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def restore(folder: Path, abstract: Any) -> Any:
    leaves, structure = jax.tree.flatten(abstract)
    jobs: dict[Path, tuple[tuple[int, ...], np.dtype]] = {}
    for i, leaf in enumerate(leaves):
        shape = leaf.sharding.shard_shape(leaf.shape)
        for index in leaf.sharding.addressable_devices_indices_map(leaf.shape).values():
            jobs[folder / _name(i, index)] = (shape, np.dtype(leaf.dtype))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        values = pool.map(lambda job: _read(job[0], *job[1]), jobs.items())
        buffers = dict(zip(jobs, values, strict=True))
    arrays = [_place(buffers, folder, i, leaf) for i, leaf in enumerate(leaves)]
    return jax.block_until_ready(jax.tree.unflatten(structure, arrays))


def _place(
    buffers: dict[Path, np.ndarray], folder: Path, number: int, leaf: Any
) -> jax.Array:
    places = leaf.sharding.addressable_devices_indices_map(leaf.shape)
    found = [buffers[folder / _name(number, index)] for index in places.values()]
    if leaf.sharding.is_fully_replicated:
        # Several times faster for small leaves than a transfer for each replica.
        return jax.device_put(found[0], leaf.sharding)
    pieces = jax.device_put(found, list(places))
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, pieces)


def _name(leaf: int, index: tuple[slice, ...]) -> str:
    starts = "-".join(str(part.start or 0) for part in index)
    return f"{leaf}_{starts}"


def _write(path: Path, data: jax.Array) -> None:
    values = np.asarray(data).reshape(-1).view(np.uint8)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        done = 0
        while done < values.size:
            done += os.write(handle, values.data[done:])
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    buffer = room[start : start + size]
    handle = os.open(path, os.O_RDONLY)
    try:
        done = 0
        while done < size:
            count = os.preadv(handle, [buffer.data[done:]], done)
            if count == 0:
                raise OSError(f"Expected {size} bytes, found {done} in {path}.")
            done += count
    finally:
        os.close(handle)
    return buffer.view(dtype).reshape(shape)
