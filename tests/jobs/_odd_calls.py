"""What members of a job do that is odd, wrong, or not the same everywhere."""

import os
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import ckpt
from ckpt import _assemble, _attempt

SECONDS = 4.0
SMALL, LARGE = 64, 1 << 16
"""Rows of a leaf that is exchanged, and of one that XLA spreads."""


def make_values(seed: int, rows: int) -> Any:
    """Return the values of a leaf as numpy."""
    return np.random.default_rng(seed).standard_normal((rows, 16)).astype(np.float32)


def whole_mesh() -> Mesh:
    """Return a mesh of all devices."""
    return jax.make_mesh((jax.device_count(),), ("x",))


def place(values: Any, mesh: Mesh, spec: P) -> Any:
    """Lay values on a mesh."""
    return jax.make_array_from_callback(
        values.shape,
        NamedSharding(mesh, spec),
        lambda index: values[index],
        dtype=values.dtype,
    )


def is_right(leaf: Any, values: Any) -> bool:
    """Compare this process's shards with the values, bit for bit."""
    return leaf.dtype == values.dtype and all(
        np.asarray(shard.data).tobytes() == values[shard.index].tobytes()
        for shard in leaf.addressable_shards
    )


def save_two(run: str, rows: int) -> None:
    """Save two sharded leaves of one shape."""
    mesh = whole_mesh()
    state = {k: place(make_values(n, rows), mesh, P("x")) for n, k in enumerate("ab")}
    ckpt.save(state, mesh, run, barrier_timeout=SECONDS)


def restore_some(
    run: str, rows: int, names: Sequence[str], options: dict[str, Any] | None = None
) -> list[bool]:
    """Restore some of two leaves on all devices; say which are right."""
    wanted: dict[str, Any] = {"barrier_timeout": SECONDS, "select": list(names)}
    wanted |= {"specs": lambda path, shape, spec: P()} | (options or {})
    found = ckpt.restore(run, whole_mesh(), **wanted)
    return [is_right(found[k], make_values("ab".index(k), rows)) for k in names]


def exchange_interrupted(run: str, rows: int) -> list[bool]:
    """Restore; process 1 is interrupted when all have agreed to exchange."""
    move = _assemble.gather_bytes

    def interrupt(number: int, _: Any) -> None:
        raise KeyboardInterrupt(number)

    def gather(mine: Any) -> Any:
        if jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(0.5)
        return move(mine)

    signal.signal(signal.SIGUSR2, interrupt)
    with patch.object(_assemble, "gather_bytes", gather):
        return restore_some(run, rows, "ab")


def restore_in_threads(run: str, rows: int) -> list[bool]:
    """Restore each leaf in threads of their own; what raises is no wrong value."""
    found: list[bool] = []

    def restore(name: str) -> None:
        try:
            found.extend(restore_some(run, rows, [name]))
        except (ckpt.CkptError, ValueError):
            found.append(True)

    threads = [threading.Thread(target=restore, args=(k,)) for k in "abab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def save_as(run: str, dtype: str, form: str) -> None:
    """Save a leaf whose dtype this process chooses."""
    values, mesh = np.arange(48).reshape(12, 4).astype(dtype), whole_mesh()
    if form == "zeros":
        leaf: Any = np.zeros((3,), dtype)
    else:
        leaf = place(values, mesh, P("x"))
    ckpt.save({"leaf": leaf}, mesh, run, barrier_timeout=SECONDS)


def save_own_arrays_twice(run: str) -> list[int]:
    """Save, restore and save again what a process has on its own devices."""
    mesh, me = whole_mesh(), jax.process_index()
    own = {"key": jax.random.key(me), "row": jax.numpy.arange(3) + me}
    for state in ({"own": ckpt.PerProcess(own)}, None):
        state = state or ckpt.restore(run, mesh, barrier_timeout=SECONDS)
        ckpt.save(state, mesh, run, barrier_timeout=SECONDS)
    found = ckpt.restore(run, mesh, barrier_timeout=SECONDS)["own"].value
    return np.asarray(found["row"].addressable_data(0)).tolist()


def restore_own_like(run: str) -> list[bool]:
    """Say which values of a PerProcess are ckpt.ABSENT when `like` is given."""
    mesh, state = whole_mesh(), {"own": ckpt.PerProcess(np.arange(3))}
    ckpt.save(state, mesh, run, barrier_timeout=SECONDS)
    found = ckpt.restore(run, mesh, like=state, barrier_timeout=SECONDS)
    return [value is ckpt.ABSENT for value in found["own"].values]


def restore_on(run: str, rows: int, processes: Sequence[int]) -> list[bool]:
    """Restore on the devices of some processes alone."""
    chosen = [d for d in jax.devices() if d.process_index in processes]
    mesh = Mesh(np.array(chosen), ("x",))
    found = ckpt.restore(run, mesh, barrier_timeout=SECONDS)
    return [is_right(found[k], make_values(n, rows)) for n, k in enumerate("ab")]


def restore_like_on(run: str, rows: int, process: int) -> bool:
    """Restore by shardings on the devices of one process alone."""
    chosen = [d for d in jax.devices() if d.process_index == process]
    sharding = NamedSharding(Mesh(np.array(chosen), ("x",)), P())
    leaf = jax.ShapeDtypeStruct((rows, 16), np.float32, sharding=sharding)
    found = ckpt.restore(run, like={"a": leaf, "b": leaf}, barrier_timeout=SECONDS)
    return is_right(found["a"], make_values(0, rows))


def restore_interrupted(run: str, who: int) -> list[bool]:
    """Restore; one process is interrupted while it waits for the others."""
    interrupted = jax.process_index() == who
    if interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident or 0
    if interrupted:
        threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
    else:
        threading.Event().wait(1.5)
    return restore_some(run, SMALL, ["a"])


def save_foreign(run: str) -> None:
    """Save an array on the devices of process 1, which process 0 knows as well."""
    mesh = Mesh(np.array(jax.devices()[-1:]), ("x",))
    ckpt.save({"w": place(make_values(1, 8), mesh, P())}, None, run, step=1)


def save_interrupted_after_the_commit(run: str) -> None:
    """Save; process 0 is interrupted when the record is there already."""
    commit = _attempt.commit_record

    def interrupted(*arguments: Any, **options: Any) -> None:
        commit(*arguments, **options)
        raise KeyboardInterrupt

    mesh = whole_mesh()
    state = {"w": place(make_values(1, SMALL), mesh, P("x"))}
    with patch.object(_attempt, "commit_record", interrupted):
        ckpt.save(state, mesh, run, step=1, barrier_timeout=SECONDS)


def save_own_and_plan(run: str) -> list[Any]:
    """Save what each process has for itself; plan, as two processes and as one."""
    state = {"own": ckpt.PerProcess(make_values(jax.process_index(), SMALL))}
    ckpt.save(state, None, run, step=1, barrier_timeout=SECONDS)
    both = ckpt.plan(run, {"x": 2}, processes=2)
    return [[p.wanted for p in both.processes], ckpt.plan(run).bytes]


def resume_lone(run: str) -> list[bool]:
    """Begin a run with what each process made on a device of its own."""
    lone = jax.device_put(jax.numpy.arange(3.0), jax.local_devices()[0])
    init = {"key": jax.random.key(7), "lone": lone, "loose": jax.numpy.ones(3)}
    with ckpt.Run(run, whole_mesh(), save=None) as train:
        state, _ = train.resume(init)
        for step in train.steps(until=1):
            train.saved(step, state)
    data = jax.random.key_data(init["key"])
    return [
        is_right(jax.random.key_data(state["key"]), np.asarray(data)),
        is_right(state["lone"], np.arange(3, dtype=np.float32)),
        *(
            len(leaf.sharding.device_set) == jax.device_count()
            for leaf in state.values()
        ),
    ]
