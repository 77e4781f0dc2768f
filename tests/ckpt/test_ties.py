"""Leaves that were tied when they were saved, restored in one way or in several."""

from pathlib import Path

import jax
import ml_dtypes
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

import ckpt

VALUES = np.random.default_rng(0).standard_normal(64).astype(np.float32)


def test_tied_leaves_may_come_back_with_different_dtypes(tmp_path: Path) -> None:
    ckpt.save({"a": VALUES, "b": VALUES}, None, tmp_path)
    like = {"a": np.zeros(64, np.float32), "b": np.zeros(64, np.float64)}
    found = ckpt.restore(tmp_path, like=like, cast=True)
    np.testing.assert_array_equal(found["a"], VALUES)
    np.testing.assert_array_equal(found["b"], VALUES.astype(np.float64))


def test_tied_leaves_may_go_to_different_shardings(tmp_path: Path) -> None:
    mesh = jax.make_mesh((4,), ("x",))
    array = jax.numpy.asarray(VALUES)
    ckpt.save({"a": array, "b": array}, None, tmp_path)
    found = ckpt.restore(tmp_path, mesh, specs={"a": P("x"), "b": P()})
    for name, spec in (("a", P("x")), ("b", P())):
        assert found[name].sharding.is_equivalent_to(NamedSharding(mesh, spec), 1)
        np.testing.assert_array_equal(np.asarray(found[name]), VALUES)


def test_tied_leaves_of_many_chunks_may_come_back_in_two_dtypes(
    tmp_path: Path,
) -> None:
    large = np.arange(3 << 20, dtype=np.uint16).view(ml_dtypes.bfloat16)
    ckpt.save({"a": large, "b": large}, None, tmp_path)
    like = {"a": large, "b": np.zeros(large.shape, np.float32)}
    found = ckpt.restore(tmp_path, like=like, cast=True)
    assert found["a"].tobytes() == large.tobytes()
    with np.errstate(invalid="ignore"):
        expected = large.astype(np.float32)
    np.testing.assert_array_equal(found["b"], expected)
