"""`python -m benchmarks.opens`: checkpoints of many small leaves, opened.

Files of the peers are made once, and opened by turns in another order each round, in
one process: figures are seconds of its processor, and ratios are of medians. Only peers
that are installed take part.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import ckpt
from benchmarks._ratios import format_ratios


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.opens", description=__doc__
    )
    parser.add_argument("--leaves", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = _measure(Path(folder), options)
    print(
        json.dumps(found) if options.json else "\n".join(format_ratios("opened", found))
    )
    return 0


def _measure(folder: Path, options: Any) -> dict[str, list[float]]:
    work: dict[str, Callable[[], Any]] = {}
    for name, (package, make) in _PEERS.items():
        if find_spec(package) is not None:
            path, peer = make(folder, options.leaves)
            found = len(ckpt.open(path))
            if found != options.leaves:
                sys.exit(f"expected {options.leaves} leaves, found {found} - {name}")
            work[f"{name}: ckpt"] = lambda path=path: ckpt.open(path)
            work[f"{name}: {package}"] = peer
    times: dict[str, list[float]] = {turn: [] for turn in work}
    chosen = random.Random(0)
    for number in range(options.rounds + 1):
        for turn in chosen.sample(list(work), len(work)):
            begun = time.process_time()
            made = work[turn]()
            seconds = time.process_time() - begun
            if number:
                times[turn].append(seconds)
            del made
    return times


def _names(leaves: int) -> list[str]:
    return [f"layers.{n // 100}.{n % 100}.weight" for n in range(leaves)]


def _make_torch(folder: Path, leaves: int) -> tuple[Path, Callable[[], Any]]:
    import torch

    path = folder / "state.pt"
    torch.save({name: torch.zeros(4, 2) for name in _names(leaves)}, path)
    return path, lambda: torch.load(path, weights_only=True, mmap=True)


def _make_dcp(folder: Path, leaves: int) -> tuple[Path, Callable[[], Any]]:
    """Tensors that two ranks have a half of each: their values need not be there."""
    import torch
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.filesystem import (
        _StorageInfo,  # pyright: ignore[reportPrivateUsage]
    )
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    path = folder / "dcp"
    path.mkdir()
    properties, length = TensorProperties(torch.float32), 1000
    tensors: dict[str, Any] = {}
    items: dict[Any, Any] = {}
    for n, name in enumerate(_names(leaves)):
        chunks = [
            ChunkStorageMetadata(torch.Size([2 * rank, 0]), torch.Size([2, 2]))
            for rank in range(2)
        ]
        size = torch.Size([4, 2])
        tensors[name] = TensorStorageMetadata(properties, size, chunks)
        for rank, chunk in enumerate(chunks):
            place = _StorageInfo(f"__{rank}_0.distcp", n * length, length)
            items[MetadataIndex(name, chunk.offsets)] = place
    (path / ".metadata").write_bytes(pickle.dumps(Metadata(tensors, None, items)))
    for rank in range(2):
        with (path / f"__{rank}_0.distcp").open("wb") as file:
            file.truncate(leaves * length)
    return path, FileSystemReader(path).read_metadata


def _make_flax(folder: Path, leaves: int) -> tuple[Path, Callable[[], Any]]:
    from flax import serialization

    path = folder / "state.msgpack"
    tree = {name: np.zeros((4, 2), np.float32) for name in _names(leaves)}
    path.write_bytes(serialization.msgpack_serialize(tree))
    return path, lambda: serialization.msgpack_restore(path.read_bytes())


def _make_safetensors(folder: Path, leaves: int) -> tuple[Path, Callable[[], Any]]:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    path = folder / "model.safetensors"
    save_file({name: np.zeros((4, 2), np.float32) for name in _names(leaves)}, path)

    def load() -> list[Any]:
        with safe_open(path, framework="np") as opened:
            return [opened.get_slice(name) for name in opened.keys()]  # noqa: SIM118

    return path, load


_PEERS: dict[str, tuple[str, Any]] = {
    "torch.save": ("torch", _make_torch),
    "DCP": ("torch", _make_dcp),
    "flax": ("flax", _make_flax),
    "safetensors": ("safetensors", _make_safetensors),
}


if __name__ == "__main__":
    sys.exit(main())
