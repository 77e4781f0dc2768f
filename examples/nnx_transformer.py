"""A flax nnx transformer: `python examples/nnx_transformer.py --steps 100`."""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P

import ckpt
from ckpt.resume import Batches

VOCAB, WIDTH, LENGTH, BATCH = 64, 64, 32, 16


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm1, self.norm2 = (nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2))
        self.attend = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attend(self.norm1(x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.drop(self.down(nnx.gelu(self.up(self.norm2(x)))))


class Transformer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.block1, self.block2 = Block(rngs), Block(rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.embed.attend(self.block2(self.block1(self.embed(tokens))))


def make_batch(seed: int, step: int) -> np.ndarray:
    rng = np.random.default_rng([seed, step])
    start, stride = rng.integers(VOCAB, size=(2, BATCH, 1))
    return (start + stride * np.arange(LENGTH + 1)) % VOCAB


def train_step(graph: nnx.GraphDef, state: nnx.State, tokens: jax.Array):  # noqa: ANN201
    model, optimizer = nnx.merge(graph, state)

    def loss_of(model: Transformer) -> jax.Array:
        log_p = jax.nn.log_softmax(model(tokens[:, :-1]))
        return -jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return nnx.state((model, optimizer)), loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", default="runs/nnx")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    mesh = jax.sharding.Mesh(jax.devices(), ("data",))
    model = Transformer(nnx.Rngs(0, dropout=1))
    opt = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    graph, init = nnx.split((model, opt))
    train = jax.jit(train_step, static_argnums=0, donate_argnums=1)
    with ckpt.Run(options.run, mesh, save=ckpt.every(steps=20)) as run:
        state, data = run.resume(init, Batches(make_batch, seed=0, batch_size=BATCH))
        for step in run.steps(until=options.steps):
            tokens = jax.device_put(next(data), NamedSharding(mesh, P("data")))
            state, loss = train(graph, state, tokens)
            run.saved(step, state, metrics={"loss": loss})
            if step % 10 == 0:
                print(step, float(loss).hex(), flush=True)


if __name__ == "__main__":
    main()
