"""A node of an unknown type comes back as a record that stands for it."""

import copy
import pickle
from collections import defaultdict, namedtuple
from math import nan
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pytree import Record, Structure, flatten, unflatten
from tests.pytree._trees import Layer, Point


def forget(tree: Any) -> Any:
    """Return the tree as it comes back where no type is known."""
    leaves, structure = flatten(tree)
    return unflatten(Structure.from_json(structure.to_json()), leaves)


def test_fields_are_attributes_and_items() -> None:
    record = forget(Layer(1, [2, 3], "gelu"))
    assert type(record) is Record
    assert record.type_name == "tests.pytree._trees.Layer"
    assert (record.weight, record["bias"], record.activation) == (1, [2, 3], "gelu")
    assert record["activation"] == "gelu"
    assert dict(record.fields) == {"activation": "gelu", "weight": 1, "bias": [2, 3]}
    assert {"weight", "bias", "activation"} <= set(dir(record))


def test_a_record_prints_its_type_and_fields() -> None:
    name = "tests.pytree._trees"
    assert repr(forget(Point(1, Layer(2, 3, len)))) == (
        f"Record[{name}.Point](x=1, y=Record[{name}.Layer]"
        "(activation=<builtins.len>, weight=2, bias=3))"
    )
    assert "0=1, None=2" in repr(forget(defaultdict(list, {0: 1, None: 2})))


def test_fields_that_are_not_there_are_an_error() -> None:
    record = forget(Point(1, 2))
    with pytest.raises(AttributeError, match=r"_trees\.Point has no field 'z'"):
        _ = record.z
    with pytest.raises(KeyError):
        record["z"]
    assert not hasattr(record, "__len__")


def test_a_record_cannot_be_changed() -> None:
    record = forget(Point(1, 2))
    with pytest.raises(AttributeError, match="cannot assign to field 'x'"):
        record.x = 3
    with pytest.raises(TypeError):
        record.fields["x"] = 3


@pytest.mark.parametrize("names", ["fields type_name", "_tag _children", "x keys"])
def test_a_field_may_be_called_like_an_attribute(names: str) -> None:
    first, second = names.split()
    record = forget(namedtuple("T", names.replace("_", "a"))(1, 2))
    assert list(record.fields.values()) == [1, 2]
    record = forget({"a": defaultdict(int, {first: 1, second: 2})})["a"]
    assert (record[first], record[second]) == (1, 2)
    assert forget(record) == record


@pytest.mark.parametrize(
    "tree",
    [
        Point(1, Layer(jnp.float32(2), {"a": 3}, "gelu")),
        Layer(1, 2, len),
        defaultdict(list, {"b": 1, 0: 2, None: {}}),
        Point(Point((), None), 1),
    ],
)
def test_a_record_flattens_like_what_was_saved(tree: Any) -> None:
    leaves, structure = flatten(tree)
    record = forget(tree)
    more, again = flatten(record)
    assert again == structure
    assert more == leaves
    assert unflatten(again, more) == record == forget(record)


def test_a_record_is_a_pytree_with_keys() -> None:
    record = forget(Point(1, {"a": [2]}))
    paths = [
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_leaves_with_path(record)
    ]
    assert paths == [".x", ".y['a'][0]"]
    doubled = jax.tree_util.tree_map(lambda x: 2 * x, record)
    assert doubled == forget(Point(2, {"a": [4]}))


def test_records_go_through_jit() -> None:
    record = forget(Layer(jnp.ones(2), 3, {"a": [1, (2.5, None)]}))
    out = jax.jit(lambda r: jax.tree_util.tree_map(lambda x: x + 1, r))(record)
    assert out.weight.tolist() == [2, 2]
    assert out.activation == {"a": [1, (2.5, None)]}


def test_records_are_equal_where_everything_is() -> None:
    record = forget(Layer(1, 2, "relu"))
    assert record == forget(Layer(1, 2, "relu"))
    assert hash(record) == hash(forget(Layer(1, 2, "relu")))
    assert record != forget(Layer(1, 2, "gelu"))
    assert record != forget(Layer(1, 3, "relu"))
    assert forget(Layer(1, 2, True)) != forget(Layer(1, 2, 1))
    assert forget(defaultdict(int, {nan: 0})) == forget(defaultdict(int, {nan: 0}))
    one, true = defaultdict(int, {1: 0}), defaultdict(int, {True: 0})
    assert forget(one) != forget(true)


def test_records_can_be_copied_and_pickled() -> None:
    record = forget(Point(1, [2]))
    for other in (
        copy.copy(record),
        copy.deepcopy(record),
        pickle.loads(pickle.dumps(record)),
    ):
        assert other == record
        assert other.y == [2]
