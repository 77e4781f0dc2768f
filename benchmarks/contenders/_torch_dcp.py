"""PyTorch's distributed checkpoint, fed from and back into JAX arrays.

Values cross through host memory as bytes, since torch has no JAX tensors.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

from benchmarks._compare import gather_host
from benchmarks.contenders._flat import flatten_names, unflatten_names


def save(state: Any, folder: Path) -> None:
    tensors = {
        name: _to_tensor(gather_host(leaf))
        for name, leaf in flatten_names(state).items()
    }
    writer = FileSystemWriter(folder, thread_count=os.cpu_count() or 1, sync_files=True)
    dcp.save(tensors, storage_writer=writer, no_dist=True)


def restore(folder: Path, abstract: Any) -> Any:
    named = flatten_names(abstract)
    hosts = {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in named.items()}
    tensors = {name: _to_tensor(host) for name, host in hosts.items()}
    dcp.load(tensors, storage_reader=FileSystemReader(folder), no_dist=True)
    placed = {
        name: jax.device_put(hosts[name], leaf.sharding) for name, leaf in named.items()
    }
    return unflatten_names(jax.block_until_ready(placed), like=abstract)


def metadata(folder: Path) -> Any:
    return FileSystemReader(folder).read_metadata()


def _to_tensor(values: np.ndarray) -> torch.Tensor:
    """A tensor over the same memory; numpy's bfloat16 crosses as its bits."""
    if values.dtype.name == "bfloat16":
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)
