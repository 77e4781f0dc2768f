"""States of flax and optax come back equal: with their types, or as records."""

import json
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.core import FrozenDict, freeze
from flax.training.train_state import TrainState

from pytree import Record, Structure, compare, flatten, unflatten

PARAMS = {
    "dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)},
    "scale": jnp.float32(2),
}

OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "adamw": optax.adamw(1e-3),
    "chain": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
    "schedule": optax.sgd(optax.linear_schedule(1.0, 0.0, 10), momentum=0.9),
    "masked": optax.masked(optax.adam(1e-3), {"dense": True, "scale": False}),
    "multi_steps": optax.MultiSteps(optax.adam(1e-3), 2),
    "hyperparams": optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
    "multi_transform": optax.multi_transform(
        {"a": optax.adam(1e-3), "b": optax.set_to_zero()},
        {"dense": "a", "scale": "b"},
    ),
    "lion": optax.lion(1e-3),
    "adafactor": optax.adafactor(1e-3),
}


def assert_same(one: Any, other: Any) -> None:
    assert jax.tree_util.tree_structure(one) == jax.tree_util.tree_structure(other)
    pairs = zip(
        jax.tree_util.tree_leaves(one), jax.tree_util.tree_leaves(other), strict=True
    )
    assert all(a is b for a, b in pairs)


def assert_faithful(tree: Any) -> Any:
    """Check that a tree comes back from its JSON, with and without its types."""
    leaves, structure = flatten(tree)
    saved = Structure.from_json(json.loads(json.dumps(structure.to_json())))
    assert compare(saved, structure) == ()
    assert_same(unflatten(structure, leaves), tree)
    record = unflatten(saved, leaves)
    more, again = flatten(record)
    assert again == structure
    assert_same(list(more.values()), list(leaves.values()))
    assert_same(unflatten(structure, more), tree)
    return record


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_states_come_back(name: str) -> None:
    state = OPTIMIZERS[name].init(PARAMS)  # pyright: ignore[reportAttributeAccessIssue]
    assert_faithful({"opt": state, "params": PARAMS})


def test_optimizer_states_have_the_names_of_their_fields() -> None:
    state = optax.adam(1e-3).init(PARAMS)
    leaves, _ = flatten(state)
    assert list(leaves) == [
        "0/count",
        "0/mu/dense/bias",
        "0/mu/dense/kernel",
        "0/mu/scale",
        "0/nu/dense/bias",
        "0/nu/dense/kernel",
        "0/nu/scale",
    ]
    record = assert_faithful(state)[0]
    assert type(record) is Record
    assert record.type_name.endswith(".ScaleByAdamState")
    assert record.mu["scale"] is leaves["0/mu/scale"]


def make_linen() -> TrainState:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            kernel = nn.with_partitioning(nn.initializers.ones, ("data", None))
            return nn.Dense(3, kernel_init=kernel)(x)

    model = Model()
    params = model.init(jax.random.key(0), jnp.ones((1, 2)))["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-3))


def test_a_linen_train_state_comes_back_with_its_functions() -> None:
    state = make_linen()
    leaves, structure = flatten(state)
    again = unflatten(structure, leaves)
    assert type(again) is TrainState
    assert again.apply_fn == state.apply_fn
    assert again.tx is state.tx
    record = assert_faithful(state)
    assert record.step == 0
    assert repr(record.apply_fn) == "<flax.linen.module.Module.apply>"
    box = record.params["Dense_0"]["kernel"]
    assert (box.type_name, box.names) == ("flax.core.meta.Partitioned", ("data", None))


def test_a_train_state_of_shapes_takes_the_leaves_of_another() -> None:
    state = make_linen()
    like = jax.eval_shape(lambda: state)
    leaves, structure = flatten(state)
    _, wanted = flatten(like)
    assert compare(structure, wanted) == ()
    again = unflatten(wanted, leaves)
    assert type(again) is TrainState
    assert_same(again, state)


def test_frozen_dicts_come_back() -> None:
    tree = freeze({"b": {"w": 1}, "a": (2, 3)})
    leaves, structure = flatten(tree)
    assert set(leaves) == {"b/w", "a/0", "a/1"}
    other = flatten(freeze({"a": (2, 3), "b": {"w": 1}, "c": {0: 4}}))[1]
    assert [str(d) for d in compare(structure, other)] == [
        "Expected a leaf, found nothing - at `c/0`"
    ]
    again = unflatten(structure, leaves)
    assert type(again) is FrozenDict
    assert again == tree
    record = assert_faithful(tree)
    assert (record.b["w"], record["a"]) == (1, (2, 3))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(2, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        # Older versions of flax take plain lists here and have no other.
        layers = [nnx.Linear(3, 3, rngs=rngs) for _ in range(2)]
        self.layers = getattr(nnx, "List", list)(layers)


def test_nnx_states_come_back() -> None:
    state = nnx.state(Model(nnx.Rngs(0)))
    leaves, structure = flatten(state)
    assert "first/kernel/value" in leaves
    assert "layers/1/bias/value" in leaves
    assert "drop/rngs/key/value" in leaves
    again = unflatten(structure, leaves)
    assert type(again) is nnx.State
    assert type(again["first"]["kernel"]) is nnx.Param
    assert type(again["norm"]["mean"]) is nnx.BatchStat
    record = assert_faithful(state)
    assert record.first["kernel"].value is leaves["first/kernel/value"]


def test_an_abstract_nnx_state_takes_the_leaves_of_a_real_one() -> None:
    model = Model(nnx.Rngs(0))
    graph, state = nnx.split(model)
    like = nnx.state(nnx.eval_shape(lambda: Model(nnx.Rngs(1))))
    leaves, saved = flatten(state)
    _, wanted = flatten(like)
    assert compare(saved, wanted) == ()
    again = nnx.merge(graph, unflatten(wanted, leaves))
    assert again.layers[1].kernel[...] is leaves["layers/1/kernel/value"]
    x = jnp.ones((4, 2))
    np.testing.assert_array_equal(again.first(x), model.first(x))


def test_nnx_modules_and_optimizers_come_back() -> None:
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    assert_faithful(nnx.state(optimizer))
    assert_faithful(nnx.split(model))
    leaves, structure = flatten({"model": model})
    again = unflatten(structure, leaves)["model"]
    assert type(again) is Model
    assert again.first.kernel[...] is model.first.kernel[...]


def test_partial_functions_come_back_from_like() -> None:
    tree = jax.tree_util.Partial(jnp.add, jnp.ones(2))
    record = assert_faithful(tree)
    assert repr(record.aux).startswith("<jax")
