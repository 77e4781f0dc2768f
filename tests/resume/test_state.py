"""States of every kind go on, and what makes one is called no more than it must be."""

import random
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import ckpt


def test_generators_go_on(memory_run: Path) -> None:
    def draw(rngs: dict[str, Any]) -> list[float]:
        found = [rngs["numpy"].random(), rngs["old"].rand(), rngs["python"].random()]
        return [*found, random.random(), np.random.rand()]

    def init() -> dict[str, Any]:
        return {
            "numpy": np.random.Generator(np.random.Philox(3)),
            "old": np.random.RandomState(4),
            "python": random.Random(5),
        }

    np.random.seed(6)
    random.seed(7)
    with ckpt.Run(memory_run, save=None) as run:
        state, _ = run.resume(init())
        for step in run.steps(until=3):
            draw(state)
            run.saved(step, state)
    expected = draw(state)
    np.random.seed(8)
    random.seed(9)
    with ckpt.Run(memory_run, save=None) as run:
        again, _ = run.resume(init())
    assert draw(again) == expected


def test_keys_scales_counters_and_averages_go_on(memory_run: Path) -> None:
    state: Any = {
        "typed": jax.random.split(jax.random.key(0, impl="rbg"), 2),
        "raw": jax.random.PRNGKey(1),
        "scale": jnp.asarray(2.0**15),
        "big": 1 << 90,
        "ema": jnp.ones(3, jnp.bfloat16),
        "best": float("inf"),
        "name": "a",
        "nothing": None,
    }
    with ckpt.Run(memory_run, save=None) as run:
        run.resume(state)
        for step in run.steps(until=1):
            run.saved(step, state)
    with ckpt.Run(memory_run, save=None) as run:
        found, _ = run.resume(state)
    assert jax.random.key_impl(found["typed"]) == jax.random.key_impl(state["typed"])
    np.testing.assert_array_equal(
        jax.random.key_data(found["typed"]), jax.random.key_data(state["typed"])
    )
    assert found["scale"].weak_type
    assert {k: found[k] for k in ("big", "best", "name", "nothing")} == {
        k: state[k] for k in ("big", "best", "name", "nothing")
    }


def test_a_function_makes_the_state_only_where_none_is_saved(memory_run: Path) -> None:
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    made: list[bool] = []

    def init() -> Any:
        made.append(isinstance(jnp.ones(1), Tracer))  # only its shapes?
        return {"w": jnp.arange(8.0), "key": jax.random.key(3)}

    for _ in range(2):
        with ckpt.Run(memory_run, mesh, save=None, signals=()) as run:
            state, _ = run.resume(init)
            for step in run.steps(until=1):
                run.saved(step, state)
        # A fresh state lies as a restored one does.
        assert state["w"].sharding == NamedSharding(mesh, P())
        assert state["key"].sharding.is_fully_replicated
    assert made.count(False) == 1


def test_a_function_is_called_once_without_a_mesh_too(memory_run: Path) -> None:
    made: list[bool] = []

    def init() -> Any:
        made.append(isinstance(jnp.ones(1), Tracer))
        return {"w": jnp.arange(8.0), "scale": jnp.asarray(0.5)}

    for _ in range(2):
        with ckpt.Run(memory_run, save=None, signals=()) as run:
            state, _ = run.resume(init)
            for step in run.steps(until=1):
                run.saved(step, state)
        assert isinstance(state["w"], jax.Array)
        assert state["w"].sharding == jnp.arange(8.0).sharding
        assert state["scale"].weak_type
    assert made.count(False) == 1


@pytest.mark.parametrize(
    "state", [{}, np.float32(3), {"a/b": {"": 1, "c*": [None, ()]}}, [{"..": 1.5}]]
)
def test_odd_trees_go_on(memory_run: Path, state: Any) -> None:
    for until in (1, 2):
        with ckpt.Run(memory_run, save=None, signals=()) as run:
            found, _ = run.resume(state)
            for step in run.steps(until=until):
                run.saved(step, found)
        assert found == state
    assert ckpt.steps(memory_run) == [1, 2]


def test_a_model_that_can_be_called_is_no_function(memory_run: Path) -> None:
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    state: Any = None
    for _ in range(2):
        with ckpt.Run(memory_run, save=None) as run:
            state, _ = run.resume(nnx.state(model))
            for step in run.steps(until=1):
                run.saved(step, state)
    np.testing.assert_array_equal(state["kernel"][...], model.kernel[...])
