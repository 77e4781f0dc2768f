"""A fresh process that trains: `python -m ckpt.testing._child SPEC` prints a record."""

from __future__ import annotations

import json
import sys
from typing import Any, cast

import jax

import ckpt

from ..resume._stream import open_stream
from ._named import find_function
from ._record import show_leaves


def main(path: str) -> None:
    """Train as the file says and write the record beside it."""
    with open(path, encoding="utf-8") as file:
        spec = json.load(file)
    sys.path[:0] = [entry for entry in spec["sys_path"] if entry not in sys.path]
    for name, value in spec["config"].items():
        jax.config.update(name, value)
    mesh = _make_mesh(spec["mesh"])
    found: list[Any] = [find_function(where) for where in spec["functions"]]
    step_fn, init = found[:2]
    data: Any = found[2] if len(found) > 2 else None
    steps = spec["steps"]
    if spec["part"] == "whole":
        stream = None if data is None else open_stream(data())
        _write(spec, _train(step_fn, init(), stream, 0, 2 * steps))
        return
    with ckpt.Run(spec["run"], mesh, save=None, signals=()) as run:
        state, stream = run.resume(init(), None if data is None else data())
        begun, state_there = run.step, show_leaves(state)
        kept: list[Any] = []
        seen: list[Any] = []
        for step in run.steps(until=begun + steps):
            state, shown = _step(step_fn, state, stream)
            seen.append(shown)
            run.saved(step, state)
            kept[:] = [state]
    _write(spec, {"seen": seen, "there": state_there, "state": show_leaves(kept[0])})


def _write(spec: dict[str, Any], record: Any) -> None:
    with open(spec["record"], "w", encoding="utf-8") as file:
        json.dump(record, file)


def _train(step_fn: Any, state: Any, stream: Any, first: int, last: int) -> Any:
    seen: list[Any] = []
    half: Any = None
    for step in range(first, last):
        state, shown = _step(step_fn, state, stream)
        seen.append(shown)
        if step + 1 == (first + last) // 2:
            half = show_leaves(state)
    return {"seen": seen, "there": half, "state": show_leaves(state)}


def _step(step_fn: Any, state: Any, stream: Any) -> tuple[Any, dict[str, Any]]:
    batch: Any = None
    if stream is None:
        found: Any = step_fn(state)
    else:
        batch = next(stream)
        found = step_fn(state, batch)
    # A state alone, or with a loss, metrics, whatever else the step returns.
    made = cast("tuple[Any, ...]", found if isinstance(found, tuple) else (found,))
    return made[0], {"batch": show_leaves(batch), "returned": show_leaves(made[1:])}


def _make_mesh(spec: Any) -> Any:
    if spec is None:
        return None
    types = tuple(getattr(jax.sharding.AxisType, name) for name in spec["types"])
    return jax.make_mesh(tuple(spec["sizes"]), tuple(spec["names"]), axis_types=types)


if __name__ == "__main__":
    main(sys.argv[1])
