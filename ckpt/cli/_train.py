"""One training process of the demo: it trains, saves and resumes; it may be killed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import jax

import ckpt

from ._model import Training, draw_batch, make_mesh, prepare_training


def train(
    training: Training, state: Any, *, first: int, last: int
) -> Iterator[tuple[int, float, Any]]:
    """Yield (step, loss, state) of the steps after `first`, up to `last`."""
    for step in range(first + 1, last + 1):
        state, loss = training.step(state, draw_batch(step, training.mesh))
        yield step, float(loss), state


def resume(training: Training, run: str) -> tuple[int, Any]:
    """Return the newest committed step and its state; step 0 where there is none."""
    step = ckpt.latest(run)
    if step is None:
        return 0, training.begin()
    return step, ckpt.restore(run, training.mesh, step=step, like=training.abstract)


def main(arguments: list[str]) -> None:
    """Train on mesh (4, 2) in RUN up to LAST, a line of JSON a step on stdout."""
    run, last, every = arguments[0], int(arguments[1]), int(arguments[2])
    jax.config.update("jax_num_cpu_devices", 8)
    training = prepare_training(make_mesh(4, 2))
    first, begun = resume(training, run)
    for step, loss, state in train(training, begun, first=first, last=last):
        print(json.dumps([step, loss.hex()]), flush=True)
        if step % every == 0:
            ckpt.save(state, training.mesh, run, step=step, metrics={"loss": loss})


if __name__ == "__main__":
    main(sys.argv[1:])
