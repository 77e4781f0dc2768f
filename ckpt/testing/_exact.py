"""Whether training that is resumed equals training that never stopped, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from ._named import name_function
from ._record import find_difference

_OPTIONS = (
    "jax_enable_x64",
    "jax_threefry_partitionable",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_num_cpu_devices",
    "jax_platforms",
    "jax_compilation_cache_dir",
)


def assert_resume_exact(
    step_fn: Callable[..., Any],
    init: Callable[[], Any],
    data: Callable[[], Any] | None = None,
    *,
    steps: int = 5,
    mesh: Any = None,
    timeout: float = 600.0,
) -> None:
    """Assert that 2n steps equal n steps, a save, a fresh process, and n steps more.

    `step_fn(state, batch)` returns the next state, alone or in a tuple with what else
    is to be compared (the loss, say); `init()` makes the state, `data()` what `Run`
    takes as data (without it, `step_fn(state)`). All three must be found by a fresh
    process: functions at the top of a module. Three processes train, one after the
    other, so it takes seconds at least; on as many devices as this one is configured
    for. They run your modules' top-level code. `mesh` is made anew there.

    AssertionError names what differs first: the restored state, a batch, what a step
    returned, or a leaf of the final state; RuntimeError when training fails.

    >>> from ckpt.testing import assert_resume_exact
    >>> assert_resume_exact(step, init, data, steps=3)  # doctest: +SKIP
    """
    if steps < 1:
        raise ValueError(f"expected steps >= 1, found {steps}")
    named = [
        name_function(step_fn, "step_fn"),
        name_function(init, "init"),
        *([] if data is None else [name_function(data, "data")]),
    ]
    with tempfile.TemporaryDirectory(prefix="ckpt-resume-") as folder:
        spec = {
            "functions": named,
            "steps": steps,
            "run": os.path.join(folder, "run"),
            "mesh": _describe_mesh(mesh),
            "sys_path": [os.path.abspath(entry) for entry in sys.path],
            "config": _read_config(),
        }
        whole, part, resumed = (
            _train(spec, name, folder, timeout) for name in ("whole", "part", "resumed")
        )
    compare_records(whole, part, resumed, steps)


def _read_config() -> dict[str, Any]:
    found = {name: getattr(jax.config, name, None) for name in _OPTIONS}
    return {name: value for name, value in found.items() if value is not None}


def _describe_mesh(mesh: Any) -> dict[str, Any] | None:
    if mesh is None:
        return None
    return {
        "sizes": list(mesh.axis_sizes),
        "names": list(mesh.axis_names),
        "types": [kind.name for kind in mesh.axis_types],
    }


def _train(
    spec: dict[str, Any], part: str, folder: str, timeout: float
) -> dict[str, Any]:
    file, record = Path(folder, f"{part}.json"), Path(folder, f"{part}.record")
    file.write_text(json.dumps(spec | {"part": part, "record": str(record)}))
    child = subprocess.run(
        [sys.executable, "-m", "ckpt.testing._child", str(file)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(spec["sys_path"])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if child.returncode or not record.exists():
        raise RuntimeError(
            f"expected the {part} training to end, found exit code "
            f"{child.returncode}:\n{child.stderr[-4000:]}"
        )
    return json.loads(record.read_text())


def compare_records(
    whole: dict[str, Any], part: dict[str, Any], resumed: dict[str, Any], steps: int
) -> None:
    """Raise AssertionError where the records of the three processes part."""
    _expect_equal(
        "two trainings from the start to be equal",
        "training itself is not repeatable: look for a source of randomness without a "
        "seed, or an operation that is not deterministic",
        *_by_step(whole["seen"][:steps], part["seen"], 1),
    )
    _expect_equal(
        f"the state restored at step {steps} to be the one saved",
        "the step function or init changes what it is given",
        whole["there"],
        resumed["there"],
    )
    _expect_equal(
        "training to go on as if it had not stopped",
        "what decides it is not in the state, nor in the data's position: a counter, a "
        "generator or a buffer that lives outside",
        *_by_step(whole["seen"][steps:], resumed["seen"], steps + 1),
    )
    _expect_equal(
        f"the state after step {2 * steps} to be that of training without a stop",
        "what decides it is not in the state",
        whole["state"],
        resumed["state"],
    )


def _by_step(
    expected: Sequence[Any], found: Sequence[Any], first: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the records of steps as leaves, batches before what was returned."""

    def spread(seen: Sequence[Any]) -> dict[str, str]:
        return {
            f"step {first + n}: {what}{'/' + path if path else ''}": shown
            for n, step in enumerate(seen)
            for what in ("batch", "returned")
            for path, shown in step[what].items()
        }

    return spread(expected), spread(found)


def _expect_equal(
    what: str, why: str, expected: dict[str, str], found: dict[str, str]
) -> None:
    difference = find_difference(expected, found)
    if difference is not None:
        path, one, other = difference
        raise AssertionError(
            f"expected {what}, found {other} in the place of {one} - at `{path}`: {why}"
        )
