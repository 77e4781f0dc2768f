"""A small decoder-only transformer on text that ships with CPython, to train on."""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P

WIDTH, HEADS, LAYERS, LENGTH, BATCH, VOCABULARY = 512, 8, 2, 32, 8, 128


class Block(nnx.Module):
    """Attention and a feed-forward layer, each behind a norm and a dropout."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm_in = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.mix = nnx.Linear(WIDTH, 3 * WIDTH, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(WIDTH, WIDTH, use_bias=False, rngs=rngs)
        self.norm_mid = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, use_bias=False, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        heads = self.mix(self.norm_in(x)).reshape(*x.shape[:2], HEADS, -1)
        q, k, v = jnp.split(heads, 3, axis=-1)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.reshape(x.shape)))
        hidden = jax.nn.gelu(self.up(self.norm_mid(x)))
        return x + self.dropout(self.down(hidden))


class Transformer(nnx.Module):
    """Predicts each next character."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.places = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.tokens(tokens) + self.places(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Training(NamedTuple):
    """Training on a mesh: the state in the abstract, and two pure functions.

    `abstract` is the state as ShapeDtypeStructs with shardings: what `like=` takes.
    """

    mesh: jax.sharding.Mesh
    abstract: Any
    begin: Callable[[], Any]
    step: Callable[[Any, Any], tuple[Any, jax.Array]]


def make_mesh(data: int, model: int) -> jax.sharding.Mesh:
    """Return a mesh over the first devices."""
    devices = cast("list[Any]", jax.devices())[: data * model]
    kinds = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((data, model), ("data", "model"), kinds, devices=devices)


def spec_of(path: str, shape: tuple[int, ...]) -> P:
    """Return how a parameter, or its moment, is laid out: by its layer's name."""
    if len(shape) != 2:
        return P()
    columns = any(f"/{name}/" in path for name in ("mix", "up", "tokens", "places"))
    rows = any(f"/{name}/" in path for name in ("out", "down"))
    return P(None, "model") if columns else P("model", None) if rows else P()


def prepare_training(mesh: jax.sharding.Mesh, *, seed: int = 0) -> Training:
    """Return the training of a transformer with adamw, laid out on the mesh."""
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 5, 100)

    def build() -> tuple[Transformer, nnx.Optimizer[Any]]:
        model = Transformer(nnx.Rngs(seed))
        return model, nnx.Optimizer(model, optax.adamw(rate), wrt=nnx.Param)

    graph, shapes = cast("tuple[Any, Any]", nnx.split(nnx.eval_shape(build)))

    def place(path: Any, leaf: Any) -> Any:
        name = "/" + jax.tree_util.keystr(path, simple=True, separator="/") + "/"
        sharding = NamedSharding(mesh, spec_of(name, leaf.shape))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    abstract = jax.tree_util.tree_map_with_path(place, shapes)

    def sharding_of(leaf: Any) -> NamedSharding:
        return leaf.sharding

    shardings = jax.tree.map(sharding_of, abstract)

    def begin() -> Any:
        return cast("Any", nnx.state(build()))

    def step(state: Any, text: jax.Array) -> tuple[Any, jax.Array]:
        model, optimizer = nnx.merge(graph, state)
        loss, grads = nnx.value_and_grad(_loss)(model, text)
        optimizer.update(model, grads)
        return cast("Any", nnx.state((model, optimizer))), loss

    return Training(
        mesh,
        abstract,
        jax.jit(begin, out_shardings=shardings),
        jax.jit(step, donate_argnums=0, out_shardings=(shardings, None)),
    )


def _loss(model: Transformer, text: jax.Array) -> jax.Array:
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(text[:, :-1]), text[:, 1:]
    )
    return losses.mean()


def draw_batch(step: int, mesh: jax.sharding.Mesh, *, seed: int = 0) -> jax.Array:
    """Return the text of a step: a pure function of (seed, step)."""
    rng = np.random.default_rng((seed, step))
    starts = rng.integers(0, len(_TEXT) - LENGTH - 1, BATCH)
    batch = np.stack([_TEXT[s : s + LENGTH + 1] for s in starts])
    return jax.device_put(batch, NamedSharding(mesh, P("data")))


def _read_text() -> np.ndarray[Any, Any]:
    topics: dict[str, str] = pydoc_data.topics.topics
    text = "\n".join(topics[name] for name in sorted(topics))
    raw = np.frombuffer(text.encode("ascii", "replace"), np.uint8)
    return raw.astype(np.int32)


_TEXT = _read_text()
