"""What the members of a job do, each in its own process."""

import contextlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

import ckpt
from tests._harness.jobmain import count_file_bytes
from tests.faults._trees import flat, make_tree as make_host_tree, same_bits
from tests.jobs._trees import (
    KINDS,
    abstract_tree,
    count_bytes,
    count_own_bytes,
    find_wrong,
    make_mesh,
    make_tree,
)

BARRIER_SECONDS = 30.0


def save_kind(
    run: str, kind: str, seed: int, options: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Save the tree of a kind; return what was written here, and a fair share."""
    mesh = make_mesh(kind)
    tree = make_tree(KINDS[kind], mesh, seed)
    jax.block_until_ready([x for x in tree.values() if isinstance(x, jax.Array)])
    wanted: dict[str, Any] = {"step": 1, "barrier_timeout": BARRIER_SECONDS}
    wanted |= options or {}
    before = count_file_bytes()
    done = ckpt.save(tree, mesh, run, **wanted)
    written = count_file_bytes()[1] - before[1]
    if done.step not in ckpt.steps(run):
        raise ValueError(f"expected step {done.step} to be committed")
    return {"written": written, "fair": count_bytes(KINDS[kind]) / jax.process_count()}


def restore_kind(run: str, kind: str, seed: int, how: str = "relay") -> dict[str, Any]:
    """Restore the tree of a kind on this job's mesh; say what is wrong, what was read.

    `relay` takes the saved specs, `replicate` has every array on every device,
    `alone` has each process read for itself.
    """
    cases, mesh = KINDS[kind], make_mesh(kind)
    specs = dict.fromkeys(cases, P()) if how == "replicate" else {}
    options: dict[str, Any] = {"barrier_timeout": BARRIER_SECONDS}
    if how == "replicate":
        options["like"] = abstract_tree(cases, mesh, specs)
    if how == "alone":
        options["broadcast"] = False
    before = count_file_bytes()
    tree = ckpt.restore(run, mesh, **options)
    read = count_file_bytes()[0] - before[0]
    return {
        "wrong": find_wrong(tree, cases, mesh, seed, specs=specs),
        "read": read,
        "own": count_own_bytes(cases, mesh, specs=specs, whole=how == "alone"),
        "whole": count_bytes(cases),
    }


def place_seed(seed: int) -> tuple[Any, Any]:
    """Split the tree of a seed over the devices of the job; return the mesh too."""
    mesh = jax.make_mesh((jax.device_count(),), ("x",))

    def place(values: Any) -> Any:
        even = values.ndim == 2 and values.shape[0] % mesh.size == 0
        sharding = NamedSharding(mesh, P("x") if even else P())
        return jax.make_array_from_callback(
            values.shape, sharding, lambda index: values[index]
        )

    return jax.tree.map(place, make_host_tree(seed, "wide")), mesh


def save_seed(run: str, step: int, seed: int, timeout: float = 30.0) -> None:
    """Save the tree of a seed."""
    state, mesh = place_seed(seed)
    ckpt.save(state, mesh, run, step=step, barrier_timeout=timeout)


def make_frozen(step: int) -> dict[str, Any]:
    """Make a tree of which two arrays are the same at every step."""
    values = np.random.default_rng(3).standard_normal((1024, 1024), np.float32)
    fresh = np.full((1024, 1024), step, np.float32)
    return {"base": values, "all": values[:512] + 1, "adapter": fresh, "step": step}


def save_frozen(run: str, step: int) -> None:
    """Save such a tree, split over the devices of the job, with reuse."""
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    state = make_frozen(step)
    for name in ("base", "adapter", "all"):
        values = state[name]
        sharding = NamedSharding(mesh, P() if name == "all" else P("x"))
        state[name] = jax.make_array_from_callback(
            values.shape, sharding, lambda index, values=values: values[index]
        )
    state["own"] = ckpt.PerProcess(np.full(1 << 19, jax.process_index(), np.float32))
    ckpt.save(state, mesh, run, step=step, reuse=True, barrier_timeout=BARRIER_SECONDS)


def restore_frozen(run: str, step: int) -> list[str]:
    """Restore such a step on the devices of the job, and say what is wrong."""
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    select = ["base", "all", "adapter", "step"]
    expected = make_frozen(step)
    found = ckpt.restore(
        run, mesh, step=step, select=select, barrier_timeout=BARRIER_SECONDS
    )
    return [
        name
        for name in ("base", "all", "adapter")
        for shard in found[name].addressable_shards
        if not same_bits(shard.data, expected[name][shard.index])
    ]


def remesh_seed(seed: int) -> list[str]:
    """Lay the live tree of a seed on a mesh of two axes, and say what is not of it."""
    state, _ = place_seed(seed)
    devices = jax.device_count()
    mesh = jax.make_mesh((2, devices // 2), ("y", "x"))
    found = flat(ckpt.remesh(state, mesh))
    return [
        f"{path} {shard.index}"
        for path, leaf in found.items()
        for shard in leaf.addressable_shards
        if not same_bits(
            shard.data, flat(make_host_tree(seed, "wide"))[path][shard.index]
        )
        or leaf.sharding.mesh != mesh
    ]


def save_seed_async(run: str, step: int, seed: int, timeout: float = 30.0) -> None:
    """Save the tree of a seed in the background, and wait for that."""
    state, mesh = place_seed(seed)
    pending = ckpt.save_async(state, mesh, run, step=step, barrier_timeout=timeout)
    jax.tree.map(lambda leaf: leaf.delete(), state)
    pending.result()


def restore_seed(run: str, step: int, seed: int, timeout: float = 30.0) -> list[str]:
    """Restore a step on the devices of the job, and say what is not of its seed."""
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    found = flat(ckpt.restore(run, mesh, step=step, barrier_timeout=timeout))
    expected = flat(make_host_tree(seed, "wide"))
    if found.keys() != expected.keys():
        return sorted(found.keys() ^ expected.keys())
    return [
        f"{path} {shard.index}"
        for path, leaf in found.items()
        for shard in leaf.addressable_shards
        if not same_bits(shard.data, expected[path][shard.index])
    ]


def save_seed_when_all_are_ready(
    run: str, step: int, seed: int, meeting: str, count: int, mine: str
) -> None:
    """Wait until `count` processes, be they of other jobs, are here; then save."""
    state, mesh = place_seed(seed)
    Path(meeting, mine).touch()
    while len(os.listdir(meeting)) < count:
        time.sleep(0.0005)
    ckpt.save(state, mesh, run, step=step, barrier_timeout=30.0)


def save_seed_and_ignore_errors(run: str, step: int, seed: int, timeout: float) -> None:
    """Unsafe: says that it has saved whatever happened."""
    with contextlib.suppress(ckpt.CkptError):
        save_seed(run, step, seed, timeout)


def save_seed_record_first(run: str, step: int, seed: int, timeout: float) -> None:
    """Unsafe: the step exists before each process has brought its share of data."""
    beside = Path(f"{run}-beside-{step}")
    save_seed(str(beside), step, seed, 30.0)
    me, count = jax.process_index(), jax.process_count()
    name = f"steps/{step}.json"
    if me == 0:
        Path(run, "steps").mkdir(parents=True, exist_ok=True)
        shutil.copy(beside / name, Path(run, name))
    files = sorted(p for p in beside.rglob("*") if p.is_file())
    for file in files[me::count]:
        target = Path(run, file.relative_to(beside))
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            # Process 0 may be removing the note of the save beside.
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(file, target)
    del timeout


def save_seed_after_a_collective(
    run: str, step: int, seed: int, timeout: float
) -> None:
    """Unsafe: waits for the others on the devices, where nobody keeps time."""
    from jax.experimental.multihost_utils import sync_global_devices

    Path(run, f"here-{step}-{jax.process_index()}").mkdir(parents=True)
    sync_global_devices("all")
    save_seed(run, step, seed, timeout)


def save_host(run: str, tree: Any, mine: Any) -> None:
    """Save a host tree in which `mine` belongs to this process."""
    state = {name: _as_leaf(name, value) for name, value in {**tree, **mine}.items()}
    ckpt.save(state, None, run, step=1, barrier_timeout=BARRIER_SECONDS)


def save_step(run: str, step: int) -> None:
    """Save a small tree as a step."""
    tree = {"x": np.arange(3)}
    ckpt.save(tree, None, run, step=step, barrier_timeout=BARRIER_SECONDS)


def _as_leaf(name: str, value: Any) -> Any:
    if name.startswith("numpy"):
        return np.asarray(value)
    if name.startswith("single"):
        return jax.device_put(np.asarray(value, np.float32), jax.local_devices()[0])
    return value


def save_own(run: str) -> None:
    """Save what each process has for itself, and one thing they all have."""
    me = jax.process_index()
    own = {"row": 100 + me, "order": np.arange(me + 1) * 10}
    state = {"own": ckpt.PerProcess(own), "all": np.arange(3)}
    ckpt.save(state, None, run, step=1, barrier_timeout=BARRIER_SECONDS)


def restore_own(run: str) -> dict[str, Any]:
    """Restore what `save_own` saved; say what is this process's, and what all have."""
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    own = ckpt.restore(run, mesh, barrier_timeout=BARRIER_SECONDS)["own"]
    try:
        value = _show_own(own.value)
    except ValueError as error:
        value = str(error)
    return {"value": value, "values": [_show_own(one) for one in own.values]}


def _show_own(value: Any) -> Any:
    return [
        None if leaf is ckpt.ABSENT else np.asarray(leaf).tolist()
        for leaf in (value["row"], value["order"])
    ]


def round_trip_in_context(
    run: str, kind: str, ambient: str, explicit: bool
) -> list[str]:
    """Save and restore under a mesh that is set around both; say what is wrong."""
    mesh, cases = make_mesh(kind, explicit=explicit), KINDS[kind]
    tree = make_tree(cases, mesh, 3)
    with contextlib.nullcontext() if not ambient else _ambient(ambient)(mesh):
        ckpt.save(tree, mesh, run, step=1, barrier_timeout=BARRIER_SECONDS)
        found = ckpt.restore(run, mesh, barrier_timeout=BARRIER_SECONDS)
    return find_wrong(found, cases, mesh, 3)


def _ambient(name: str) -> Any:
    return jax.set_mesh if name == "set_mesh" else getattr(jax.sharding, name)


def check_trees(kinds: Sequence[str]) -> dict[str, list[str]]:
    """Compare trees as made, and as made of another seed."""
    found: dict[str, list[str]] = {}
    for kind in kinds:
        mesh = make_mesh(kind)
        tree = make_tree(KINDS[kind], mesh, 1)
        found[kind] = find_wrong(tree, KINDS[kind], mesh, 1)
        found[f"{kind}, other"] = find_wrong(tree, KINDS[kind], mesh, 2)
    return found
