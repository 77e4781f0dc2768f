"""A small transformer's train step, which donates its state as real loops do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks._trees import Placement

Step = Callable[[Any, jax.Array], tuple[Any, jax.Array]]

_HEAD = 64
_TOKENS = 16
_AXIS = "model"


def build_step(abstract: Any, *, placement: Placement) -> Step:
    """A jitted (state, tokens) -> (state, loss) that keeps the state's shardings.

    Every matrix is cut by columns over `model`; devices exchange activations alone.
    """
    whole = PartitionSpec()
    specs = jax.tree.map(lambda leaf: leaf.sharding.spec, abstract)

    def step(state: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
        found, gradients = jax.value_and_grad(_loss)(state["params"], tokens)
        return _update(state, gradients), found

    mapped = jax.shard_map(
        step,
        mesh=placement.mesh(),
        in_specs=(specs, whole),
        out_specs=(specs, whole),
    )
    return cast("Step", jax.jit(mapped, donate_argnums=0))


def build_tokens(abstract: Any, *, placement: Placement) -> jax.Array:
    """One batch of token numbers, on every device."""
    vocabulary = abstract["params"]["embedding"].shape[0]
    place = NamedSharding(placement.mesh(), PartitionSpec())
    make = jax.jit(
        lambda: (jnp.arange(_TOKENS) * 7919) % vocabulary, out_shardings=place
    )
    return make()


def _loss(params: Any, tokens: jax.Array) -> jax.Array:
    x = _join(params["embedding"][tokens])
    for block in params["blocks"]:
        x = x + _attend(_normalize(x, block["norm1"]), block)
        wide = jax.nn.gelu(_normalize(x, block["norm2"]) @ block["up"])
        x = x + jax.lax.psum(wide @ block["down"].T, _AXIS)
    part = _own_columns(_normalize(x, params["norm"])) @ params["embedding"].T
    logits = jax.lax.psum(part, _AXIS)
    chosen = jnp.take_along_axis(logits[:-1], tokens[1:, None], axis=1)
    return jnp.mean(jax.nn.logsumexp(logits[:-1], axis=1) - chosen[:, 0])


def _join(columns: jax.Array) -> jax.Array:
    """All columns on every device, from those of each."""
    width = columns.shape[-1]
    devices = jax.lax.axis_size(_AXIS)
    wide = jnp.zeros((columns.shape[0], width * devices), columns.dtype)
    start = jax.lax.axis_index(_AXIS) * width
    placed = jax.lax.dynamic_update_slice_in_dim(
        jax.lax.pcast(wide, _AXIS, to="varying"), columns, start, axis=1
    )
    return jax.lax.psum(placed, _AXIS)


def _own_columns(x: jax.Array) -> jax.Array:
    width = x.shape[-1] // jax.lax.axis_size(_AXIS)
    return jax.lax.dynamic_slice_in_dim(
        x, jax.lax.axis_index(_AXIS) * width, width, axis=1
    )


def _attend(x: jax.Array, block: Any) -> jax.Array:
    """Causal attention; each device has the heads whose columns it holds."""
    tokens = x.shape[0]
    qkv = (x @ block["qkv"]).reshape(tokens, -1, 3, _HEAD)
    query, key, value = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    scores = jnp.einsum("qhd,khd->hqk", query, key) / _HEAD**0.5
    mask = jnp.tril(jnp.ones((tokens, tokens), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    mixed = jnp.einsum("hqk,khd->qhd", weights, value).reshape(tokens, -1)
    return jax.lax.psum(mixed @ block["out"].T, _AXIS)


def _normalize(x: jax.Array, scale: jax.Array) -> jax.Array:
    return (
        x
        * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        * (1.0 + scale)
    )


def _update(state: Any, gradients: Any) -> Any:
    """Adam, without its bias correction."""
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradients)
    square = jax.tree.map(
        lambda v, g: 0.999 * v + 0.001 * g * g, state["square"], gradients
    )
    params = jax.tree.map(
        lambda p, m, v: p - 1e-4 * m / (jnp.sqrt(jnp.abs(v)) + 1e-8),
        state["params"],
        mean,
        square,
    )
    return {
        "params": params,
        "mean": mean,
        "square": square,
        "step": state["step"] + 1,
    }
