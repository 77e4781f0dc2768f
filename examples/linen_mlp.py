"""A flax linen TrainState with optax, trained on samples that grain loads.

python examples/linen_mlp.py --run runs/linen --steps 200
"""

import argparse

import flax.linen as nn
import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

import ckpt
from ckpt.resume import Stream

BATCH = 32


class Mlp(nn.Module):
    """Two layers with dropout."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Dropout(0.1, deterministic=False)(nn.relu(nn.Dense(64)(x)))
        return nn.Dense(1)(x)


class State(TrainState):
    """flax's TrainState with the key of its dropout."""

    key: jax.Array


def init() -> State:
    model, key = Mlp(), jax.random.key(0)
    params = model.init({"params": key, "dropout": key}, jnp.zeros((1, 8)))["params"]
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 20, 500)
    return State.create(
        apply_fn=model.apply, params=params, tx=optax.adamw(rate), key=key
    )


@jax.jit
def train_step(state: State, x: jax.Array) -> tuple[State, jax.Array]:
    key = jax.random.fold_in(state.key, state.step)

    def loss_of(params: dict) -> jax.Array:
        found = state.apply_fn({"params": params}, x, rngs={"dropout": key})
        return jnp.mean((found[:, 0] - jnp.sin(x).sum(axis=1)) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", default="runs/linen")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    rows = np.random.default_rng(0).normal(size=(500, 8)).astype("float32")
    samples = grain.MapDataset.source(rows).shuffle(seed=1).repeat()
    loader = samples.to_iter_dataset().batch(BATCH)
    data = Stream(loader, seed=1, batch_size=BATCH, name="sines-v1")
    config = {"optimizer": "adamw", "rate": 1e-2}
    with ckpt.Run(options.run, save=ckpt.every(steps=50), config=config) as run:
        state, data = run.resume(init(), data)
        for step in run.steps(until=options.steps):
            state, loss = train_step(state, next(data))
            run.saved(step, state, metrics={"loss": loss})
            if step % 10 == 0:
                print(step, float(loss).hex(), flush=True)


if __name__ == "__main__":
    main()
