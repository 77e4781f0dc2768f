"""`python -m benchmarks.formats`: safetensors read and written, beside the peers.

Sets of shards are loaded onto eight devices, and trees are written; all contenders take
turns in one process, in another order each round. Ratios are of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

import ckpt
from benchmarks._media import find_medium, settle_medium
from benchmarks._ratios import format_ratios

SHARDS, WIDTH = 4, 4096


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.formats", description=__doc__
    )
    parser.add_argument("--mib", type=int, default=1024, help="of the set")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--media", nargs="+", default=["tmpfs", "disk"])
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args(arguments)
    jax.config.update("jax_num_cpu_devices", 8)
    folders = {"tmpfs": Path("/dev/shm"), "disk": options.disk}
    found: dict[str, dict[str, list[float]]] = {}
    for medium in options.media:
        with tempfile.TemporaryDirectory(dir=folders[medium]) as folder:
            found[medium] = _measure(Path(folder), medium, options)
    text = "\n".join(x for m, times in found.items() for x in format_ratios(m, times))
    print(json.dumps(found) if options.json else text)
    return 0


def _measure(folder: Path, name: str, options: Any) -> dict[str, list[float]]:
    medium = find_medium(name, folder=folder, pause=0.0)
    rows = options.mib * (1 << 20) // (2 * WIDTH) // 16
    rng = np.random.default_rng(0)
    tree = {
        f"layers.{n}.weight": rng.integers(0, 1 << 16, (rows, WIDTH), np.uint16)
        for n in range(16)
    }
    tree = {path: values.view(jax.numpy.bfloat16) for path, values in tree.items()}
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    ways = {"rows": P(("data", "model"), None), "grid": P("data", "model")}
    source = folder / "set"
    _write_set(source, tree)
    times: dict[str, list[float]] = {}
    work: dict[str, Callable[[], Any]] = {}
    for way, spec in ways.items():
        sharding = NamedSharding(mesh, spec)
        for reader, load in _READERS.items():
            work[f"load {way}: {reader}"] = _bind(load, source, sharding)
    for writer, write in _WRITERS.items():
        work[f"write: {writer}"] = _bind_write(write, folder / "out", tree)
    chosen = random.Random(0)
    for number in range(options.rounds + 1):
        names = list(work)
        chosen.shuffle(names)
        for turn in names:
            shutil.rmtree(folder / "out", ignore_errors=True)
            settle_medium(medium)
            begun = time.perf_counter()
            made = work[turn]()
            seconds = time.perf_counter() - begun
            if number == 0:
                _check(turn, made, tree)
            else:
                times.setdefault(turn, []).append(seconds)
            del made
    return times


def _write_set(source: Path, tree: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    source.mkdir()
    names = list(tree)
    weight_map: dict[str, str] = {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        part = names[shard::SHARDS]
        save_file({n: tree[n] for n in part}, source / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(x.nbytes for x in tree.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))


def _bind(load: Any, source: Path, sharding: Any) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(load(source, sharding))


def _bind_write(write: Any, out: Path, tree: Any) -> Callable[[], Any]:
    def work() -> Path:
        write(out, tree)
        return out

    return work


def _load_ckpt(source: Path, sharding: Any) -> Any:
    return ckpt.restore(source, sharding.mesh, specs={"**": sharding.spec})


def _load_whole(source: Path, sharding: Any) -> Any:
    """Tensor by tensor to the host, then onto the devices."""
    from safetensors import safe_open

    made: dict[str, Any] = {}
    for file in sorted(source.glob("*.safetensors")):
        with safe_open(file, framework="flax") as opened:
            for name in opened.keys():  # noqa: SIM118
                made[name] = jax.device_put(opened.get_tensor(name), sharding)
    return made


def _load_slices(source: Path, sharding: Any) -> Any:
    """Only the slice that each device has."""
    from safetensors import safe_open

    made: dict[str, Any] = {}
    for file in sorted(source.glob("*.safetensors")):
        with safe_open(file, framework="np") as opened:
            for name in opened.keys():  # noqa: SIM118
                part = opened.get_slice(name)
                made[name] = jax.make_array_from_callback(
                    tuple(part.get_shape()), sharding, lambda at, part=part: part[at]
                )
                made[name].block_until_ready()
    return made


def _write_ckpt(out: Path, tree: Any) -> None:
    ckpt.save_safetensors(tree, out)


def _write_ckpt_shards(out: Path, tree: Any) -> None:
    size = sum(x.nbytes for x in tree.values())
    ckpt.save_safetensors(tree, out, max_shard_bytes=-(-size // SHARDS))


def _write_peer(out: Path, tree: Any) -> None:
    from safetensors.numpy import save_file

    out.mkdir()
    save_file(tree, out / "model.safetensors", {"format": "pt"})
    for path in (out / "model.safetensors", out):
        at = os.open(path, os.O_RDONLY)
        os.fsync(at)
        os.close(at)


_READERS = {
    "ckpt": _load_ckpt,
    "safetensors, device_put": _load_whole,
    "safetensors, slices": _load_slices,
}
_WRITERS = {
    "ckpt": _write_ckpt,
    "ckpt, 4 shards": _write_ckpt_shards,
    "save_file, fsync": _write_peer,
}


def _check(turn: str, made: Any, tree: dict[str, Any]) -> None:
    if isinstance(made, Path):
        made = ckpt.restore(made)
    for name, values in tree.items():
        if np.asarray(made[name]).tobytes() != values.tobytes():
            sys.exit(f"expected {name} as it was written, found another - {turn}")


if __name__ == "__main__":
    sys.exit(main())
