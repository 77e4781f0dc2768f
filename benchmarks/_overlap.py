"""Times a save in the background, and the training steps beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks._train import Step

# The operations that are judged.
COPY = "plain copy"
RETURN = "save_async returns"
ALONE = "step alone"
BESIDE = "step beside save"
LOST = "lost in 20 steps"
STALLED = "return + lost in 20"

STEPS = 20
_SETTLING_STEPS = 3

Wait = Callable[[], object]
Begin = Callable[[Any, Path], Wait]


class Trainer:
    """A state that is trained on; each step donates the one before."""

    def __init__(self, state: Any, tokens: jax.Array, *, step: Step) -> None:
        self.state = state
        self._tokens = tokens
        self._step = step

    def train(self, count: int) -> list[float]:
        """The seconds of each of `count` steps."""
        seconds: list[float] = []
        for _ in range(count):
            start = time.perf_counter()
            self.state, loss = self._step(self.state, self._tokens)
            # A loop that logs its loss waits for each step, as this one does.
            loss.block_until_ready()
            seconds.append(time.perf_counter() - start)
        return seconds


def measure_overlap(
    trainer: Trainer, folder: Path, *, begin: Begin, ready: Callable[[], None]
) -> dict[str, float]:
    """The seconds of each operation of one round.

    The steps without a save are taken before and after the save, in equal parts, so
    that a machine that slows down meanwhile weighs on both. `begin` starts a save of
    a state and returns what waits for its end; `ready` waits for the whole job.
    """
    trainer.train(_SETTLING_STEPS)
    ready()
    without = trainer.train(STEPS // 2)
    jax.block_until_ready(trainer.state)
    copied = _time(lambda: copy_owned(trainer.state))
    trainer.train(_SETTLING_STEPS)
    jax.block_until_ready(trainer.state)
    ready()

    start = time.perf_counter()
    wait = begin(trainer.state, folder)
    returned = time.perf_counter() - start
    ended: list[float] = []
    failed: list[BaseException] = []

    def note_end() -> None:
        try:
            wait()
        except BaseException as error:
            failed.append(error)
        ended.append(time.perf_counter() - start)

    waiter = threading.Thread(target=note_end)
    waiter.start()
    beside = trainer.train(STEPS)
    after = trainer.train(STEPS)
    waiter.join()
    if failed:
        raise failed[0]
    trainer.train(_SETTLING_STEPS)
    ready()
    without += trainer.train(STEPS // 2)

    alone = sum(without) / len(without)
    return {
        COPY: copied,
        RETURN: returned,
        ALONE: alone,
        BESIDE: sum(beside) / STEPS,
        "slowest step": max(beside),
        LOST: sum(beside) - STEPS * alone,
        "lost in 40 steps": sum(beside) + sum(after) - 2 * STEPS * alone,
        STALLED: returned + sum(beside) - STEPS * alone,
        "durable after": ended[0],
    }


def copy_owned(state: Any) -> list[np.ndarray]:
    """A plain copy in host memory of every shard that this process owns."""
    return [
        np.array(shard.data)
        for leaf in jax.tree.leaves(state)
        for shard in leaf.addressable_shards
        if shard.replica_id == 0
    ]


def _time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    kept = call()
    seconds = time.perf_counter() - start
    del kept
    return seconds
