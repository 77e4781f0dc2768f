"""Comparing two structures finds everything that is different, and nothing else."""

from collections import OrderedDict, defaultdict
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given

from pytree import Difference, Structure, compare, flatten
from tests.pytree._trees import Box, Layer, Point, trees


def structure(tree: Any) -> Structure:
    return flatten(tree)[1]


def lines(saved: Any, wanted: Any) -> list[str]:
    return [str(d) for d in compare(structure(saved), structure(wanted))]


@given(trees, trees)
def test_the_differences_are_those_of_the_sets_of_paths(
    first: Any, second: Any
) -> None:
    have, want = structure(first), structure(second)
    found = compare(have, want)
    missing = [d.path for d in found if d.problem == "missing"]
    extra = [d.path for d in found if d.problem == "extra"]
    assert missing == [p for p in want.positions if p not in have.positions]
    assert extra == [p for p in have.positions if p not in want.positions]


@given(trees)
def test_a_structure_is_no_different_from_its_json(tree: Any) -> None:
    one = structure(tree)
    assert compare(Structure.from_json(one.to_json()), one) == ()


def test_everything_is_reported_at_once() -> None:
    saved = {"a": 1, "b": [1, 2], "c": {"d": 1}, "l": Layer(1, 2, "relu")}
    wanted = {"a": {"x": 1}, "b": [1], "e": None, "c": 3, "l": Layer(1, 2, "gelu")}
    assert lines(saved, wanted) == [
        "Expected a leaf, found nothing - at `a/x`",
        "Expected a leaf, found dict - at `c`",
        "Expected dict, found a leaf - at `a`",
        "Expected nothing, found a leaf - at `b/1`",
        "Expected nothing, found a leaf - at `c/d`",
        "Expected activation='gelu', found activation='relu' - at `l`",
    ]
    assert compare(structure(1), structure([1]))[1] == Difference(
        path="", problem="extra", expected="list", found="a leaf"
    )
    assert lines(1, [1])[1] == "Expected list, found a leaf - at the root"


@pytest.mark.parametrize(
    ("saved", "wanted"),
    [
        ([1, 2], (1, 2)),
        ([1, 2], {0: 1, 1: 2}),
        ({"x": 1, "y": 2}, Point(1, 2)),
        ({"b": 1, "a": 2}, OrderedDict(a=1, b=2)),
        ({"a": 1}, defaultdict(list, a=1)),
        ({"a": 1, "n": None, "e": {}}, {"a": 1}),
    ],
)
def test_paths_decide_whatever_the_containers(saved: Any, wanted: Any) -> None:
    assert lines(saved, wanted) == []
    assert lines(wanted, saved) == []


def test_a_string_and_a_number_are_different_keys() -> None:
    assert lines({"0": 1}, [1]) == [
        "Expected a leaf, found nothing - at `0`",
        "Expected nothing, found a leaf - at `'0'`",
    ]


def test_tied_paths_are_paths() -> None:
    a = np.ones(2)
    assert lines([a, a], [1, 2]) == []
    assert lines([1, 2], [a, a]) == []
    assert lines([a], [a, a]) == ["Expected a leaf, found nothing - at `1`"]


def test_static_values_count_only_where_both_have_one() -> None:
    assert lines(Layer(1, 2, "a"), {"weight": 1, "bias": 2}) == []
    assert lines(Layer(1, 2, len), Layer(1, 2, print)) == []
    assert lines(Layer(1, 2, "a"), Layer(1, 2, print)) == []
    assert lines(Layer(1, 2, print), Layer(1, 2, "a")) == []
    assert lines(Layer(1, 2, 1), Layer(1, 2, True)) == [
        "Expected activation=True, found activation=1 - at the root"
    ]
    assert lines(Layer(1, 2, (1,)), Layer(1, 2, [1])) == [
        "Expected activation=[1], found activation=(1,) - at the root"
    ]
    assert lines(Layer(1, 2, float("nan")), Layer(1, 2, float("nan"))) == []


def test_auxiliary_data_counts_between_nodes_of_one_type() -> None:
    assert lines(Box([1], (1,)), Box([1], (2,))) == [
        "Expected aux=(2,), found aux=(1,) - at the root"
    ]

    @jax.tree_util.register_pytree_node_class
    class Crate(Box):
        pass

    assert lines(Box([1], (1,)), Crate([1], (2,))) == []


def test_long_static_values_are_cut() -> None:
    [line] = lines(Layer(1, 2, "a" * 1000), Layer(1, 2, "b"))
    assert len(line) < 150
    assert "aaa..." in line
