"""Any tree comes apart into named leaves, and together again as it was."""

import copy
import json
import pickle
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import freeze
from hypothesis import given

from pytree import (
    ABSENT,
    Absent,
    Structure,
    UnsupportedTree,
    flatten,
    parse_path,
    unflatten,
)
from tests.pytree._trees import HOSTILE, Colour, Layer, Point, explain, trees


def from_json(structure: Structure) -> Structure:
    return Structure.from_json(json.loads(json.dumps(structure.to_json())))


@given(trees)
def test_a_tree_comes_back_with_its_types_and_order(tree: Any) -> None:
    leaves, structure = flatten(tree)
    assert explain(unflatten(structure, leaves)) == explain(tree)


@given(trees)
def test_the_leaves_are_those_that_jax_finds(tree: Any) -> None:
    leaves, structure = flatten(tree)
    assert list(leaves) == list(structure.paths)
    mine = [explain(leaves[structure.ties.get(p, p)]) for p in structure.positions]
    try:
        other = [explain(leaf) for leaf in jax.tree_util.tree_leaves(tree)]
    except (TypeError, ValueError):
        return  # Keys of several types, which jax cannot sort.
    assert sorted(map(repr, mine)) == sorted(map(repr, other))


@given(trees)
def test_a_path_leads_to_its_leaf(tree: Any) -> None:
    leaves, _ = flatten(tree)
    for path, leaf in leaves.items():
        found = tree
        for key in parse_path(path):
            by_name = isinstance(found, (Point, Layer))
            found = getattr(found, str(key)) if by_name else lookup(found, key)
        assert found is leaf


def lookup(container: Any, key: Any) -> Any:
    if isinstance(container, dict):
        [value] = [v for k, v in container.items() if (type(k), repr(k)) == kind(key)]
        return value
    return container[key]


def kind(key: Any) -> tuple[type, str]:
    return type(key), repr(key)


def test_every_hostile_key_has_a_leaf_of_its_own() -> None:
    tree = {key: i for i, key in enumerate(HOSTILE)}
    leaves, structure = flatten({"a": tree, "b": {0: 1, "0": 2, True: 3, None: 4}})
    assert len(leaves) == len(HOSTILE) + 4
    assert unflatten(from_json(structure), leaves)["a"] == tree


def test_dicts_keep_their_order() -> None:
    tree = {"b": 1, "a": {2: 1, 1: 2}, "c": OrderedDict(z=1, y=2)}
    leaves, structure = flatten(tree)
    assert list(leaves) == ["b", "a/2", "a/1", "c/z", "c/y"]
    again = unflatten(from_json(structure), leaves)
    assert [*again, *again["a"], *again["c"]] == ["b", "a", "c", 2, 1, "z", "y"]


def test_a_tree_that_is_one_leaf_has_the_empty_path() -> None:
    leaves, structure = flatten(5)
    assert leaves == {"": 5}
    assert unflatten(from_json(structure), leaves) == 5


@pytest.mark.parametrize("tree", [None, {}, [], (), OrderedDict(), {"a": [{}, ()]}])
def test_empty_containers_come_back(tree: Any) -> None:
    leaves, structure = flatten(tree)
    assert leaves == {}
    assert explain(unflatten(from_json(structure), {})) == explain(tree)


def test_objects_that_jax_takes_for_leaves_are_leaves() -> None:
    thing = object()
    tree = {"a": thing, "b": {1, 2}, "c": "text", "d": jax.ShapeDtypeStruct((), "f4")}
    leaves, _ = flatten(tree)
    assert leaves == tree


def test_one_array_at_two_places_is_one_leaf() -> None:
    a, b = jnp.ones(3), np.ones(3)
    tree = {"x": a, "y": [b, a], "z": (np.ones(3), b)}
    leaves, structure = flatten(tree)
    assert list(leaves) == ["x", "y/0", "z/0"]
    assert structure.ties == {"y/1": "x", "z/1": "y/0"}
    assert structure.positions == ("x", "y/0", "y/1", "z/0", "z/1")
    saved = from_json(structure)
    assert saved == structure
    assert saved.ties == structure.ties
    again = unflatten(saved, leaves)
    assert again["x"] is again["y"][1] is a
    assert again["y"][0] is again["z"][1] is b
    assert again["z"][0] is tree["z"][0]


def test_a_typed_key_at_two_places_is_one_leaf() -> None:
    key = jax.random.key(0)
    leaves, structure = flatten([key, key])
    assert list(leaves) == ["0"]
    assert structure.ties == {"1": "0"}


def test_equal_scalars_at_two_places_are_two_leaves() -> None:
    leaves, structure = flatten([1, 1, "a", "a", np.float32(1), np.float32(1)])
    assert len(leaves) == 6
    assert structure.ties == {}


def test_a_tied_path_may_have_a_value_of_its_own() -> None:
    a = np.ones(3)
    _, structure = flatten([a, a])
    assert unflatten(structure, {"0": 1}) == [1, 1]
    assert unflatten(structure, {"0": 1, "1": 2}) == [1, 2]
    assert unflatten(structure, {"1": 2}) == [ABSENT, 2]


def test_a_path_without_a_value_takes_the_default() -> None:
    _, structure = flatten({"a": 1, "b": 2})
    assert unflatten(structure, {"b": 3}) == {"a": ABSENT, "b": 3}
    assert unflatten(structure, {"b": 3}, default=0) == {"a": 0, "b": 3}


def test_a_value_without_a_place_is_refused() -> None:
    _, structure = flatten({"a": 1})
    with pytest.raises(ValueError, match="found 2 others: b, c"):
        unflatten(structure, {"a": 1, "c": 2, "b": 2})


def test_a_defaultdict_keeps_its_order_and_factory() -> None:
    tree = defaultdict(list, {"b": 1, 0: 2})
    leaves, structure = flatten(tree)
    again = unflatten(structure, leaves)
    assert type(again) is defaultdict
    assert list(again.items()) == [("b", 1), (0, 2)]
    assert again["new"] == []


def test_a_namedtuple_is_made_without_its_constructor() -> None:
    class Checked(namedtuple("Checked", "x y")):
        __slots__ = ()

        def __new__(cls, x: int) -> "Checked":
            return super().__new__(cls, x, 2)

    leaves, structure = flatten(Checked(1))
    assert list(leaves) == ["x", "y"]
    again = unflatten(structure, leaves)
    assert (type(again), tuple(again)) == (Checked, (1, 2))


def test_a_class_that_jax_calls_by_methods_is_named_by_position() -> None:
    @jax.tree_util.register_pytree_node_class
    class Pair:
        def __init__(self, *items: Any) -> None:
            self.items = items
            self.aux: Any = None

        def tree_flatten(self) -> tuple[Any, Any]:
            return self.items, {"scale": 2.5, "mode": ("a", 1)}

        @classmethod
        def tree_unflatten(cls, aux: Any, children: Any) -> "Pair":
            made = cls(*children)
            made.aux = aux
            return made

    leaves, structure = flatten(Pair(1, [2, 3]))
    assert leaves == {"0": 1, "1/0": 2, "1/1": 3}
    again = unflatten(structure, leaves)
    assert (type(again), again.items) == (Pair, (1, [2, 3]))
    assert again.aux == {"scale": 2.5, "mode": ("a", 1)}
    record = unflatten(from_json(structure), leaves)
    assert record.aux == again.aux


def test_children_that_share_a_key_are_named_by_position() -> None:
    class Twins:
        def __init__(self, *items: Any) -> None:
            self.items = items

    key = jax.tree_util.GetAttrKey("same")
    jax.tree_util.register_pytree_with_keys(
        Twins, lambda t: ([(key, i) for i in t.items], None), lambda _, c: Twins(*c)
    )
    leaves, structure = flatten(Twins(1, 2))
    assert leaves == {"0": 1, "1": 2}
    assert unflatten(structure, leaves).items == (1, 2)


def test_keys_that_python_takes_for_equal_are_named_by_position() -> None:
    class Flags:
        def __init__(self, *items: Any) -> None:
            self.items = items

    keys = (jax.tree_util.DictKey(1), jax.tree_util.DictKey(True))
    jax.tree_util.register_pytree_with_keys(
        Flags,
        lambda f: (list(zip(keys, f.items, strict=True)), None),
        lambda _, c: Flags(*c),
    )
    leaves, structure = flatten(Flags("one", "true"))
    assert leaves == {"0": "one", "1": "true"}
    assert from_json(structure) == structure


def test_a_registered_namedtuple_keeps_its_auxiliary_data() -> None:
    class Tagged(namedtuple("Tagged", "x y")):
        tag = ""

    def name_children(tagged: Tagged) -> Any:
        names = map(jax.tree_util.GetAttrKey, tagged._fields)
        return list(zip(names, tagged, strict=True)), tagged.tag

    def put_back(tag: str, children: Any) -> Tagged:
        made = Tagged(*children)
        made.tag = tag
        return made

    jax.tree_util.register_pytree_with_keys(Tagged, name_children, put_back)
    leaves, structure = flatten(put_back("blue", [1, 2]))
    assert structure.to_json()["static"] == {"aux": {"json": "blue"}}
    assert unflatten(structure, leaves).tag == "blue"


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ((1, 2), "builtins.tuple"),
        (b"a", "builtins.bytes"),
        (Colour.RED, "tests.pytree._trees.Colour"),
        (np.int64(1), "numpy.int64"),
        (np.float64(1), "numpy.float64"),
        (Text("a"), f"{__name__}.Text"),
        ("a\ud800", r"'a\ud800'"),
        (10**5000, "builtins.int"),
    ],
    ids=["tuple", "bytes", "enum", "int64", "float64", "str", "surrogate", "huge"],
)
def test_other_keys_are_refused_by_path(key: Any, found: str) -> None:
    with pytest.raises(UnsupportedTree) as error:
        flatten({"a": [{key: 1}]})
    assert str(error.value) == (
        "Expected keys of type str (valid Unicode), int (up to 4300 digits), float, "
        f"bool or None, found {found} - at `a/0`. "
        "Convert the keys before the tree is saved."
    )


def test_other_keys_of_registered_mappings_are_refused_by_path() -> None:
    with pytest.raises(UnsupportedTree, match=r"found builtins\.tuple - at `a`"):
        flatten({"a": freeze({(1, 2): 3})})
    with pytest.raises(UnsupportedTree, match="Expected a node that jax can flatten"):
        flatten({"a": freeze({0: 1, "0": 2})})


def test_two_keys_with_one_text_are_refused() -> None:
    with pytest.raises(UnsupportedTree, match="found nan twice - at the root"):
        flatten({float("nan"): 1, float("nan"): 2})


class MyDict(dict[str, Any]):
    pass


class MyList(list[Any]):
    pass


class MyTuple(tuple[Any, ...]):
    __slots__ = ()


@pytest.mark.parametrize("container", [MyDict(a=1), MyList([1]), MyTuple([1])])
def test_containers_that_jax_does_not_know_are_refused(container: Any) -> None:
    with pytest.raises(UnsupportedTree) as error:
        flatten({"a": {"b": container}})
    assert str(error.value) == (
        f"Expected a container that jax knows, found {__name__}."
        f"{type(container).__name__} - at `a/b`. "
        "Register it with jax.tree_util, or convert it."
    )


def test_a_node_that_jax_cannot_flatten_is_refused_by_path() -> None:
    class Broken:
        pass

    def fail(_: Broken) -> Any:
        raise RuntimeError("no luck")

    jax.tree_util.register_pytree_node(Broken, fail, lambda *_: Broken())
    with pytest.raises(UnsupportedTree, match="no luck - at `a/0`"):
        flatten({"a": [Broken()]})


def test_cycles_are_refused_by_path() -> None:
    tree: dict[str, Any] = {"a": [1]}
    tree["a"].append({"b": tree})
    with pytest.raises(UnsupportedTree, match="contains itself - at `a/1/b`"):
        flatten(tree)
    pair: list[Any] = []
    pair += [pair, pair]
    with pytest.raises(UnsupportedTree, match="contains itself - at `0`"):
        flatten(pair)


def test_a_node_that_is_its_own_child_is_refused() -> None:
    @jax.tree_util.register_pytree_node_class
    class Loop:
        def tree_flatten(self) -> tuple[Any, Any]:
            return (self,), None

        @classmethod
        def tree_unflatten(cls, _: Any, __: Any) -> "Loop":
            return cls()

    with pytest.raises(UnsupportedTree, match="contains itself - at `0`"):
        flatten(Loop())


def test_a_container_may_stand_at_two_places() -> None:
    shared = {"w": 1}
    assert flatten([shared, shared])[0] == {"0/w": 1, "1/w": 1}


def nest(depth: int, leaf: Any) -> Any:
    for _ in range(depth):
        leaf = [leaf]
    return leaf


def test_one_hundred_nested_containers_are_the_most() -> None:
    for leaf in (1, None, ABSENT):
        leaves, structure = flatten(nest(100, leaf))
        assert unflatten(from_json(structure), leaves) == nest(100, leaf)
    with pytest.raises(UnsupportedTree, match="at most 100 nested containers"):
        flatten(nest(101, 1))


def test_a_tree_may_have_any_number_of_containers_side_by_side() -> None:
    tree = [{"a": [i]} for i in range(300)]
    leaves, structure = flatten(tree)
    assert unflatten(from_json(structure), leaves) == tree


def test_the_absent_node_has_no_leaves() -> None:
    tree = {"a": ABSENT, "b": 1}
    assert jax.tree_util.tree_leaves(tree) == [1]
    assert jax.tree_util.tree_map(lambda x: x + 1, tree) == {"a": ABSENT, "b": 2}
    leaves, structure = flatten(tree)
    assert leaves == {"b": 1}
    assert unflatten(from_json(structure), leaves)["a"] is ABSENT
    assert unflatten(structure, leaves)["a"] is ABSENT


def test_there_is_one_absent_node() -> None:
    assert Absent() is ABSENT
    assert copy.copy(ABSENT) is copy.deepcopy(ABSENT) is ABSENT
    assert pickle.loads(pickle.dumps(ABSENT)) is ABSENT
    assert repr(ABSENT) == "ABSENT"
    assert jax.tree_util.tree_map(lambda x: x, [ABSENT])[0] is ABSENT


def test_a_structure_holds_no_leaves() -> None:
    class Leaf:
        alive = 0

        def __init__(self) -> None:
            Leaf.alive += 1

        def __del__(self) -> None:
            Leaf.alive -= 1

    tree = {"a": Leaf(), "b": Point(Leaf(), Layer(Leaf(), [Leaf()]))}
    structure = flatten(tree)[1]
    del tree
    assert len(structure.paths) == 4
    assert Leaf.alive == 0
