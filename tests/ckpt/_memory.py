"""Saves and restores in a process of its own, and what they add to its memory.

Run as a script: a job and its arguments as JSON; it prints what it found, in MiB.
"""

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P, SingleDeviceSharding

import ckpt

MIB = 1 << 20


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith(field)) / 1024


def _added(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the value, and by how much the peak of the memory passed the start."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    value = work()
    return value, _status("VmHWM") - before


def _matrices(mesh: Any, total: int) -> dict[str, jax.Array]:
    """Return 16 float32 matrices of together `total` MiB, none alike."""
    rows = total * MIB // 16 // 4 // 1024
    sharding = NamedSharding(mesh, P("data", "model"))
    make = jax.jit(
        lambda n: jnp.arange(rows * 1024, dtype=jnp.float32).reshape(rows, 1024) + n,
        out_shardings=sharding,
    )
    return jax.block_until_ready({f"w{n}": make(float(n)) for n in range(16)})


def _warm(run: str, mesh: Any) -> None:
    """Load what the first save and restore load, so that only data counts later."""
    tree = _matrices(mesh, 16)
    ckpt.save(tree, mesh, f"{run}-warm")
    ckpt.restore(f"{run}-warm", mesh)


def save_matrices(run: str, total: int, budget: int | None) -> dict[str, float]:
    """Save the matrices."""
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    _warm(run, mesh)
    tree = _matrices(mesh, total)
    _, added = _added(lambda: ckpt.save(tree, mesh, run, step=1, max_host_bytes=budget))
    return {"added": added}


def restore_matrices(run: str, total: int, budget: int | None) -> dict[str, Any]:
    """Restore the matrices and compare them with what they are made of."""
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    _warm(run, mesh)
    tree, added = _added(lambda: ckpt.restore(run, mesh, max_host_bytes=budget))
    tree = jax.block_until_ready(tree)
    wanted = _matrices(mesh, total)
    equal = all(
        np.array_equal(np.asarray(tree[name]), np.asarray(wanted[name]))
        for name in wanted
    )
    return {"added": added, "equal": equal}


def one_leaf(run: str, total: int, budget: int) -> dict[str, Any]:
    """Save one leaf that is on one device, and restore it there, within a budget."""
    device = SingleDeviceSharding(jax.devices()[0])
    _warm(run, jax.make_mesh((4, 2), ("data", "model")))
    make = jax.jit(
        lambda: jnp.arange(total * MIB // 4, dtype=jnp.float32).reshape(-1, 1024),
        out_shardings=device,
    )
    leaf = jax.block_until_ready(make())
    _, saving = _added(
        lambda: ckpt.save({"w": leaf}, None, run, step=1, max_host_bytes=budget)
    )
    like = {"w": jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device)}
    found, restoring = _added(
        lambda: jax.block_until_ready(
            ckpt.restore(run, like=like, max_host_bytes=budget)
        )
    )
    equal = bool(jnp.array_equal(found["w"], leaf))
    return {"save": saving, "restore": restoring, "equal": equal}


def many_saves(run: str, total: int, count: int) -> dict[str, float]:
    """Save again and again, and return how far the memory ended above save 10."""
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    tree = _matrices(mesh, total)
    after: list[float] = []
    for step in range(count):
        ckpt.save(tree, mesh, run, step=step)
        ckpt.prune(run, keep=ckpt.Keep(last=1))
        gc.collect()
        after.append(_status("VmRSS"))
    return {"grown": max(after[10:]) - after[9]}


if __name__ == "__main__":
    jobs = {
        j.__name__: j for j in (save_matrices, restore_matrices, one_leaf, many_saves)
    }
    print(json.dumps(jobs[sys.argv[1]](*json.loads(sys.argv[2]))))
