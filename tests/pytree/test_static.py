"""Static data of nodes is stored so that nothing is lost, or as a label."""

import functools
import json
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytree import Structure, flatten, unflatten
from tests.pytree._trees import Box, Colour, Layer, texts

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts, inner, max_size=3)
    ),
    max_leaves=8,
)


def save(value: Any) -> Any:
    """Return the JSON of a node with a static value."""
    structure = flatten(Layer(1, 2, value))[1]
    return json.loads(json.dumps(structure.to_json()))


def restore(value: Any) -> Any:
    """Return a static value as it is in the record that a saved node becomes."""
    return unflatten(Structure.from_json(save(value)), {}).activation


@given(values)
def test_values_that_json_can_hold_come_back_the_same(value: Any) -> None:
    # The text of these types says everything about them, -0.0 and 1 or True included.
    assert repr(restore(value)) == repr(value)


@given(values, values)
def test_different_values_have_different_json(first: Any, second: Any) -> None:
    assert (repr(first) == repr(second)) == (
        json.dumps(save(first)) == json.dumps(save(second))
    )


def some_function() -> None: ...


CYCLE: list[Any] = []
CYCLE += [CYCLE, CYCLE]


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (some_function, f"{__name__}.some_function"),
        (math.sqrt, "math.sqrt"),
        ([].append, "list.append"),
        (str.upper, "str.upper"),
        (dict, "builtins.dict"),
        (Layer, "tests.pytree._trees.Layer"),
        (functools.partial(print, 1), "functools.partial"),
        (np.zeros(3), "numpy.ndarray"),
        (np.dtype("f4"), "numpy.dtypes.Float32DType"),
        (object(), "builtins.object"),
        ({1, 2}, "builtins.set"),
        ({1: 2}, "builtins.dict"),
        ({"a\ud800": 1}, "builtins.dict"),
        ((1, some_function), "builtins.tuple"),
        (Colour.RED, "tests.pytree._trees.Colour"),
        (np.float64(1), "numpy.float64"),
        ("a\ud800", "builtins.str"),
        (1j, "builtins.complex"),
        (b"a", "builtins.bytes"),
        (CYCLE, "builtins.list"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),
)
def test_other_values_are_labels(value: Any, label: str) -> None:
    assert save(value)["static"] == {"activation": {"label": label}}
    assert repr(restore(value)) == f"<{label}>"
    leaves, structure = flatten(Layer(1, 2, value))
    assert unflatten(structure, leaves).activation is value


def test_a_label_never_holds_an_address() -> None:
    static = save([jax.jit(some_function), lambda: 0, object(), jnp.float32])["static"]
    assert "0x" not in json.dumps(static)


def test_a_static_list_that_changes_later_changes_nothing() -> None:
    value = [1, 2]
    structure = flatten(Layer(1, 2, value))[1]
    before = structure.to_json()
    value.append(3)
    assert structure.to_json() == before


def test_auxiliary_data_that_repeats_the_keys_is_not_stored() -> None:
    class Bag:
        def __init__(self, **items: Any) -> None:
            self.items = items

    jax.tree_util.register_pytree_with_keys(
        Bag,
        lambda b: (
            [(jax.tree_util.DictKey(k), v) for k, v in b.items.items()],
            tuple(b.items),
        ),
        lambda keys, items: Bag(**dict(zip(keys, items, strict=True))),
    )
    leaves, structure = flatten(Bag(a=1, b=2))
    assert "static" not in structure.to_json()
    assert unflatten(structure, leaves).items == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("aux", "static"),
    [
        ((0, 1), {"json": {"tuple": [0, 1]}}),
        ((False, True), {"json": {"tuple": [False, True]}}),
        ((), {"json": {"tuple": []}}),
        (0, {"json": 0}),
        ((np.zeros(2), np.zeros(2)), {"label": "builtins.tuple"}),
    ],
)
def test_other_auxiliary_data_is_stored(aux: Any, static: Any) -> None:
    leaves, structure = flatten(Box((1, 2), aux))
    assert structure.to_json()["static"] == {"aux": static}
    assert unflatten(structure, leaves).aux is aux
