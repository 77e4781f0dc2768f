"""Small train states of each style that people write, and one step of each.

All have dropout (a PRNG key in the state), momentum, a schedule and a counter: whatever
is not restored shows in the next loss.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training import train_state
from jax.sharding import NamedSharding, PartitionSpec as P

Step = Callable[[Any, Any], tuple[Any, Any]]


class Style(NamedTuple):
    """How a state is made on a mesh, and the step that trains it."""

    init: Callable[[Any], Any]
    step: Step


def make_optimizer() -> optax.GradientTransformation:
    rate = optax.warmup_cosine_decay_schedule(0.0, 0.1, 5, 40)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate))


def replicate(mesh: Any, tree: Any) -> Any:
    return jax.device_put(tree, NamedSharding(mesh, P()))


def replicate_numpy(mesh: Any, tree: Any) -> Any:
    """Replicate arrays of numpy, with nothing to compile, in jobs too."""
    sharding = NamedSharding(mesh, P())
    return jax.tree.map(
        lambda x: jax.make_array_from_callback(x.shape, sharding, lambda _: x), tree
    )


def _make_weights(key: Any) -> dict[str, Any]:
    first, second = jax.random.split(key)
    return {
        "in": jax.random.normal(first, (4, 16)) * 0.5,
        "out": jax.random.normal(second, (16, 1)) * 0.5,
    }


def _predict(weights: dict[str, Any], x: Any, key: Any) -> Any:
    hidden = jnp.tanh(x @ weights["in"])
    kept = jax.random.bernoulli(key, 0.9, hidden.shape)
    return (hidden * kept) @ weights["out"]


def _loss(weights: Any, batch: Any, key: Any) -> Any:
    return jnp.mean((_predict(weights, batch["x"], key) - batch["y"]) ** 2)


def init_plain(mesh: Any) -> Any:
    """A dict with a raw key, plain SGD with momentum, a loss scale and a counter."""
    rng = np.random.default_rng(0)
    weights = {
        "in": rng.normal(size=(4, 16)).astype(np.float32),
        "out": rng.normal(size=(16, 1)).astype(np.float32),
    }
    return replicate_numpy(
        mesh,
        {
            "weights": weights,
            "momentum": jax.tree.map(np.zeros_like, weights),
            "key": np.array([0, 1], np.uint32),
            "scale": np.ones((), np.float32),
            "step": np.zeros((), np.int32),
        },
    )


@jax.jit
def step_plain(state: Any, batch: Any) -> tuple[Any, Any]:
    key = jax.random.fold_in(state["key"], state["step"])
    loss, grads = jax.value_and_grad(_loss)(state["weights"], batch, key)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    rate = 0.1 / (1.0 + 0.1 * state["step"])
    weights = jax.tree.map(lambda w, m: w - rate * m, state["weights"], momentum)
    scale = state["scale"] * jnp.where(loss > 1.0, 0.5, 1.01)
    made = {"weights": weights, "momentum": momentum, "scale": scale}
    return state | made | {"step": state["step"] + 1}, loss


def init_optax(mesh: Any) -> Any:
    """A dict of weights, an optax state, a typed key that is split, and an EMA."""
    weights = _make_weights(jax.random.key(0))
    opt = make_optimizer().init(weights)
    made = {"weights": weights, "opt": opt, "ema": weights, "key": jax.random.key(2)}
    return replicate(mesh, made)


@jax.jit
def step_optax(state: Any, batch: Any) -> tuple[Any, Any]:
    key, used = jax.random.split(state["key"])
    loss, grads = jax.value_and_grad(_loss)(state["weights"], batch, used)
    updates, opt = make_optimizer().update(grads, state["opt"], state["weights"])
    weights = optax.apply_updates(state["weights"], updates)
    ema = jax.tree.map(lambda e, w: 0.9 * e + 0.1 * w, state["ema"], weights)
    return {"weights": weights, "opt": opt, "ema": ema, "key": key}, loss


class Mlp(linen.Module):
    """Two layers with dropout between."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        hidden = linen.Dropout(0.1, deterministic=False)(jnp.tanh(linen.Dense(16)(x)))
        return linen.Dense(1)(hidden)


class LinenState(train_state.TrainState):
    """flax's TrainState with the key of its dropout."""

    key: Any


def init_linen(mesh: Any) -> Any:
    model = Mlp()
    key = jax.random.key(0)
    params = model.init({"params": key, "dropout": key}, jnp.zeros((1, 4)))["params"]
    made = LinenState.create(
        apply_fn=model.apply, params=params, tx=make_optimizer(), key=jax.random.key(3)
    )
    return replicate(mesh, made)


@jax.jit
def step_linen(state: Any, batch: Any) -> tuple[Any, Any]:
    key = jax.random.fold_in(state.key, state.step)

    def loss_of(params: Any) -> Any:
        found = state.apply_fn({"params": params}, batch["x"], rngs={"dropout": key})
        return jnp.mean((found - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


class NnxMlp(nnx.Module):
    """Two layers with dropout and batch statistics."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.into = nnx.Linear(4, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(self.drop(jnp.tanh(self.norm(self.into(x)))))


def _make_nnx() -> Any:
    model = NnxMlp(nnx.Rngs(0, dropout=4))
    return nnx.split((model, nnx.Optimizer(model, make_optimizer(), wrt=nnx.Param)))


def init_nnx(mesh: Any) -> Any:
    return replicate(mesh, _make_nnx()[1])


@partial(jax.jit, static_argnums=2)
def _step_nnx(state: Any, batch: Any, graph: Any) -> tuple[Any, Any]:
    model, optimizer = nnx.merge(graph, state)

    def loss_of(model: Any) -> Any:
        return jnp.mean((model(batch["x"]) - batch["y"]) ** 2)

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return nnx.state((model, optimizer)), loss


def step_nnx(state: Any, batch: Any) -> tuple[Any, Any]:
    return _step_nnx(state, batch, _make_nnx()[0])


class EqxMlp(eqx.Module):
    """Two layers and a function, which is no leaf to save."""

    into: eqx.nn.Linear
    out: eqx.nn.Linear
    activate: Callable[[Any], Any] = eqx.field(static=True)

    def __call__(self, x: Any, key: Any) -> Any:
        hidden = self.activate(self.into(x))
        return self.out(hidden * jax.random.bernoulli(key, 0.9, hidden.shape))


def init_equinox(mesh: Any) -> Any:
    first, second = jax.random.split(jax.random.key(0))
    layers = eqx.nn.Linear(4, 16, key=first), eqx.nn.Linear(16, 1, key=second)
    model = EqxMlp(*layers, jnp.tanh)
    opt = make_optimizer().init(eqx.filter(model, eqx.is_array))
    return replicate(mesh, (model, opt, jax.random.key(5)))


@jax.jit
def step_equinox(state: Any, batch: Any) -> tuple[Any, Any]:
    model, opt, key = state
    key, used = jax.random.split(key)

    def loss_of(model: Any) -> Any:
        keys = jax.random.split(used, len(batch["x"]))
        return jnp.mean((jax.vmap(model)(batch["x"], keys) - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(model)
    updates, opt = make_optimizer().update(grads, opt, model)
    return (eqx.apply_updates(model, updates), opt, key), loss


STYLES = {
    "plain": Style(init_plain, step_plain),
    "optax": Style(init_optax, step_optax),
    "linen": Style(init_linen, step_linen),
    "nnx": Style(init_nnx, step_nnx),
    "equinox": Style(init_equinox, step_equinox),
}
