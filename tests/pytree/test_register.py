"""A registered class is what nodes saved under its name come back as."""

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import jax
import pytest

from pytree import Record, Structure, flatten, register, unflatten


def forget(tree: Any) -> Any:
    leaves, structure = flatten(tree)
    return unflatten(Structure.from_json(structure.to_json()), leaves)


STATIC = {"static": True}


def test_a_namedtuple_comes_back() -> None:
    cls = register(namedtuple("First", "x y"))
    again = forget({"a": cls(1, cls([2], None))})["a"]
    assert (type(again), again) == (cls, cls(1, cls([2], None)))


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"slots": True}])
def test_a_dataclass_comes_back_without_a_call_of_init(options: Any) -> None:
    class Counted:
        x: Any
        name: str = dataclasses.field(metadata=STATIC)
        size: int = dataclasses.field(metadata=STATIC, init=False, default=0)

        def __post_init__(self) -> None:
            object.__setattr__(self, "size", len(self.name))

    Counted.__qualname__ = f"Counted{''.join(options)}"
    cls: Any = dataclasses.dataclass(**options)(Counted)
    register(jax.tree_util.register_dataclass(cls, ["x"], ["name"]))
    one = cls(1, "abc")
    object.__setattr__(one, "size", 7)
    again = forget(one)
    assert type(again) is cls
    assert (again.x, again.name, again.size) == (1, "abc", 7)


def test_a_static_value_that_json_cannot_hold_takes_the_fields_default() -> None:
    @register
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Step:
        x: Any
        loss: Any = dataclasses.field(metadata=STATIC, default=len)
        names: Any = dataclasses.field(metadata=STATIC, default_factory=set)

    again = forget(Step(1, print, {"a"}))
    assert (again.x, again.loss, again.names) == (1, len, set())


def test_a_field_without_any_value_is_an_error() -> None:
    @register
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Bare:
        x: Any
        loss: Any = dataclasses.field(metadata=STATIC)

    with pytest.raises(ValueError, match="Expected a value for the field loss of the"):
        forget(Bare(1, print))


def test_any_class_comes_back_by_its_function() -> None:
    @jax.tree_util.register_pytree_node_class
    class Pair:
        def __init__(self, items: Any, scale: Any) -> None:
            self.items, self.scale = items, scale

        def tree_flatten(self) -> Any:
            return self.items, self.scale

        @classmethod
        def tree_unflatten(cls, scale: Any, items: Any) -> "Pair":
            return cls(items, scale)

    register(Pair, unflatten=lambda kids, static: Pair((kids[0], kids[1]), static))
    again = forget(Pair((1, [2]), 2.5))
    assert (type(again), again.items, again.scale) == (Pair, (1, [2]), {"aux": 2.5})
    labelled = forget(Pair((1, 2), len))
    assert labelled.scale == {}


def test_a_class_that_has_moved_is_registered_under_its_old_name() -> None:
    old = namedtuple("Old", "x")
    new = namedtuple("New", "x y", defaults=[5])
    assert register(new, name=f"{__name__}.Old") is new
    assert forget(old(1)) == new(1, 5)
    assert type(forget(new(1, 2))) is Record


def test_a_field_that_the_class_does_not_have_is_an_error() -> None:
    big = namedtuple("Big", "x y z")
    small = namedtuple("Small", "x", defaults=[0])
    register(small, name=f"{__name__}.Big")
    with pytest.raises(ValueError, match=r"Small, found \['y', 'z'\]"):
        forget(big(1, 2, 3))
    register(namedtuple("Wide", "x y z w"), name=f"{__name__}.Big2")
    big.__qualname__ = "Big2"
    with pytest.raises(ValueError, match="Expected a value for the field w"):
        forget(big(1, 2, 3))


def test_the_structure_of_a_live_tree_wins_over_what_is_registered() -> None:
    mine = namedtuple("Mine", "x")
    register(namedtuple("Other", "x"), name=f"{__name__}.Mine")
    leaves, structure = flatten(mine(1))
    assert type(unflatten(structure, leaves)) is mine


def test_two_classes_cannot_have_one_name() -> None:
    cls = namedtuple("Taken", "x")
    register(cls)
    register(cls)
    with pytest.raises(ValueError, match=f"one class named {__name__}.Taken, found a"):
        register(namedtuple("Taken", "x"))
    again = forget(cls(1))
    assert type(again) is cls


@pytest.mark.parametrize("cls", [int, OrderedDict, type("Plain", (), {})])
def test_a_class_that_needs_a_function_is_refused_without(cls: type) -> None:
    with pytest.raises(TypeError, match="Pass unflatten=, which makes an object"):
        register(cls)


def test_no_name_in_a_file_imports_anything() -> None:
    value = {
        "kind": "node",
        "type": "this.is_not_imported",
        "keys": ["x"],
        "children": [0],
        "static": {"f": {"label": "antigravity.geohash"}},
    }
    record = unflatten(Structure.from_json(value), {"x": 1})
    assert type(record) is Record
    assert repr(record) == "Record[this.is_not_imported](f=<antigravity.geohash>, x=1)"
