"""Linear regression in plain JAX: a dict, a jitted step, a data order by seed.

    python examples/plain_loop.py --run runs/plain --steps 200

Kill it at any time and start it again: it goes on where it was, bit for bit.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

import ckpt
from ckpt.resume import Batches, shuffle_indices

SAMPLES, FEATURES, BATCH = 1024, 16, 64


def make_batch(rows: np.ndarray, seed: int, step: int) -> np.ndarray:
    return rows[shuffle_indices(len(rows), BATCH, seed=seed, step=step)]


def loss_of(weights: jax.Array, batch: jax.Array, key: jax.Array) -> jax.Array:
    noisy = batch + 0.01 * jax.random.normal(key, batch.shape)
    return jnp.mean((noisy @ weights - batch.sum(axis=1)) ** 2)


@partial(jax.jit, donate_argnums=0)
def train_step(state: dict, batch: jax.Array) -> tuple[dict, jax.Array]:
    key, used = jax.random.split(state["key"])
    loss, grads = jax.value_and_grad(loss_of)(state["weights"], batch, used)
    momentum = 0.9 * state["momentum"] + grads
    weights = state["weights"] - 0.01 * momentum
    return {"weights": weights, "momentum": momentum, "key": key}, loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", default="runs/plain")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    mesh = jax.sharding.Mesh(jax.devices(), ("data",))
    by_row = NamedSharding(mesh, P("data"))
    rows = np.random.default_rng(0).normal(size=(SAMPLES, FEATURES)).astype("float32")
    data = Batches(partial(make_batch, rows), seed=0, batch_size=BATCH, name="rows-v1")
    init = {
        "weights": jnp.zeros(FEATURES),
        "momentum": jnp.zeros(FEATURES),
        "key": jax.random.key(0),
    }
    saves = {"save": ckpt.every(steps=50, minutes=15), "keep": ckpt.Keep(last=3)}
    with ckpt.Run(options.run, mesh, **saves, config={"lr": 0.01}) as run:
        state, data = run.resume(init, data)
        for step in run.steps(until=options.steps):
            batch = next(data)
            whole = jax.make_array_from_callback(
                batch.shape, by_row, lambda index, batch=batch: batch[index]
            )
            state, loss = train_step(state, whole)
            run.saved(step, state, metrics={"loss": loss})
            if step % 10 == 0:
                print(step, float(loss).hex(), flush=True)


if __name__ == "__main__":
    main()
