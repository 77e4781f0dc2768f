"""What an Orbax item says of its tree: leaves by name, and the nodes they hang on.

Sequences come back as lists, since Orbax records tuples as sequences too, and the keys
of dicts as text, since it records no others. Empty nodes come back as they were.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from ._orbax_json import MAX_DEPTH, as_object, parse, untrusted

Key: TypeAlias = "str | int"
Kind: TypeAlias = Literal["value", "text", "array", "numpy", "scalar", "unsaved"]

_KINDS: dict[str, Kind] = {
    "string": "text",
    "scalar": "scalar",
    "np.ndarray": "numpy",
}
_EMPTY: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "Dict": dict,
    "List": list,
    "Tuple": tuple,
    "NamedTuple": tuple,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One leaf or empty node: its keys, ints in a sequence, and what it is.

    A "value" is here; the others are under their name elsewhere, or were not saved.
    """

    keys: tuple[Key, ...]
    kind: Kind
    name: str
    value: Any = None


def parse_entries(tree: Any, *, where: str) -> list[Entry]:
    """Return the entries of a `tree_metadata`; Untrusted unless it is one."""
    if not isinstance(tree, dict):
        raise untrusted("a tree_metadata", tree, where)
    return [_entry(value, where) for value in cast("dict[str, Any]", tree).values()]


def _entry(value: Any, where: str) -> Entry:
    match value:
        case {
            "key_metadata": [*keys],
            "value_metadata": {"value_type": str(told), **rest},
        } if len(keys) <= MAX_DEPTH:
            found = tuple(key for item in keys if (key := _key(item)) is not None)
            if len(found) == len(keys):
                name = ".".join(map(str, found))
                if rest.get("skip_deserialize") is not True:
                    return Entry(found, _KINDS.get(told, "array"), name)
                if told in _EMPTY:
                    return Entry(found, "value", name, _EMPTY[told]())
                return Entry(found, "unsaved", name)
        case _:
            pass
    raise untrusted("keys and the kind of a value", value, where)


def _key(value: Any) -> Key | None:
    match value:
        case {"key": str(key), "key_type": 2}:
            return key
        case {"key": str(key), "key_type": 1} if re.fullmatch(r"0|[1-9]\d{0,8}", key):
            return int(key)
        case _:
            return None


def build_tree(leaves: Mapping[tuple[Key, ...], Any], *, where: str) -> Any:
    """Return the tree of leaves by their keys.

    >>> build_tree({("a", 0): 1, ("a", 1): 2, ("b",): None}, where="")
    {'a': [1, 2], 'b': None}
    """
    root = _Node({})
    for keys, leaf in leaves.items():
        node = root
        for key in keys:
            node = node.children.setdefault(key, _Node({}))
        node.leaf = leaf
        node.is_leaf = True
    return _build(root, where)


@dataclass(slots=True)
class _Node:
    children: dict[Key, _Node]
    leaf: Any = None
    is_leaf: bool = False


def _build(node: _Node, where: str) -> Any:
    if not node.children:
        return node.leaf if node.is_leaf else {}
    # A node that was saved empty and filled later is recorded as both.
    if node.is_leaf and node.leaf not in (None, {}, [], ()):
        raise untrusted("a leaf or a node", list(node.children), where)
    made = {key: _build(child, where) for key, child in node.children.items()}
    kinds = set(map(type, made))
    if kinds == {str}:
        return made
    if kinds == {int}:
        if set(made) == set(range(len(made))):
            return [made[n] for n in range(len(made))]
        # Entries were left out when it was saved: the others keep their numbers.
        return made
    raise untrusted("a sequence or a dict", list(made), where)


def restore_types(tree: Any, told: str, *, where: str) -> Any:
    """Return a tree with tuples where a `value_metadata_tree` tells of them.

    >>> told = '{"a": {"category": "custom", "clazz": "tuple", "entries": [{}]}}'
    >>> restore_types({"a": [1]}, told, where="")
    {'a': (1,)}
    """
    return _retype(tree, parse(told.encode(errors="replace"), where=where))


def _retype(tree: Any, told: Any) -> Any:
    fields = as_object(told)
    entries = fields.get("entries")
    if isinstance(tree, list):
        items = cast("list[Any]", tree)
        found = entries if "category" in fields else told
        inner = cast("list[Any]", found if isinstance(found, list) else [])
        if len(inner) != len(items):
            return items
        made: list[Any] = [_retype(a, b) for a, b in zip(items, inner, strict=True)]
        return tuple(made) if fields.get("clazz") == "tuple" else made
    if not isinstance(tree, dict):
        return tree
    if fields.get("category") == "namedtuple" and isinstance(entries, list):
        pairs = map(as_object, cast("list[Any]", entries))
        fields = {str(pair.get("key")): pair.get("value") for pair in pairs}
    nodes = cast("dict[Any, Any]", tree)
    return {key: _retype(node, fields.get(key)) for key, node in nodes.items()}
