"""Threads that take shards of one new array at once get each its own."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import ckpt
from ckpt._source import _shard_data
from layouts import Leaf
from tests.faults._trees import same_bits

VALUES = np.arange(8 * 512 * 512, dtype=np.float32).reshape(8 * 512, 512)


@pytest.fixture(autouse=True)
def hasty_threads() -> Iterator[None]:
    """Let threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def make_array(values: np.ndarray) -> jax.Array:
    mesh = jax.make_mesh((8,), ("x",))
    return jax.device_put(values, NamedSharding(mesh, PartitionSpec("x")))


def test_the_writers_of_a_save_never_take_the_shard_of_another(folder: Path) -> None:
    for step in range(60):
        ckpt.save({"w": make_array(VALUES)}, None, folder / "run", step=step)
        assert same_bits(ckpt.restore(folder / "run")["w"], VALUES)
        if step:
            ckpt.prune(folder / "run", drop=[step - 1])


def test_a_shard_in_the_place_of_another_is_refused() -> None:
    """Whatever JAX hands out: the save looks at the device that a shard is on."""
    array = make_array(VALUES)
    leaf = Leaf("w", "jax", "float32", VALUES.shape)
    first, second = jax.devices()[:2]
    assert _shard_data(leaf, array, (1, second)).shape == (512, 512)
    with pytest.raises(ckpt.Unsupported, match="- at `w`: several threads"):
        _shard_data(leaf, array, (1, first))


@pytest.mark.skipif(
    jax.__version_info__[:2] != (0, 10), reason="seen in JAX 0.10, not in 0.9 and 0.12"
)
def test_jax_itself_hands_out_wrong_shards_to_threads() -> None:
    """Otherwise the first test cannot fail: it is for versions of JAX that do this."""
    values = np.arange(8, dtype=np.float32)

    def take(array: jax.Array, barrier: Barrier) -> bool:
        barrier.wait()
        try:
            return all(array.addressable_data(n)[0] == n for n in range(8))
        except IndexError:
            return False

    with ThreadPoolExecutor(2) as pool:
        for _ in range(5000):
            array, barrier = make_array(values), Barrier(2)
            taken = [pool.submit(take, array, barrier) for _ in range(2)]
            if not all(one.result() for one in taken):
                return
    raise AssertionError("expected a wrong shard in 5000 arrays, found none")
