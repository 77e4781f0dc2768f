"""What cannot be read back is never committed; what can be is saved."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ckpt

LARGE = np.arange(300_000, dtype=np.float32)


@pytest.mark.parametrize(
    ("left", "right"), [("0", "'0'"), ("", "''"), ("None", "'None'")]
)
def test_keys_that_differ_in_quotes_alone_are_kept_apart(
    left: str, right: str, tmp_path: Path
) -> None:
    tree = {left: LARGE, right: LARGE.reshape(300, 1000), "x": {left: 1, right: LARGE}}
    ckpt.save(tree, None, tmp_path)
    found = ckpt.restore(tmp_path)
    np.testing.assert_array_equal(found[left], LARGE)
    np.testing.assert_array_equal(found[right], LARGE.reshape(300, 1000))
    np.testing.assert_array_equal(found["x"][right], LARGE)


def test_a_leaf_and_a_container_whose_names_look_alike_are_kept_apart(
    tmp_path: Path,
) -> None:
    ckpt.save({"0": LARGE, "'0'": {"x": LARGE + 1}}, None, tmp_path)
    found = ckpt.restore(tmp_path)
    np.testing.assert_array_equal(found["0"], LARGE)
    np.testing.assert_array_equal(found["'0'"]["x"], LARGE + 1)


def test_booleans_of_odd_bits_come_back_bit_for_bit_or_are_refused(
    tmp_path: Path,
) -> None:
    bits = np.tile(np.arange(256, dtype=np.uint8), 1 << 13).view(np.bool_)
    ckpt.save({"x": bits}, None, tmp_path, step=0)
    assert ckpt.restore(tmp_path)["x"].tobytes() == bits.tobytes()
    with pytest.raises(ckpt.Unsupported, match="`x`"):
        ckpt.save({"x": bits}, None, tmp_path, step=1, codec="zstd")
    assert ckpt.steps(tmp_path) == [0]


@pytest.mark.parametrize(
    ("tree", "error"),
    [
        (np.zeros((1,) * 33), ckpt.LimitExceeded),
        (np.zeros((0, 1 << 48), np.uint8), ckpt.Unsupported),
        ({"k" * 1_000_000: [()] * 200}, ckpt.CkptError),
    ],
    ids=["rank", "length", "paths"],
)
def test_what_no_reader_accepts_is_refused_before_the_commit(
    tree: Any, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        ckpt.save(tree, None, tmp_path)
    assert ckpt.steps(tmp_path) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["steps"]


def test_metrics_of_any_size_are_pruned_by_or_refused_by_name(tmp_path: Path) -> None:
    for step, loss in enumerate([3, 10**400, 2]):
        ckpt.save({"x": step}, None, tmp_path, step=step, metrics={"loss": loss})
    ckpt.save({"x": 9}, None, tmp_path, step=9, metrics={"loss": 9.0})
    ckpt.prune(tmp_path, keep=ckpt.Keep(best=("loss", "min", 1)))
    assert ckpt.steps(tmp_path) == [2, 9]
    with pytest.raises(ckpt.LimitExceeded, match="metric 'n'"):
        ckpt.save({"x": 1}, None, tmp_path, metrics={"n": 10**5000})


def test_a_cast_never_makes_a_value_the_dtype_lacks(tmp_path: Path) -> None:
    flags = np.array([False, True])
    ckpt.save({"x": flags}, None, tmp_path)
    like = {"x": np.zeros(2, ml_dtypes.float8_e8m0fnu)}
    with pytest.raises(ckpt.StructureMismatch, match="lossy"):
        ckpt.restore(tmp_path, like=like, cast=True)


def test_small_integers_are_cast_to_larger_ones(tmp_path: Path) -> None:
    ckpt.save({"x": np.array([0, 1, 2, 3], ml_dtypes.uint2)}, None, tmp_path)
    like = {"x": np.zeros(4, ml_dtypes.int4)}
    found = ckpt.restore(tmp_path, like=like, cast=True)["x"]
    assert found.dtype == ml_dtypes.int4
    assert found.astype(np.int64).tolist() == [0, 1, 2, 3]


def test_packs_that_a_budget_closes_early_are_read_as_they_were_written(
    tmp_path: Path,
) -> None:
    tree = {f"w{n}": np.full(60_000, n, np.uint8) for n in range(12)}
    ckpt.save(tree, None, tmp_path, max_host_bytes=1 << 20)
    # A quarter of a mebibyte a pack: four leaves in each.
    assert len([*tmp_path.glob("*/~packs/*/c/0")]) == 3
    found = ckpt.restore(tmp_path)
    for path, value in tree.items():
        np.testing.assert_array_equal(found[path], value)
    assert ckpt.verify(tmp_path).ok
