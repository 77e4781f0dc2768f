"""What users are told when their training does not resume exactly, and when it does."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ckpt.resume import Batches
from ckpt.testing import assert_resume_exact
from ckpt.testing._exact import compare_records
from ckpt.testing._record import find_difference, show_leaves


def init() -> Any:
    return {"w": jnp.zeros(3), "key": jax.random.key(0), "count": 0}


def make_batch(seed: int, step: int) -> Any:
    return np.float32(np.random.default_rng([seed, step]).random(3))


def data() -> Any:
    return Batches(make_batch, seed=1)


@jax.jit
def update(w: Any, key: Any, batch: Any) -> Any:
    return 0.9 * w + batch + jax.random.normal(key, w.shape)


def train_step(state: Any, batch: Any) -> Any:
    key, used = jax.random.split(state["key"])
    w = update(state["w"], used, batch)
    return {"w": w, "key": key, "count": state["count"] + 1}, jnp.sum(w)


def train_with_a_memory_outside(state: Any, batch: Any) -> Any:
    """Goes wrong in a fresh process alone: the first step of each remembers."""
    state, loss = train_step(state, batch)
    if state["count"] == 1:
        _memory["first"] = float(loss)
    return state, loss + _memory.get("first", 0.0)


_memory: dict[str, float] = {}


@pytest.mark.campaign
def test_training_that_resumes_exactly_passes() -> None:
    mesh = jax.make_mesh((2,), ("data",))
    assert_resume_exact(train_step, init, data, steps=2, mesh=mesh)


@pytest.mark.campaign
def test_what_lives_outside_of_the_state_is_found() -> None:
    told = r"(?s)go on as if it had not stopped, found .* at `step 3: returned/0`"
    with pytest.raises(AssertionError, match=told):
        assert_resume_exact(train_with_a_memory_outside, init, data, steps=2)


def record(*losses: float) -> dict[str, Any]:
    """Return what a training records that starts where the last one ended."""
    steps = [{"batch": {}, "returned": show_leaves((loss,))} for loss in losses]
    return {"seen": steps, "there": {"w": "1"}, "state": {"w": "2"}}


@pytest.mark.parametrize(
    ("whole", "part", "resumed", "told"),
    [
        ((1, 2, 3, 4), (1, 9), (3, 4), r"two trainings .* 9 .* `step 2: returned/0`"),
        (
            (1, 2, 3, 4),
            (1, 2),
            (3, 9),
            r"as if it had .* 9 .* `step 4: returned/0`",
        ),
    ],
)
def test_the_first_step_that_differs_is_named(
    whole: Any, part: Any, resumed: Any, told: str
) -> None:
    with pytest.raises(AssertionError, match=told):
        compare_records(record(*whole), record(*part), record(*resumed), 2)


def test_a_state_that_is_restored_otherwise_is_named() -> None:
    same = record(1, 2)
    whole = record(1, 2, 1, 2)
    compare_records(whole, same, same, 2)
    other = same | {"there": {"w": "7"}}
    with pytest.raises(AssertionError, match=r"restored at step 2 .* 7 .* at `w`"):
        compare_records(whole, same, other, 2)
    with pytest.raises(AssertionError, match=r"after step 4 .* 7 .* at `w`"):
        compare_records(whole, same, same | {"state": {"w": "7"}}, 2)


def test_functions_that_no_module_names_are_refused() -> None:
    with pytest.raises(ValueError, match="expected init to be a function that a modul"):
        assert_resume_exact(train_step, lambda: {"count": 0}, data)


def test_training_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)found exit code 1:.*ZeroDivisionErro"):
        assert_resume_exact(divide, init, steps=1)


def divide(state: Any) -> Any:
    return state["count"] // 0


def test_leaves_are_equal_only_where_their_bits_are() -> None:
    nans = np.array([np.nan, 1.0]), np.array([-np.nan, 1.0])
    pairs = [(0.0, -0.0), nans, (np.float32(1), np.float64(1)), (1, 1.0), ("a", b"a")]
    for one, other in pairs:
        assert find_difference(show_leaves(one), show_leaves(other)) is not None
        assert find_difference(show_leaves(one), show_leaves(one)) is None
