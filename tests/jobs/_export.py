"""What the members of a job do to write safetensors files together."""

import json
import os
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from safetensors import safe_open
from safetensors.numpy import load_file

import ckpt
from ckpt import save_safetensors
from ckpt._exchange import move_agreed, trade_bytes
from ckpt._job import joined

SPECS: Mapping[str, P] = {
    "rows": P("x"),
    "columns": P(None, "x"),
    "both": P("x", "y"),
    "half": P("y"),
    "all": P(),
    "flat": P(("x", "y")),
}
SHAPE = (240, 480)
NAMES = [*SPECS, *(f"{way}_16" for way in SPECS), "host"]
INDEX = "model.safetensors.index.json"


def values_of(name: str) -> np.ndarray:
    """Return what an array holds, by its name: the same bits in every process."""
    rng = np.random.default_rng(sum(name.encode()))
    bits = rng.integers(0, 1 << 16, SHAPE, np.uint16)
    return bits.view(ml_dtypes.bfloat16) if name.endswith("16") else bits


def make_tree() -> dict[str, Any]:
    """Return arrays laid on all devices in many ways, and some that are on the host."""
    count = jax.device_count()
    mesh = jax.make_mesh((count // 2, 2), ("x", "y"))
    tree: dict[str, Any] = {}
    for way, spec in SPECS.items():
        for name in (way, f"{way}_16"):
            values = values_of(name)
            tree[name] = jax.make_array_from_callback(
                values.shape,
                NamedSharding(mesh, spec),
                lambda index, values=values: values[index],
            )
    tree["host"] = values_of("host")
    tree["empty"] = np.empty((0, 3), np.float32)
    tree["number"] = 7
    tree["tied"] = tree["rows"]
    return tree


def export(out: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Write the tree; return the names, and what this process was told it wrote."""
    told: list[tuple[int, int]] = []
    names = save_safetensors(
        make_tree(),
        out,
        progress=lambda done, total: told.append((done, total)),
        barrier_timeout=30.0,
        **(options or {}),
    )
    return {"names": list(names), "told": told[-1:]}


def export_with(out: str, change: str) -> list[str]:
    """Write a tree that differs in process 1."""
    tree, options = make_tree(), dict[str, Any]()
    if jax.process_index() == 1:
        if change == "host":
            tree["host"] = tree["host"] + 1
        if change == "rename":
            options["rename"] = {"host": "other"}
        if change == "leaf":
            tree["number"] = "text"
        if change == "step":
            options["step"] = 3
    ckpt.save_safetensors(tree, out, barrier_timeout=30.0, **options)
    return sorted(os.listdir(out))


def export_struck(out: str, at: int, careless: bool) -> None:
    """Write the tree; process 1 is killed when it has been told of so many steps."""
    told: list[int] = []
    if careless and jax.process_index() == 0:
        for name in os.listdir(out):
            os.remove(os.path.join(out, name))

    def strike(done: int, _: int) -> None:
        told.append(done)
        if jax.process_index() == 1 and len(told) == at:
            os.kill(os.getpid(), 9)

    ckpt.save_safetensors(
        make_tree(),
        out,
        max_shard_bytes=500_000,
        overwrite=True,
        progress=strike,
        barrier_timeout=5.0,
    )


def export_apart(out: str) -> dict[str, Any]:
    """Write the tree where each process sees a folder of its own."""
    try:
        export(out, {"max_shard_bytes": 500_000})
    except ckpt.CkptError as error:
        return {"error": type(error).__name__, "names": os.listdir(out)}
    return {"error": "", "names": os.listdir(out)}


def trade_interrupted() -> list[int]:
    """Trade bytes once; process 0 is interrupted when all have agreed to."""
    process, told = jax.process_index(), list[str]()

    def interrupt(number: int, _: Any) -> None:
        raise KeyboardInterrupt(number)

    def decide(_: Any) -> None:
        os.kill(os.getpid(), signal.SIGUSR2)

    signal.signal(signal.SIGUSR2, interrupt)
    mine = np.full((jax.process_count(), 1024), process + 1, np.uint8)
    with joined(30.0, in_turn=True) as job:
        try:
            found = move_agreed(
                job, "trade", partial(trade_bytes, mine), post={}, decide=decide
            )
        except KeyboardInterrupt:
            told.append("interrupted")
            found = mine
    assert told == (["interrupted"] if process == 0 else []), told
    assert not isinstance(found, str), found
    return [int(row.max()) for row in found]


def check_set(folder: Path) -> None:
    """Check what safetensors itself reads against what was made."""
    files = sorted(folder.glob("*.safetensors"))
    found: dict[str, Any] = {}
    for path in files:
        found |= load_file(path)
    for name in NAMES:
        made = values_of(name)
        assert found[name].dtype.name == made.dtype.name
        assert found[name].tobytes() == made.tobytes(), name
    assert found["empty"].shape == (0, 3)
    assert found["number"] == 7
    assert sorted(found) == sorted([*NAMES, "empty", "number"])
    if len(files) > 1:
        index = json.loads((folder / INDEX).read_text())
        assert index["metadata"]["tied"] == "rows"
        for path in files:
            with safe_open(path, "numpy") as file:
                names = {n for n, at in index["weight_map"].items() if at == path.name}
                assert set(file.keys()) == names
    assert not [name for name in os.listdir(folder) if name.endswith(".tmp")]
