"""safetensors in one file, gathered on the host and put on the devices.

The library itself neither shards nor syncs: the file and its folder are fsynced here
so that its time is that of a durable checkpoint too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
from safetensors import numpy as st_numpy, safe_open

from benchmarks._compare import gather_host
from benchmarks.contenders._flat import flatten_names, unflatten_names

_FILE = "model.safetensors"


def save(state: Any, folder: Path) -> None:
    folder.mkdir(parents=True)
    arrays = {name: gather_host(leaf) for name, leaf in flatten_names(state).items()}
    st_numpy.save_file(arrays, folder / _FILE)
    for path in (folder / _FILE, folder, folder.parent):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def restore(folder: Path, abstract: Any) -> Any:
    placed: dict[str, jax.Array] = {}
    with safe_open(folder / _FILE, framework="np") as file:
        for name, leaf in flatten_names(abstract).items():
            placed[name] = jax.device_put(file.get_tensor(name), leaf.sharding)
    return unflatten_names(jax.block_until_ready(placed), like=abstract)


def metadata(folder: Path) -> Any:
    with safe_open(folder / _FILE, framework="np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {name: (x.get_shape(), x.get_dtype()) for name, x in slices.items()}
