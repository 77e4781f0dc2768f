"""From leaves by path and a structure to a tree."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from ._absent import ABSENT
from ._node import Node
from ._record import make_record
from ._register import build_registered, is_registered
from ._structure import Structure


def unflatten(
    structure: Structure, leaves: Mapping[str, Any], *, default: Any = ABSENT
) -> Any:
    """Return the tree with that structure and those leaves.

    A path without a value takes `default`; a tied path takes what its first path has,
    unless it is named itself. A node whose type is known neither from `flatten` nor by
    `register` becomes a `Record`.

    Raises ValueError for a path that the structure does not have.

    >>> import pytree
    >>> _, structure = pytree.flatten({"a": [1, 2]})
    >>> unflatten(structure, {"a/0": "x"})
    {'a': ['x', ABSENT]}
    """
    unknown = leaves.keys() - set(structure.positions)
    if unknown:
        some = ", ".join(sorted(unknown)[:5])
        raise ValueError(
            f"Expected paths of the structure, found {len(unknown)} others: {some}. "
            "Leave them out, or add them to the structure."
        )
    ties = structure.ties
    values = [
        leaves[path] if path in leaves else leaves.get(ties.get(path, path), default)
        for path in structure.positions
    ]
    return _build(structure.root, iter(values))


def _build(node: Node | int, values: Iterator[Any]) -> Any:
    if isinstance(node, int):
        return next(values)
    children = [
        next(values) if type(child) is int else _build(child, values)
        for child in node.children
    ]
    match node.kind:
        case "dict":
            return dict(zip(node.keys, children, strict=True))
        case "list":
            return children
        case "tuple":
            return tuple(children)
        case "none":
            return None
        case "OrderedDict":
            return OrderedDict(zip(node.keys, children, strict=True))
        case "absent":
            return ABSENT
        case _:
            return _build_typed(node, children)


def _build_typed(node: Node, children: list[Any]) -> Any:
    if node.build is not None:
        return node.build(children)
    if is_registered(node.type):
        return build_registered(node, children)
    return make_record(node, children)
