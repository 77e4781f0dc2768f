"""Honest runs to forge from, saved once, and the process that reads the forgeries."""

from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import ckpt
from tests._harness.forkserver import ForkServer
from tests.attacks._forge import Forgery, forge
from tests.attacks._sandbox import Sandbox

Point = namedtuple("Point", "x y")


def save_honest(run: Path, *, codec: str | None = None) -> Path:
    """Save a run of one step that holds a leaf of every kind of storage."""
    mesh = jax.make_mesh((2,), ("data",))
    halves = NamedSharding(mesh, P("data"))
    rng = np.random.default_rng(1)
    big = rng.normal(size=(1024, 512)).astype(np.float32)
    state = {
        "w": jax.device_put(big, halves),
        "v": jax.device_put(big[::-1].copy(), halves),
        "b": jax.device_put(rng.random((2048, 1024)) < 0.5, halves),
        "small": jnp.arange(6.0),
        "flags": np.array([True, False]),
        "nibbles": jnp.array([1, -8], "int4"),
        "key": jax.random.key(3),
        "scalar": np.float32(2.5),
        "text": "long " * 400,
        "point": Point(jnp.ones(3), [1, 0.5, True, 1 + 2j, "short", b"raw"]),
    }
    ckpt.save(state, mesh, run, step=1, metrics={"loss": 2.0}, codec=codec)
    return run


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_honest(tmp_path_factory.mktemp("honest") / "run")


@pytest.fixture(scope="session")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_honest(tmp_path_factory.mktemp("zstd") / "run", codec="zstd")


@pytest.fixture
def forgery(honest: Path, tmp_path: Path) -> Forgery:
    return forge(honest, tmp_path)


@pytest.fixture
def coded(compressed: Path, tmp_path: Path) -> Forgery:
    return forge(compressed, tmp_path)


@pytest.fixture(scope="session")
def sandbox(honest: Path) -> Iterator[Sandbox]:
    with ForkServer("ckpt", "tests.attacks._child", devices=2) as server:
        yield Sandbox(server, honest)
