"""The tree that DCP flattened, from the path that it kept of each name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._errors import Untrusted
from ._plain import show_place


class _Node(dict[Any, Any]):
    """Children by key or position, as long as the tree grows."""


def build_tree(
    leaves: Mapping[str, Any],
    paths: Mapping[str, tuple[str | int, ...]],
    *,
    where: str,
) -> Any:
    """Return leaves at their paths; positions make lists, unknown names are keys.

    A position that nothing is at held an empty dict, which leaves no trace but this.
    Untrusted for paths that contradict each other.
    """
    root = _Node()
    for name, leaf in leaves.items():
        path = paths.get(name, (name,))
        node = root
        for part in path[:-1]:
            child = node.get(part)
            if child is None and part not in node:
                child = node[part] = _Node()
            if not isinstance(child, _Node):
                raise _contradiction(path, where)
            node = child
        if path[-1] in node:
            raise _contradiction(path, where)
        node[path[-1]] = leaf
    return _finish(root, (), where)


def _finish(node: _Node, path: tuple[Any, ...], where: str) -> Any:
    """Turn nodes into dicts and lists."""
    made = {
        part: _finish(child, (*path, part), where)
        if isinstance(child, _Node)
        else child
        for part, child in node.items()
    }
    positions = sum(type(part) is int for part in made)
    if not positions:
        return made
    if positions < len(made):
        raise _contradiction(path, where)
    length = max(made) + 1
    if length > 4 * positions + 1000:
        raise Untrusted(
            f"expected a list, found position {length - 1:,} among {positions:,} - at "
            f"`{show_place(path)}`, in {where}"
        )
    return [made.get(n, {}) for n in range(length)]


def _contradiction(path: tuple[Any, ...], where: str) -> Untrusted:
    return Untrusted(
        f"expected each path once, and either keys or positions below it, found both - "
        f"at `{show_place(path)}`, in {where}: do not trust this file"
    )
