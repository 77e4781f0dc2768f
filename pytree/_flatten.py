"""From a tree to its leaves by path, and its structure."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import jax
import jax.tree_util as jtu
import numpy as np

from ._absent import ABSENT
from ._errors import UnsupportedTree, at
from ._node import ABSENT_NODE, NONE, Node
from ._path import format_key
from ._record import Record, make_record, open_record
from ._static import Static, make_static, name_of
from ._structure import Structure, make_structure

_DEPTH = 100


def flatten(tree: Any) -> tuple[dict[str, Any], Structure]:
    """Return a tree's leaves by path, in container order, and its structure.

    Containers are what jax takes for one, but dicts keep their order and may mix keys
    of type str, int, float, bool and None. An array object that occurs twice is one
    leaf, under its first path. Any other object is a leaf. The structure remembers how
    to make each container, so `unflatten` gives the same types; its JSON does not.

    Raises UnsupportedTree, naming the path, for other keys, for subclasses of dict,
    list and tuple that jax does not know, for cycles and for nodes nested deeper
    than 100.

    >>> leaves, structure = flatten({"w": 1.5, "layers": [{"b": 2}, None]})
    >>> leaves
    {'w': 1.5, 'layers/0/b': 2}
    """
    walker = _Walker()
    root = walker.walk(tree, "", 0)
    structure = make_structure(root, positions=walker.positions, numbers=walker.numbers)
    return walker.leaves, structure


class _Walker:
    """Walks one tree; collects its leaves on the way."""

    __slots__ = ("above", "leaf_types", "leaves", "numbers", "positions", "seen")

    def __init__(self) -> None:
        self.leaves: dict[str, Any] = {}
        self.positions: list[str] = []
        self.numbers: list[int] = []
        self.seen: dict[int, int] = {}
        self.above: set[int] = set()
        # Whether jax takes it for a leaf goes by type; the value: whether it is tied.
        self.leaf_types: dict[type, bool] = {}

    def walk(self, tree: Any, path: str, depth: int) -> Node | int:
        if tree is None:
            return NONE
        if tree is ABSENT:
            return ABSENT_NODE
        if id(tree) in self.above:
            raise UnsupportedTree(
                "Expected a tree, found a container that contains itself - "
                f"{at(path)}. Take it out."
            )
        self.above.add(id(tree))
        node = self._walk_container(tree, path, depth)
        self.above.discard(id(tree))
        return node

    def _add_leaf(self, leaf: Any, path: str) -> int:
        number = len(self.leaves)
        if self.leaf_types[type(leaf)]:
            number = self.seen.setdefault(id(leaf), number)
        if number == len(self.leaves):
            self.leaves[path] = leaf
        self.positions.append(path)
        self.numbers.append(number)
        return number

    def _walk_container(self, tree: Any, path: str, depth: int) -> Node | int:
        kind = cast(type[object], type(tree))
        if kind is list or kind is tuple:
            keys = tuple(range(len(tree)))
            children = self._walk_children(keys, tree, path, depth)
            return Node("list" if kind is list else "tuple", children, keys)
        # Not by way of jax, which would sort the keys.
        if kind is dict or kind is OrderedDict or kind is defaultdict:
            keys = tuple(tree)
            children = self._walk_children(keys, tree.values(), path, depth)
            if kind is not defaultdict:
                return Node("dict" if kind is dict else "OrderedDict", children, keys)
            factory = tree.default_factory
            static = (("default_factory", make_static(factory)),)
            build = partial(_build_defaultdict, factory, keys)
            return Node("node", children, keys, name_of(kind), static, build)
        if kind is Record:
            return self._walk_record(tree, path, depth)
        return self._walk_registered(tree, path, depth)

    def _walk_record(self, record: Record, path: str, depth: int) -> Node:
        tag, items = open_record(record)
        children = self._walk_children(tag.keys, items, path, depth)
        node = Node(tag.kind, children, tag.keys, tag.type, tag.static)
        return dataclasses.replace(node, build=partial(make_record, node))

    def _walk_registered(self, tree: Any, path: str, depth: int) -> Node | int:
        cls = cast(type[object], type(tree))
        try:
            entries, treedef = _flatten_one_level(tree)
        except Exception as error:
            raise UnsupportedTree(
                f"Expected a node that jax can flatten, found {name_of(cls)}: {error} "
                f"- {at(path)}. Flatten it into a dict of arrays before it is saved."
            ) from error
        data = treedef.node_data()
        if data is None:
            if isinstance(tree, (dict, list, tuple)):
                raise UnsupportedTree(
                    f"Expected a container that jax knows, found {name_of(cls)} - "
                    f"{at(path)}. Register it with jax.tree_util, or convert it."
                )
            self.leaf_types[cls] = isinstance(tree, (jax.Array, np.ndarray))
            return self._add_leaf(tree, path)
        entry_keys = [path[0] for path, _ in entries]
        keys = _read_keys(entry_keys)
        items = [item for _, item in entries]
        children = self._walk_children(keys, items, path, depth)
        aux = data[1]
        if isinstance(tree, tuple) and aux is None and keys == _field_names(cls):
            build = cast(Any, cls)._make
            return Node("namedtuple", children, keys, name_of(cls), (), build)
        static = _read_static(tree, keys, aux)
        if all(isinstance(entry, jtu.DictKey) for entry in entry_keys):
            # Mappings repeat their keys there, in jax's order, whatever they hold.
            static = () if static == (("aux", make_static(keys)),) else static
        return Node("node", children, keys, name_of(cls), static, treedef.unflatten)

    def _walk_children(
        self, keys: tuple[Any, ...], items: Iterable[Any], path: str, depth: int
    ) -> tuple[Node | int, ...]:
        if depth >= _DEPTH:
            raise UnsupportedTree(
                f"Expected at most {_DEPTH} nested containers, found more - "
                f"{at(path)}. Save what is below by itself."
            )
        below = f"{path}/" if path else ""
        segments = _format_keys(keys, path)
        walk, leaf_types = self.walk, self.leaf_types
        return tuple(
            [
                self._add_leaf(item, below + segment)
                if type(item) in leaf_types
                else walk(item, below + segment, depth + 1)
                for segment, item in zip(segments, items, strict=True)
            ]
        )


def _format_keys(keys: tuple[Any, ...], path: str) -> list[str]:
    """Return the segments of a container's keys, refusing what no path can hold."""
    segments: list[str] = []
    for key in keys:
        try:
            segments.append(format_key(key))
        except (TypeError, ValueError) as error:
            cls = cast(type[object], type(key))
            found = ascii(key)[:100] if cls is str else name_of(cls)
            raise UnsupportedTree(
                "Expected keys of type str (valid Unicode), int (up to 4300 digits), "
                f"float, bool or None, found {found} - {at(path)}. "
                "Convert the keys before the tree is saved."
            ) from error
    if len(set(segments)) < len(segments):
        twice = next(s for i, s in enumerate(segments) if s in segments[:i])
        raise UnsupportedTree(
            f"Expected keys that differ as text, found {twice} twice - {at(path)}. "
            "Keep one of them."
        )
    return segments


def _flatten_one_level(tree: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Return a node's children by jax's key path, and a treedef that puts them back."""
    flatten_with_path = cast(Any, jtu.tree_flatten_with_path)  # pyright: ignore[reportUnknownMemberType]
    # By counting, not by identity: a node may be its own child.
    first = iter((False,))

    def is_leaf(_: object) -> bool:
        return next(first, True)

    return flatten_with_path(tree, is_leaf=is_leaf)


def _build_defaultdict(factory: Any, keys: tuple[Any, ...], items: list[Any]) -> Any:
    return defaultdict(factory, zip(keys, items, strict=True))


def _read_keys(entries: list[Any]) -> tuple[Any, ...]:
    """Return the keys that jax gives to a node's children; positions where none."""
    keys: list[Any] = []
    for i, entry in enumerate(entries):
        if isinstance(entry, (jtu.DictKey, jtu.FlattenedIndexKey)):
            keys.append(entry.key)
        elif isinstance(entry, jtu.GetAttrKey):
            keys.append(entry.name)
        else:
            keys.append(entry.idx if isinstance(entry, jtu.SequenceKey) else i)
    # Some types give all children one key; they still have an order.
    try:
        differ = len({format_key(key) for key in keys}) == len(keys) == len(set(keys))
    except (TypeError, ValueError):
        differ = True
    return tuple(keys) if differ else tuple(range(len(keys)))


def _field_names(cls: type) -> tuple[str, ...] | None:
    return getattr(cls, "_fields", None)


def _read_static(
    tree: Any, keys: tuple[Any, ...], aux: Any
) -> tuple[tuple[str, Static], ...]:
    """Return the fields that are no children, or else the auxiliary data."""
    if dataclasses.is_dataclass(tree):
        names = [field.name for field in dataclasses.fields(tree)]
        if set(keys) <= set(names):
            return tuple(
                [
                    (name, make_static(getattr(tree, name)))
                    for name in names
                    if name not in keys and hasattr(tree, name)
                ]
            )
    return () if aux is None else (("aux", make_static(aux)),)
