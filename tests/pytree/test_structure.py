"""A structure's JSON loses nothing, and nothing else is taken for one."""

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytree import InvalidStructure, Structure, flatten, unflatten
from tests.pytree._trees import Layer, Point, explain, trees


def through_text(value: Any) -> Any:
    return json.loads(json.dumps(value, ensure_ascii=False).encode().decode())


@given(trees)
def test_json_gives_an_equal_structure(tree: Any) -> None:
    _, structure = flatten(tree)
    saved = Structure.from_json(through_text(structure.to_json()))
    assert saved == structure
    assert hash(saved) == hash(structure)
    assert saved.to_json() == structure.to_json()
    assert saved.paths == structure.paths
    assert saved.ties == structure.ties


@given(trees)
def test_a_tree_from_json_flattens_to_the_same_json(tree: Any) -> None:
    leaves, structure = flatten(tree)
    again = unflatten(Structure.from_json(structure.to_json()), leaves)
    more, structure_again = flatten(again)
    assert structure_again == structure
    assert list(more) == list(leaves)
    assert all(more[path] is leaves[path] for path in leaves)


@given(trees, trees)
def test_structures_are_equal_where_trees_are_but_for_leaves(
    first: Any, second: Any
) -> None:
    empty = [
        explain(unflatten(structure, dict.fromkeys(structure.paths, 0)))
        for structure in (flatten(first)[1], flatten(second)[1])
    ]
    same = flatten(first)[1] == flatten(second)[1]
    assert same == (empty[0] == empty[1])


def test_a_structure_equals_structures_only() -> None:
    _, structure = flatten([1])
    assert structure != structure.to_json()
    assert structure != structure.paths


def test_the_json_is_as_documented() -> None:
    a = np.zeros(1)
    tree = {"p": [a, a, None], 1: Point((), 2), "l": Layer(3, {True: 4}, "gelu")}
    _, structure = flatten(tree)
    name = "tests.pytree._trees"
    assert structure.to_json() == {
        "kind": "dict",
        "keys": ["p", 1, "l"],
        "children": [
            {"kind": "list", "children": [0, 0, None]},
            {
                "kind": "namedtuple",
                "type": f"{name}.Point",
                "keys": ["x", "y"],
                "children": [{"kind": "tuple", "children": []}, 1],
            },
            {
                "kind": "node",
                "type": f"{name}.Layer",
                "keys": ["weight", "bias"],
                "children": [2, {"kind": "dict", "keys": [True], "children": [3]}],
                "static": {"activation": {"json": "gelu"}},
            },
        ],
    }


def test_numbers_in_keys_are_written_so_that_no_reader_rounds_them() -> None:
    keys = [2**53, 2**53 + 1, -(2**70), 0.1, math.inf, math.nan, -0.0, None, True]
    _, structure = flatten(dict.fromkeys(keys, 0))
    assert structure.to_json()["keys"] == [
        2**53,
        {"int": "0x20000000000001"},
        {"int": "-0x400000000000000000"},
        {"float": "0x1.999999999999ap-4"},
        {"float": "inf"},
        {"float": "nan"},
        {"float": "-0x0.0p+0"},
        None,
        True,
    ]
    saved = Structure.from_json(structure.to_json())
    assert [repr(key) for key in unflatten(saved, {})] == [repr(key) for key in keys]


def test_structures_print_as_a_tree() -> None:
    a = np.zeros(1)
    tree = {"p": [a, a], "n": (None,), 0: Layer(1, Point(2, 3), "gelu")}
    assert repr(flatten(tree)[1]).splitlines() == [
        "Structure with 4 leaves",
        "  dict",
        "    p: list",
        "      0: *",
        "      1: = p/0",
        "    n: tuple",
        "      0: None",
        '    0: tests.pytree._trees.Layer activation="gelu"',
        "      weight: *",
        "      bias: tests.pytree._trees.Point",
        "        x: *",
        "        y: *",
    ]
    assert repr(flatten(1)[1]) == "Structure with 1 leaf\n  *"
    assert repr(flatten([0] * 100)[1]).endswith("58: *\n  ... and 41 more")


def dict_of(keys: Any, children: Any) -> Any:
    return {"kind": "dict", "keys": keys, "children": children}


def node_of(static: Any) -> Any:
    return {"kind": "node", "type": "T", "keys": [], "children": [], "static": static}


LIST = {"kind": "list", "children": []}
TWICE = "Expected each key once, found one twice - at $.keys."
NO_KEY = "Expected a key, found a dict - at $.keys[0]."
HOSTILE = [
    ("text", "Expected a leaf number, null or a node, found 'text' - at $."),
    (True, "Expected a leaf number, null or a node, found True - at $."),
    (0.0, "Expected a leaf number, null or a node, found 0.0 - at $."),
    ([], "Expected a leaf number, null or a node, found a list - at $."),
    (1, "Expected a leaf number up to 0, found 1 - at $."),
    (-1, "Expected a leaf number up to 0, found -1 - at $."),
    (2**4000, "Expected a leaf number up to 0, found a huge integer - at $."),
    ({}, "Expected a known kind of node, found None - at $.kind."),
    ({"kind": "set"}, "Expected a known kind of node, found 'set' - at $.kind."),
    ({"kind": "none"}, "Expected a known kind of node, found 'none' - at $.kind."),
    ({"kind": ["list"]}, "Expected a known kind of node, found a list - at $.kind."),
    (
        {"kind": "list"},
        "Expected a list with the fields children, kind, found 'kind' - at $.",
    ),
    (
        LIST | {"keys": []},
        "Expected a list with the fields children, kind, found 'children', 'keys', "
        "'kind' - at $.",
    ),
    (
        {"kind": "absent", "x": 1},
        "Expected a absent with the fields kind, found 'kind', 'x' - at $.",
    ),
    (
        dict_of([], []) | {"static": {}},
        "Expected a dict with the fields children, keys, kind, found 'children', "
        "'keys', 'kind', 'static' - at $.",
    ),
    (LIST | {"children": {}}, "Expected a list, found a dict - at $.children."),
    (LIST | {"children": None}, "Expected a list, found None - at $.children."),
    (
        LIST | {"children": [0, 2]},
        "Expected a leaf number up to 1, found 2 - at $.children[1].",
    ),
    (
        LIST | {"children": [LIST, LIST | {"children": [1]}]},
        "Expected a leaf number up to 0, found 1 - at $.children[1].children[0].",
    ),
    (dict_of("ab", [0, 1]), "Expected a list, found 'ab' - at $.keys."),
    (
        dict_of(["a"], [0, 1]),
        "Expected a key for each of 2 children, found 1 - at $.",
    ),
    (
        dict_of(["a", "a"], [0, 1]),
        TWICE,
    ),
    (
        dict_of([1, True], [0, 1]),
        TWICE,
    ),
    (
        dict_of([0, {"float": "0x0.0p+0"}], [0, 1]),
        TWICE,
    ),
    (
        dict_of([{"float": "nan"}, {"float": "nan"}], [0, 1]),
        TWICE,
    ),
    (dict_of([1.5], [0]), "Expected a key, found 1.5 - at $.keys[0]."),
    (dict_of([["a"]], [0]), "Expected a key, found a list - at $.keys[0]."),
    (dict_of([{"tuple": []}], [0]), NO_KEY),
    (dict_of([2**53 + 1], [0]), f"Expected a key, found {2**53 + 1} - at $.keys[0]."),
    (dict_of([{"int": "0x1"}], [0]), NO_KEY),
    (dict_of([{"int": 1}], [0]), NO_KEY),
    (dict_of([{"int": "0xg"}], [0]), NO_KEY),
    (dict_of([{"int": "0x0020000000000001"}], [0]), NO_KEY),
    (dict_of([{"float": "0x1p99999"}], [0]), NO_KEY),
    (dict_of([{"float": "0X1.8p+0"}], [0]), NO_KEY),
    (dict_of([{"float": "NAN"}], [0]), NO_KEY),
    (dict_of([{"float": "1"}], [0]), NO_KEY),
    (
        dict_of([{"float": "1e999999"}], [0]),
        NO_KEY,
    ),
    (
        dict_of(["a\ud800"], [0]),
        "Expected a key that is valid Unicode, found 'a\\ud800'. Remove its lone "
        "surrogates. - at $.keys.",
    ),
    (
        {"kind": "namedtuple", "type": "P", "keys": [0], "children": [0]},
        "Expected a field's name, found 0 - at $.keys[0].",
    ),
    (
        {"kind": "node", "type": "", "keys": [], "children": []},
        "Expected a name, found '' - at $.type.",
    ),
    (
        {"kind": "node", "type": 1, "keys": [], "children": []},
        "Expected a name, found 1 - at $.type.",
    ),
    (
        {"kind": "node", "type": "\udc00", "keys": [], "children": []},
        "Expected a name, found '\\udc00' - at $.type.",
    ),
    (node_of({}), "Expected an object with static values, found a dict - at $.static."),
    (node_of([]), "Expected an object with static values, found a list - at $.static."),
    (node_of({"": {"json": 1}}), "Expected a name, found '' - at $.static."),
    (node_of({"a": 1}), "Expected one of json and label, found 1 - at $.static."),
    (node_of({"a": {}}), "Expected one of json and label, found a dict - at $.static."),
    (
        node_of({"a": {"json": 1, "label": "x"}}),
        "Expected one of json and label, found a dict - at $.static.",
    ),
    (node_of({"a": {"label": 1}}), "Expected a name, found 1 - at $.static."),
    (
        node_of({"a": {"json": 0.5}}),
        "Expected static JSON, found 0.5 - at $.static.",
    ),
    (
        node_of({"a": {"json": {"set": []}}}),
        "Expected static JSON, found a dict - at $.static.",
    ),
    (
        node_of({"a": {"json": {"dict": [["a", 1], ["a", 2]]}}}),
        "Expected static JSON, found a dict - at $.static.",
    ),
    (
        node_of({"a": {"json": {"dict": [["a"]]}}}),
        "Expected a pair of a string and a value, found a list - at $.static.",
    ),
    (
        node_of({"a": {"json": {"dict": [[1, 1]]}}}),
        "Expected a pair of a string and a value, found a list - at $.static.",
    ),
    (
        node_of({"a": {"json": {"int": "12"}}}),
        "Expected a hexadecimal int, found '12' - at $.static.",
    ),
    (
        node_of({"a": {"json": {"float": "0x1"}}}),
        "Expected a hexadecimal float, found '0x1' - at $.static.",
    ),
    (
        node_of({"a": {"json": "\ud800"}}),
        "Expected static JSON, found '\\ud800' - at $.static.",
    ),
]


@pytest.mark.parametrize(("value", "message"), HOSTILE)
def test_whatever_is_no_structure_is_refused_by_place(value: Any, message: str) -> None:
    with pytest.raises(InvalidStructure) as error:
        Structure.from_json(value)
    assert str(error.value) == message


def test_deep_values_are_refused_before_the_stack_ends() -> None:
    value: Any = 0
    for _ in range(100):
        value = {"kind": "list", "children": [value]}
    Structure.from_json(value)
    with pytest.raises(InvalidStructure, match="Expected at most 100 nested nodes"):
        Structure.from_json({"kind": "list", "children": [value]})
    with pytest.raises(InvalidStructure, match="Expected at most 3 nested nodes"):
        Structure.from_json(value, max_depth=3)
    static: Any = 0
    for _ in range(900):
        static = [static]
    with pytest.raises(InvalidStructure, match="Expected static JSON"):
        Structure.from_json(node_of({"a": {"json": static}}))


def test_a_long_key_above_many_children_is_refused_before_they_have_paths() -> None:
    many = {"kind": "list", "children": [None] * 1000}
    with pytest.raises(InvalidStructure, match="Expected paths of at most 134217728"):
        Structure.from_json(dict_of(["k" * (1 << 18)], [many]))


def test_a_huge_integer_as_a_key_is_refused() -> None:
    with pytest.raises(InvalidStructure, match="integer string conversion"):
        Structure.from_json(dict_of([{"int": hex(1 << 20000)}], [0]))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 4) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "keys", "children", "type", "static", "json"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


def spots(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) within a JSON value."""
    if not isinstance(value, (list, dict)):
        return []
    items = list(value.items() if isinstance(value, dict) else enumerate(value))
    return [(value, key) for key, _ in items] + [
        spot for _, item in items for spot in spots(item)
    ]


@given(trees, json_values, st.data())
def test_a_changed_json_is_refused_or_says_all_it_says(
    tree: Any, other: Any, data: st.DataObject
) -> None:
    value = copy.deepcopy(flatten(tree)[1].to_json())
    places = spots(value)
    if places:
        container, key = data.draw(st.sampled_from(places))
        container[key] = other
    try:
        structure = Structure.from_json(value)
    except InvalidStructure:
        return
    assert json.dumps(structure.to_json()) == json.dumps(value)
    unflatten(structure, dict.fromkeys(structure.paths, 0))


@given(json_values)
def test_any_json_is_refused_or_says_all_it_says(value: Any) -> None:
    try:
        structure = Structure.from_json(value)
    except InvalidStructure:
        return
    assert structure.to_json() == value
