"""What is different between two structures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ._errors import at
from ._node import Node, walk_nodes
from ._static import Static
from ._structure import Structure, node_name

_TEXT = 80


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing about a saved structure that is not as wanted."""

    path: str
    problem: Literal["missing", "extra", "static"]
    expected: str
    found: str

    def __str__(self) -> str:
        return f"Expected {self.expected}, found {self.found} - {at(self.path)}"


def compare(saved: Structure, wanted: Structure) -> tuple[Difference, ...]:
    """Return everything that is wrong with `saved` for somebody who wants `wanted`.

    Leaf paths decide, whatever the containers; static values count where both have the
    node and both values have a JSON.

    >>> import pytree
    >>> _, saved = pytree.flatten({"a": 1, "b": 2})
    >>> _, wanted = pytree.flatten({"a": {"c": 1}, "b": 2})
    >>> for difference in compare(saved, wanted):
    ...     print(difference)
    Expected a leaf, found nothing - at `a/c`
    Expected dict, found a leaf - at `a`
    """
    if saved == wanted:
        return ()
    have, want = dict(walk_nodes(saved.root)), dict(walk_nodes(wanted.root))
    missing = [
        Difference(path, "missing", "a leaf", _name(have, path))
        for path in wanted.positions
        if not isinstance(have.get(path), int)
    ]
    extra = [
        Difference(path, "extra", _name(want, path), "a leaf")
        for path in saved.positions
        if not isinstance(want.get(path), int)
    ]
    static = [
        Difference(path, "static", _show(name, value), _show(name, found))
        for path, node in want.items()
        for name, value in _static(node).items()
        if value.json is not None
        and (found := _static(have.get(path)).get(name)) is not None
        and found.json is not None
        and found.json != value.json
        # Auxiliary data means something to its own type only.
        and (name != "aux" or _name(have, path) == _name(want, path))
    ]
    return (*missing, *extra, *static)


def compare_containers(
    left: Structure, right: Structure
) -> tuple[tuple[str, str, str], ...]:
    """Return where containers or ties differ, as (path, on the left, on the right).

    Types, static data, empty containers and ties count, leaves and orders of keys not.

    >>> import pytree
    >>> _, left = pytree.flatten({"a": [1], "e": {}})
    >>> _, right = pytree.flatten({"a": (1,), "e": None})
    >>> compare_containers(left, right)
    (('a', 'list', 'tuple'), ('e', 'dict', 'None'))
    """
    have, want = dict(walk_nodes(left.root)), dict(walk_nodes(right.root))
    found: list[tuple[str, str, str]] = []
    common = set(left.positions) & set(right.positions)
    for path in dict.fromkeys([*have, *want]):
        x, y = have.get(path), want.get(path)
        if isinstance(x, Node) and isinstance(y, Node):
            if _identify(x) != _identify(y):
                found.append((path, _describe(x), _describe(y)))
        # Of a container on one side only, the leaves below it tell.
        elif isinstance(x, Node) and y is None and not x.children:
            found.append((path, _describe(x), "nothing"))
        elif isinstance(y, Node) and x is None and not y.children:
            found.append((path, "nothing", _describe(y)))
    for path in dict.fromkeys([*left.ties, *right.ties]):
        if path in common and left.ties.get(path) != right.ties.get(path):
            found.append((path, _describe_tie(left, path), _describe_tie(right, path)))
    return tuple(found)


def _identify(node: Node) -> tuple[str, dict[str, str]]:
    """Return what two containers of the same type and static data share."""
    static = {
        name: repr(value.value) if value.json is None else value.json
        for name, value in node.static
    }
    return node_name(node), static


def _describe(node: Node) -> str:
    static = [_show(name, value) for name, value in node.static]
    return " ".join([node_name(node), *static])


def _describe_tie(structure: Structure, path: str) -> str:
    other = structure.ties.get(path)
    return "not tied" if other is None else f"tied to `{other}`"


def _name(nodes: dict[str, Node | int], path: str) -> str:
    node = nodes.get(path)
    return node_name(node) if isinstance(node, Node) else "nothing"


def _static(node: Node | int | None) -> dict[str, Static]:
    return dict(node.static) if isinstance(node, Node) else {}


def _show(name: str, static: Static) -> str:
    text = repr(static.value)
    return f"{name}={text if len(text) <= _TEXT else text[: _TEXT - 3] + '...'}"
