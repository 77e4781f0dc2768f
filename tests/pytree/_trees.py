"""Random trees with hostile keys, and an equality that sees types and order."""

import dataclasses
import enum
import math
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st

HOSTILE = [
    *("a.b", "a/b", "..", ".", "...", "", "0", "-1", "007", "1_0", "+1", "1e5", " 1 "),
    *("True", "False", "None", "nan", "NaN", "inf", "-inf", "Infinity", "0.5", "a:b"),
    *("zarr.json", "Weight", "weight", "*", "**", "?", "[a]", "%2F", "%", "'", "'0'"),
    *("a b", "\n", "\x00", "\x7f", "é", "e\u0301", "\u0661", "\U0001f40d", "x" * 300),
    *("~", "\\", '"', "i", "n", "T", "F", "N", "_", "-", "int", "nn", "Norm"),
]


class Colour(enum.IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
    weight: Any
    bias: Any
    activation: Any = dataclasses.field(default="relu", metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Box:
    def __init__(self, items: Any, aux: Any) -> None:
        self.items, self.aux = items, aux

    def tree_flatten(self) -> Any:
        return self.items, self.aux

    @classmethod
    def tree_unflatten(cls, aux: Any, items: Any) -> "Box":
        return cls(items, aux)


texts = st.sampled_from(HOSTILE) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=8
)
keys = (
    texts
    | st.integers()
    | st.integers(-2, 2)
    | st.floats(allow_nan=False)
    | st.sampled_from([math.nan, 0.0, -0.0, 1e30, 1e-7, True, False, None])
)
leaves = st.integers() | st.builds(lambda n: np.arange(n), st.integers(0, 3))


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.lists(st.tuples(keys, children), max_size=5)
    return st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        pairs.map(dict),
        pairs.map(OrderedDict),
        pairs.map(lambda pairs: defaultdict(list, pairs)),
        st.builds(Point, children, children),
        st.builds(Layer, children, children, texts),
    )


trees = st.recursive(leaves | st.none(), containers, max_leaves=12)


def explain(tree: Any) -> Any:
    """Return a value that is equal for trees that are the same in every respect."""
    kind = type(tree)
    if isinstance(tree, np.ndarray):
        return kind, tree.dtype, tree.shape, tree.tobytes()
    if isinstance(tree, dict):
        factory = getattr(tree, "default_factory", None)
        items = [(type(k), repr(k), explain(v)) for k, v in tree.items()]
        return kind, factory, items
    if isinstance(tree, (list, tuple)):
        return kind, [explain(item) for item in tree]
    if isinstance(tree, Layer):
        return kind, explain(tree.weight), explain(tree.bias), tree.activation
    return kind, repr(tree)


def identify(keys: Any) -> Any:
    """Return a value that is equal for key sequences that are the same."""
    return [(type(key), repr(key)) for key in keys]
