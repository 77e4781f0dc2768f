"""Putting subtrees in the place of leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ._node import Node, join_path, walk_nodes
from ._path import format_key
from ._structure import Structure, make_structure


def graft(
    structure: Structure, parts: Mapping[str, Sequence[Structure]], *, type: str
) -> Structure:
    """Return the structure with leaves replaced by nodes of a type, by path.

    Each node's children, numbered, have the given structures.

    >>> import pytree
    >>> _, outer = pytree.flatten({"a": 1, "b": 2})
    >>> _, inner = pytree.flatten([1, 2])
    >>> graft(outer, {"a": [inner]}, type="Each").paths
    ('a/0/0', 'a/0/1', 'b')
    """
    made: dict[int, Node] = {}
    first = len(structure.paths)
    for path, children in parts.items():
        roots: list[Node | int] = []
        for child in children:
            roots.append(_shift(child.root, first))
            first += len(child.paths)
        keys = tuple(range(len(roots)))
        made[structure.paths.index(path)] = Node("node", tuple(roots), keys, type)
    return _number(_replace(structure.root, made))


def find_nodes(structure: Structure, type: str) -> dict[str, tuple[str, ...]]:
    """Return the paths of the nodes of a type, and of the children of each.

    >>> import pytree
    >>> find_nodes(pytree.flatten({"a": (1, 2)})[1], "Each")
    {}
    """
    return {
        path: tuple(join_path(path, format_key(key)) for key in node.keys)
        for path, node in walk_nodes(structure.root)
        if isinstance(node, Node) and node.type == type
    }


def take_children(structure: Structure, path: str) -> list[Structure]:
    """Return the structures of the children of the node at a path.

    >>> import pytree
    >>> [c.paths for c in take_children(pytree.flatten({"a": (1, [2])})[1], "a")]
    [('',), ('0',)]
    """
    node = dict(walk_nodes(structure.root))[path]
    return [] if isinstance(node, int) else [_number(child) for child in node.children]


def _shift(node: Node | int, first: int) -> Node | int:
    if isinstance(node, int):
        return node + first
    return replace(node, children=tuple(_shift(c, first) for c in node.children))


def _replace(node: Node | int, made: Mapping[int, Node]) -> Node | int:
    if isinstance(node, int):
        return made.get(node, node)
    return replace(node, children=tuple(_replace(c, made) for c in node.children))


def _number(root: Node | int) -> Structure:
    """Return the structure of nodes whose leaves have distinct numbers in any order."""
    known: dict[int, int] = {}

    def renumber(node: Node | int) -> Node | int:
        if isinstance(node, int):
            return known.setdefault(node, len(known))
        return replace(node, children=tuple(renumber(c) for c in node.children))

    numbered = renumber(root)
    found = [(path, n) for path, n in walk_nodes(numbered) if isinstance(n, int)]
    positions, numbers = [path for path, _ in found], [n for _, n in found]
    return make_structure(numbered, positions=positions, numbers=numbers)
