"""Renaming makes nested dicts; places that a file has as text are found."""

from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

import ckpt
from tests.formats.bare import SETS, is_expected, read_expected


def test_new_paths_make_nested_dicts(memory_run: Path) -> None:
    shared = np.arange(3.0)
    ckpt.save({"a.w": np.ones(2), "b.w": shared, "head": shared}, None, memory_run)
    tree = ckpt.restore(memory_run, rename={"*.w": "layers/*/kernel", "head": "head/0"})
    assert tree.keys() == {"layers", "head"}
    assert tree["layers"]["a"]["kernel"].tolist() == [1, 1]
    assert tree["head"][0] is tree["layers"]["b"]["kernel"]
    plan = ckpt.plan(memory_run, {"x": 2}, rename={"*.w": "layers/*/kernel"})
    assert plan.leaves == 2


def test_a_leaf_and_a_folder_in_one_place_are_refused(memory_run: Path) -> None:
    ckpt.save({"a": np.ones(2), "b": np.ones(2)}, None, memory_run)
    with pytest.raises(ValueError, match="a leaf and a folder in one - at `x/y`"):
        ckpt.restore(memory_run, rename={"a": "x", "b": "x/y"})


def test_a_file_of_flax_is_laid_in_the_state_that_it_was_of() -> None:
    """Tuples of optax are the keys "0" and "1" there."""
    expected = read_expected("flax_msgpack")
    host = ckpt.restore(SETS / "flax_msgpack")
    adam: Any = optax.adam(1e-3).init(host["params"])
    state = {"opt_state": adam, "params": host["params"]}
    found = ckpt.restore(SETS / "flax_msgpack", like=state, extra="ignore")
    assert type(found["opt_state"][0]) is type(adam[0])
    for name in ("mu/emb", "nu/dense/kernel", "count"):
        value = found["opt_state"][0]
        for key in name.split("/"):
            value = getattr(value, key) if hasattr(value, key) else value[key]
        assert is_expected(np.asarray(value), expected[f"opt_state/0/{name}"]), name
