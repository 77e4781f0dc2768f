"""A training job of real processes, which members of a job run.

What happens is written line by line to a file of each process, so that what a killed
one did is known too.
"""

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import ckpt
from ckpt.testing._record import show_leaves
from tests.resume._pipelines import SOURCES, make_features, read_indices
from tests.resume._styles import STYLES


def train(spec: dict[str, Any]) -> dict[str, Any]:
    """Train as `spec` says; return how it ended and a text for each leaf of the state.

    `die_at` kills the process once it has trained that step and the last save that was
    due is committed.
    """
    me, count = jax.process_index(), jax.process_count()
    style = STYLES[spec["style"]]
    mesh = make_mesh()
    data: Any = SOURCES[spec["source"]](me, count)
    out: dict[str, Any] = {"exit": 0}
    policy = make_policy(spec["every"], spec.get("seconds"))
    options = spec.get("options", {})
    step, state = 0, None
    with Path(f"{spec['log']}.{me}").open("a") as log:
        try:
            with ckpt.Run(spec["run"], mesh, save=policy, **options) as run:
                given = None if spec.get("forgets") else data
                state, stream = run.resume(style.init(mesh), given)
                data = iter(data) if stream is None else stream
                out["begun"], out["there"] = run.step, show_state(state)
                for step in run.steps(until=spec["until"]):
                    indices = read_indices(next(data))
                    state, loss = style.step(state, lay(mesh, indices))
                    line = [step, float(loss).hex(), indices.tolist()]
                    log.write(json.dumps(line) + "\n")
                    log.flush()
                    if step == spec.get("raise_at"):
                        raise ArithmeticError(f"step {step} fails")
                    run.saved(step, state, metrics={"loss": loss})
                    time.sleep(spec.get("pause", 0.0))
                    if step == spec.get("die_at"):
                        wait_for_steps(spec["run"], spec["every"])
                        os.kill(os.getpid(), signal.SIGKILL)
        except SystemExit as error:
            out["exit"] = error.code
    return out | {"step": step, "state": show_state(state)}


def make_policy(steps: int | None, seconds: float | None) -> Any:
    """Return when to save; None where neither is given."""
    if steps is None and seconds is None:
        return None
    return ckpt.every(steps=steps, seconds=seconds)


def wait_for_steps(run: str, step: int) -> None:
    """Wait until a step is committed."""
    for _ in range(1000):
        if step in ckpt.steps(run):
            return
        time.sleep(0.01)
    raise TimeoutError(f"step {step} of {run}")


def make_mesh() -> Any:
    types = (AxisType.Auto,)
    return jax.make_mesh((jax.device_count(),), ("data",), axis_types=types)


def lay(mesh: Any, indices: np.ndarray) -> Any:
    """Return the batch of all hosts, this one's rows being those of the indices."""
    sharding = NamedSharding(mesh, P("data"))
    made = jax.make_array_from_process_local_data
    return {
        name: made(sharding, value) for name, value in make_features(indices).items()
    }


def show_state(state: Any) -> dict[str, str]:
    """Return a text for each leaf, those of replicated arrays of a job too."""

    def local(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return np.asarray(leaf.addressable_data(0))

    return show_leaves(jax.tree.map(local, state))


def read_log(log: str, member: int) -> list[tuple[int, str, list[int]]]:
    """Return (step, loss, samples) of all steps that a process wrote."""
    found: list[tuple[int, str, list[int]]] = []
    with suppress(FileNotFoundError):
        for line in Path(f"{log}.{member}").read_text().splitlines():
            with suppress(ValueError):
                found.append(tuple(json.loads(line)))
    return found
