"""One level of a tree: what kind of container, under which keys, holding what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from ._path import Key, format_key
from ._static import Static

Kind: TypeAlias = Literal[
    "dict", "OrderedDict", "list", "tuple", "none", "absent", "namedtuple", "node"
]
KINDS: frozenset[str] = frozenset(get_args(Kind)) - {"none"}

Build: TypeAlias = Callable[[list[Any]], Any]
"""Makes a container from its children, in memory only."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A container. A child that is an integer is a leaf, by its number."""

    kind: Kind
    children: tuple[Node | int, ...] = ()
    keys: tuple[Key, ...] = ()
    type: str = ""
    static: tuple[tuple[str, Static], ...] = ()
    build: Build | None = None


NONE = Node("none")
ABSENT_NODE = Node("absent")


def join_path(parent: str, segment: str) -> str:
    """Return the path of a child."""
    return f"{parent}/{segment}" if parent else segment


def walk_nodes(node: Node | int, path: str = "") -> Iterator[tuple[str, Node | int]]:
    """Yield every node and leaf number with its path, parents first, in order."""
    yield path, node
    if not isinstance(node, int):
        for key, child in zip(node.keys, node.children, strict=True):
            yield from walk_nodes(child, join_path(path, format_key(key)))
