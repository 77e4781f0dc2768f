"""A training that counts: what it sees and makes is known without it."""

from pathlib import Path
from typing import Any

import numpy as np

import ckpt
from ckpt.resume import Batches, every


def batch_of(seed: int, step: int) -> int:
    return 1000 * seed + step


def train(path: Path, until: int, **options: Any) -> tuple[Any, list[Any]]:
    """Train a counter on batches; return its state and what it saw."""
    data = options.pop("data", Batches(batch_of, seed=1))
    given = options.pop("resume", {})
    seen: list[Any] = []
    given_options: dict[str, Any] = {"save": every(steps=2), **options}
    with ckpt.Run(path, signals=(), **given_options) as run:
        state, data = run.resume({"sum": np.int64(0)}, data, **given)
        for step in run.steps(until=until):
            batch = next(data)
            seen.append(batch)
            state = {"sum": state["sum"] + np.sum(batch, dtype=np.int64)}
            run.saved(step, state, data, metrics={"sum": state["sum"]})
    return state, seen
