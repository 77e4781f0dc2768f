from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest

from benchmarks._cases import GRID, Case, find_case
from benchmarks._compare import gather_host, list_differences
from benchmarks._trees import (
    QUICK,
    Placement,
    abstract_state,
    build_state,
    draw_weights,
    shape_tree,
)
from benchmarks.contenders import (
    CONTENDERS,
    Contender,
    DescribingLibrary,
    load_library,
    why_absent,
)
from benchmarks.contenders._flat import flatten_names, unflatten_names

PRESENT = [x for x in CONTENDERS if not why_absent(x)]


# The peers' own warnings are no defect of these benchmarks.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("contender", PRESENT, ids=lambda x: x.name)
@pytest.mark.parametrize("name", ["b", "c", "d"])
def test_what_a_contender_saves_it_restores(
    contender: Contender, name: str, tmp_path: Path
) -> None:
    case = find_case(name)
    library = load_library(contender)
    state = _build(case)
    library.save(state, tmp_path / "run")
    for target, placement in case.targets.items():
        if target != "same" and not contender.remeshes:
            continue
        abstract = _place(case, placement)
        restored = library.restore(tmp_path / "run", abstract)
        assert list_differences(state, restored, abstract=abstract) == []
    if contender.describes:
        described = cast("DescribingLibrary", library).metadata(tmp_path / "run")
        assert described is not None


def test_a_flipped_bit_is_a_difference() -> None:
    case = find_case("c")
    state, abstract = _build(case), _place(case, case.saved)
    changed = dict(state)
    values = gather_host(state["params"]["embedding"])
    values.view(np.uint16)[3, 5] ^= 1
    leaf = jax.device_put(values, state["params"]["embedding"].sharding)
    changed["params"] = {**state["params"], "embedding": leaf}
    (line,) = list_differences(state, changed, abstract=abstract)
    assert line.startswith("['params']['embedding']: values differ on ")


def test_equal_not_a_number_bits_are_no_difference() -> None:
    abstract = _square(GRID)
    host = np.full((8, 8), np.uint32(0x7FC0_1234)).view(np.float32)
    state = {"w": jax.device_put(host, abstract["w"].sharding)}
    assert list_differences(state, state, abstract=abstract) == []


def test_another_sharding_dtype_structure_or_type_is_a_difference() -> None:
    abstract = _square(GRID)
    host = np.ones((8, 8), np.float32)
    state = {"w": jax.device_put(host, abstract["w"].sharding)}
    moved = {"w": jax.device_put(host, jax.devices()[0])}
    cast = {"w": jax.device_put(host.astype(np.int32), abstract["w"].sharding)}
    assert list_differences(state, moved, abstract=abstract)
    assert list_differences(state, cast, abstract=abstract)
    assert list_differences(state, {"v": state["w"]}, abstract=abstract)
    assert list_differences(state, {"w": host}, abstract=abstract)


def test_gathering_equals_numpy_and_caches_nothing() -> None:
    abstract = _square(GRID)
    host = np.arange(64, dtype=np.float32).reshape(8, 8)
    array = jax.device_put(host, abstract["w"].sharding)
    assert np.array_equal(gather_host(array), host)
    assert getattr(array, "_npy_value", None) is None


def test_flat_names_are_unique_and_lead_back_to_the_tree() -> None:
    tree = shape_tree("train", scale=QUICK)
    named = flatten_names(tree)
    assert len(named) == len(jax.tree.leaves(tree))
    assert "params/blocks/0/mlp/up/kernel" in named
    assert jax.tree.structure(unflatten_names(named, like=tree)) == (
        jax.tree.structure(tree)
    )


def _place(case: Case, placement: Placement) -> Any:
    shapes = shape_tree(case.tree, scale=QUICK)
    return abstract_state(shapes, placement=placement)


def _build(case: Case) -> Any:
    return build_state(_place(case, case.saved), draw=draw_weights, seed=0)


def _square(placement: Placement) -> Any:
    shapes = {"w": jax.ShapeDtypeStruct((8, 8), np.float32)}
    return abstract_state(shapes, placement=placement)
