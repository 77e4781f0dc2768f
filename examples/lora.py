"""Adapters on a frozen base: with reuse=True the base is written once.

    python examples/lora.py --run runs/lora --steps 60

`du -sh runs/lora/*/base` tells: only the first step has the base's data.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ckpt
from ckpt.resume import Batches

WIDTH, LAYERS, RANK, BATCH = 1024, 4, 4, 8
OPTIMIZER = optax.adam(1e-3)


def init_base() -> dict:
    """Stand in for a pretrained model: in practice ckpt.restore(.., select=..)."""
    keys = jax.random.split(jax.random.key(0), LAYERS)
    return {f"w{i}": jax.random.normal(k, (WIDTH, WIDTH)) for i, k in enumerate(keys)}


def init() -> dict:
    keys = jax.random.split(jax.random.key(1), LAYERS)
    adapters = {
        f"w{i}": (jax.random.normal(k, (WIDTH, RANK)), jnp.zeros((RANK, WIDTH)))
        for i, k in enumerate(keys)
    }
    return {"base": init_base(), "lora": adapters, "opt": OPTIMIZER.init(adapters)}


def predict(base: dict, adapters: dict, x: jax.Array) -> jax.Array:
    for name, (a, b) in adapters.items():
        x = jnp.tanh((x @ base[name] + (x @ a) @ b) / WIDTH**0.5)
    return x


@partial(jax.jit, donate_argnums=1)
def train_step(base: dict, trained: dict, x: jax.Array) -> tuple[dict, jax.Array]:
    def loss_of(adapters: dict) -> jax.Array:
        return jnp.mean((predict(base, adapters, x) - jnp.roll(x, 1, axis=1)) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(trained["lora"])
    updates, opt = OPTIMIZER.update(grads, trained["opt"])
    return {"lora": optax.apply_updates(trained["lora"], updates), "opt": opt}, loss


def make_batch(seed: int, step: int) -> np.ndarray:
    return np.random.default_rng([seed, step]).normal(size=(BATCH, WIDTH))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", default="runs/lora")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    saves = {"save": ckpt.every(steps=20), "reuse": True}
    with ckpt.Run(options.run, **saves, config={"rank": RANK}) as run:
        state, data = run.resume(init, Batches(make_batch, seed=0, batch_size=BATCH))
        base, trained = state["base"], {k: state[k] for k in ("lora", "opt")}
        for step in run.steps(until=options.steps):
            trained, loss = train_step(base, trained, jnp.asarray(next(data)))
            run.saved(step, {"base": base, **trained}, metrics={"loss": loss})
            if step % 10 == 0:
                print(step, float(loss).hex(), flush=True)


if __name__ == "__main__":
    main()
