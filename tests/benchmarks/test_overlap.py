from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks._overlap import (
    ALONE,
    COPY,
    RETURN,
    STALLED,
    STEPS,
    Trainer,
    copy_owned,
    measure_overlap,
)
from benchmarks._train import Step, build_step, build_tokens
from benchmarks._trees import (
    QUICK,
    Placement,
    abstract_state,
    build_state,
    draw_weights,
    logical_bytes,
    shape_tree,
)

EIGHT = Placement((("model", 8),), (None, "model"))
ONE = Placement((("model", 1),), (None, "model"))


def test_eight_devices_train_as_one_does() -> None:
    single, split = (_train(placement, steps=3) for placement in (ONE, EIGHT))
    for want, found in zip(single, split, strict=True):
        assert np.allclose(np.asarray(want), np.asarray(found), rtol=1e-3, atol=2e-5)


def test_training_lowers_the_loss_donates_the_state_and_keeps_its_shardings() -> None:
    trainer_step, state, tokens = _prepare(EIGHT)
    shardings = [x.sharding for x in jax.tree.leaves(state)]
    losses: list[float] = []
    for _ in range(4):
        before = state
        state, loss = trainer_step(state, tokens)
        losses.append(float(loss))
        assert all(x.is_deleted() for x in jax.tree.leaves(before))
    assert losses == sorted(losses, reverse=True)
    assert int(state["step"]) - int(_prepare(EIGHT)[1]["step"]) == 4
    for was, leaf in zip(shardings, jax.tree.leaves(state), strict=True):
        assert leaf.sharding.is_equivalent_to(was, leaf.ndim)


def test_a_copy_of_what_is_owned_has_every_value_once() -> None:
    _, state, _ = _prepare(EIGHT)
    copies = copy_owned(state)
    expected = logical_bytes(shape_tree("step", scale=QUICK))
    assert sum(x.nbytes for x in copies) == expected
    assert all(x.flags.owndata for x in copies)


def test_an_overlap_counts_the_return_apart_from_the_steps(tmp_path: Path) -> None:
    step, state, tokens = _prepare(EIGHT)
    trainer = Trainer(state, tokens, step=step)
    started: list[int] = []

    def begin(state: Any, folder: Path) -> Callable[[], object]:
        started.append(int(state["step"]))
        assert folder == tmp_path
        time.sleep(0.05)
        return lambda: None

    first = int(state["step"])
    found = measure_overlap(trainer, tmp_path, begin=begin, ready=lambda: None)
    assert found[RETURN] >= 0.05
    assert found["durable after"] >= found[RETURN]
    assert found[STALLED] >= found[RETURN] - STEPS * found[ALONE]
    assert found[COPY] > 0
    # Three steps settle, ten are timed, three settle again; then the save begins.
    assert started == [first + 16]
    assert int(trainer.state["step"]) == first + 16 + 2 * STEPS + 3 + 10


def test_a_save_that_fails_in_the_background_is_raised(tmp_path: Path) -> None:
    step, state, tokens = _prepare(EIGHT)

    def fail() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        measure_overlap(
            Trainer(state, tokens, step=step),
            tmp_path,
            begin=lambda state, folder: fail,
            ready=lambda: None,
        )


def _prepare(placement: Placement) -> tuple[Step, Any, jax.Array]:
    abstract = _abstract(placement)
    state = build_state(abstract, draw=draw_weights, seed=0)
    step, tokens = _compile(placement)
    return step, state, tokens


@functools.cache
def _compile(placement: Placement) -> tuple[Step, jax.Array]:
    abstract = _abstract(placement)
    tokens = build_tokens(abstract, placement=placement)
    return build_step(abstract, placement=placement), tokens


def _abstract(placement: Placement) -> Any:
    return abstract_state(shape_tree("step", scale=QUICK), placement=placement)


def _train(placement: Placement, *, steps: int) -> list[Any]:
    step, state, tokens = _prepare(placement)
    for _ in range(steps):
        state, _ = step(state, tokens)
    return jax.tree.leaves(state["params"])
