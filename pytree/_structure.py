"""The structure of a tree: everything but its leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from ._json import read_node, write_node
from ._node import Node, walk_nodes
from ._static import Json

_LINES = 60


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Structure:
    """What a tree is but for its leaves: containers, keys, static data, ties.

    `positions` has the path of every leaf, in container order; `ties` maps the paths
    whose leaf is one that came before to that leaf's first path; `paths` has the
    others. Two structures are equal if their JSON is.

    >>> import pytree
    >>> _, structure = pytree.flatten({"b": [1, 2], "a": None})
    >>> structure.paths
    ('b/0', 'b/1')
    >>> print(structure)
    Structure with 2 leaves
      dict
        b: list
          0: *
          1: *
        a: None
    """

    root: Node | int
    positions: tuple[str, ...]
    paths: tuple[str, ...]
    ties: Mapping[str, str]

    def to_json(self) -> Json:
        """Return a JSON value that holds all of it but the types themselves."""
        return write_node(self.root)

    @classmethod
    def from_json(cls, value: Json, *, max_depth: int = 100) -> Structure:
        """Read what `to_json` wrote; the value may come from anybody.

        Raises InvalidStructure, naming the place, for whatever `to_json` never makes
        and for nodes nested deeper than `max_depth`.

        >>> Structure.from_json({"kind": "list", "children": [0, 1, 0]}).ties
        mappingproxy({'2': '0'})
        """
        root, positions, numbers = read_node(value, max_depth=max_depth)
        return make_structure(root, positions=positions, numbers=numbers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Structure):
            return NotImplemented
        return self.positions == other.positions and _text(self) == _text(other)

    def __hash__(self) -> int:
        return hash(self.positions)

    def __repr__(self) -> str:
        count = len(self.paths)
        lines = [f"Structure with {count} {'leaf' if count == 1 else 'leaves'}"]
        nodes = walk_nodes(self.root)
        lines += [self._line(path, node) for path, node in islice(nodes, _LINES)]
        left = sum(1 for _ in nodes)
        return "\n".join([*lines, f"  ... and {left} more"] if left else lines)

    def _line(self, path: str, node: Node | int) -> str:
        depth = path.count("/") + 2 if path else 1
        name = f"{path.rpartition('/')[2]}: " if path else ""
        if isinstance(node, int):
            what = f"= {self.ties[path]}" if path in self.ties else "*"
        else:
            static = [
                f"{name}={value.label or value.json}" for name, value in node.static
            ]
            what = " ".join([node_name(node), *static])
        return "  " * depth + name + what


def node_name(node: Node) -> str:
    """Return how people call a node's type."""
    return {"none": "None", "absent": "ABSENT"}.get(node.kind, node.type or node.kind)


def make_structure(
    root: Node | int, *, positions: list[str], numbers: list[int]
) -> Structure:
    """Return the structure whose leaf at `positions[i]` has the number `numbers[i]`."""
    if not numbers or numbers[-1] == len(numbers) - 1:
        every = tuple(positions)
        return Structure(root, every, every, MappingProxyType({}))
    paths: list[str] = []
    ties: dict[str, str] = {}
    for path, number in zip(positions, numbers, strict=True):
        if number == len(paths):
            paths.append(path)
        else:
            ties[path] = paths[number]
    return Structure(root, tuple(positions), tuple(paths), MappingProxyType(ties))


def _text(structure: Structure) -> Any:
    return json.dumps(structure.to_json())
