"""A structure's JSON.

A leaf is its number. None is null. Every other node is an object: `kind`; `type` for
namedtuples and registered nodes; `keys` but for lists and tuples; `children`; `static`,
if there is any. Numbers are given in order of first occurrence; a number that comes
again is the same leaf.
"""

from __future__ import annotations

import json
from typing import cast

from ._errors import InvalidStructure
from ._node import ABSENT_NODE, KINDS, NONE, Kind, Node
from ._path import Key, format_key
from ._static import (
    Json,
    Static,
    decode,
    describe,
    encode,
    is_dict,
    is_list,
    is_text,
    read_static,
)

_KEYED = ("kind", "keys", "children")
_TYPED = ("kind", "type", "keys", "children")
_FIELDS: dict[str, tuple[str, ...]] = {
    "absent": ("kind",),
    "list": ("kind", "children"),
    "tuple": ("kind", "children"),
    "dict": _KEYED,
    "OrderedDict": _KEYED,
    "namedtuple": _TYPED,
    "node": _TYPED,
}

# A long key above many children is a bomb: each of them has a path that holds it.
_TEXT = 1 << 27


def write_node(node: Node | int) -> Json:
    """Return the JSON of a node and all below it."""
    if isinstance(node, int):
        return node
    if node.kind == "none":
        return None
    value: dict[str, Json] = {"kind": node.kind}
    fields = _FIELDS[node.kind]
    if "type" in fields:
        value["type"] = node.type
    if "keys" in fields:
        value["keys"] = [key if type(key) is str else encode(key) for key in node.keys]
    if "children" in fields:
        value["children"] = [
            child if type(child) is int else write_node(child)
            for child in node.children
        ]
    if node.static:
        value["static"] = {name: _write_static(item) for name, item in node.static}
    return value


def _write_static(static: Static) -> Json:
    if static.json is None:
        return {"label": static.label}
    return {"json": json.loads(static.json)}


def read_node(
    value: Json, *, max_depth: int
) -> tuple[Node | int, list[str], list[int]]:
    """Return a root with the path and the number of every leaf, in order."""
    reader = _Reader(max_depth)
    return reader.read(value, "", "$"), reader.positions, reader.numbers


class _Reader:
    """Reads one value; counts the leaves on the way."""

    __slots__ = ("count", "depth", "max_depth", "numbers", "positions", "text")

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self.depth = 0
        self.count = 0
        self.text = 0
        self.positions: list[str] = []
        self.numbers: list[int] = []

    def read(self, value: Json, path: str, place: str) -> Node | int:
        kind = cast(type[object], type(value))
        if kind is int:
            if value == self.count:
                self.count += 1
            elif not 0 <= value < self.count:
                raise _invalid(f"a leaf number up to {self.count}", value, place)
            self.positions.append(path)
            self.numbers.append(value)
            return value
        if value is None:
            return NONE
        if kind is not dict:
            raise _invalid("a leaf number, null or a node", value, place)
        if _read_kind(value, place) == "absent":
            return ABSENT_NODE
        if self.depth == self.max_depth:
            raise InvalidStructure(
                f"Expected at most {self.max_depth} nested nodes, found more - "
                f"at {_shorten(place)}."
            )
        self.depth += 1
        node = self._read_container(value, path, place)
        self.depth -= 1
        return node

    def _read_container(self, value: dict[str, Json], path: str, place: str) -> Node:
        kind: Kind = value["kind"]
        items = _read_list(value["children"], f"{place}.children")
        keys: tuple[Key, ...] = tuple(range(len(items)))
        if "keys" in value:
            keys = _read_keys(
                value["keys"], f"{place}.keys", names=kind == "namedtuple"
            )
        if len(keys) != len(items):
            raise InvalidStructure(
                f"Expected a key for each of {len(items)} children, found {len(keys)} "
                f"- at {_shorten(place)}."
            )
        below = f"{path}/" if path else ""
        self.text += len(below) * (len(items) + 1)
        if self.text > _TEXT:
            raise InvalidStructure(
                f"Expected paths of at most {_TEXT} characters together, found more - "
                f"at {_shorten(place)}."
            )
        children: list[Node | int] = []
        for i, segment in enumerate(_format_keys(keys, f"{place}.keys")):
            item = items[i]
            if type(item) is int and item == self.count:
                # Nearly every child is the next leaf; the rest take the long way.
                self.count += 1
                self.positions.append(below + segment)
                self.numbers.append(item)
                children.append(item)
            else:
                child = self.read(item, below + segment, f"{place}.children[{i}]")
                children.append(child)
        name = _read_name(value["type"], f"{place}.type") if "type" in value else ""
        static = (
            _read_statics(value["static"], f"{place}.static")
            if "static" in value
            else ()
        )
        return Node(kind, tuple(children), keys, name, static)


def _read_kind(value: dict[str, Json], place: str) -> Kind:
    """Return a node's kind once its fields are known to be the right ones."""
    kind = value.get("kind")
    if type(kind) is not str or kind not in KINDS:
        raise _invalid("a known kind of node", kind, f"{place}.kind")
    expected = set(_FIELDS[kind])
    if kind == "node" and "static" in value:
        expected.add("static")
    if value.keys() != expected:
        raise InvalidStructure(
            f"Expected a {kind} with the fields {', '.join(sorted(expected))}, found "
            f"{', '.join(sorted(map(describe, value)))[:200]} - at {_shorten(place)}."
        )
    return cast(Kind, kind)


def _read_keys(value: Json, place: str, *, names: bool) -> tuple[Key, ...]:
    return tuple(
        [
            item if type(item) is str else _read_key(item, f"{place}[{i}]", names)
            for i, item in enumerate(_read_list(value, place))
        ]
    )


def _read_key(value: Json, place: str, names: bool) -> Key:
    try:
        key = decode(value)
    except ValueError as error:
        raise _invalid("a key", value, place) from error
    if names or not (key is None or type(key) in (int, float, bool)):
        raise _invalid("a field's name" if names else "a key", value, place)
    return key


def _format_keys(keys: tuple[Key, ...], place: str) -> list[str]:
    try:
        segments = [format_key(key) for key in keys]
    except ValueError as error:
        raise InvalidStructure(f"{error} - at {_shorten(place)}.") from error
    # Both: 1 and True are one key of a dict, two nans are two keys with one text.
    if len(set(keys)) < len(keys) or len(set(segments)) < len(keys):
        raise InvalidStructure(
            f"Expected each key once, found one twice - at {_shorten(place)}."
        )
    return segments


def _read_statics(value: Json, place: str) -> tuple[tuple[str, Static], ...]:
    if not is_dict(value) or not value:
        raise _invalid("an object with static values", value, place)
    return tuple(
        [
            (_read_name(name, place), _read_static(item, place))
            for name, item in value.items()
        ]
    )


def _read_static(value: Json, place: str) -> Static:
    fields = value if is_dict(value) else {}
    if fields.keys() == {"label"}:
        return Static(label=_read_name(fields["label"], place))
    if fields.keys() != {"json"}:
        raise _invalid("one of json and label", value, place)
    try:
        return read_static(fields["json"])
    except ValueError as error:
        raise InvalidStructure(f"{error} - at {_shorten(place)}.") from error


def _read_list(value: Json, place: str) -> list[Json]:
    if not is_list(value):
        raise _invalid("a list", value, place)
    return value


def _read_name(value: Json, place: str) -> str:
    # Names are printed as they are: none may hold what a terminal obeys.
    if value == "" or not is_text(value) or not value.isprintable():
        raise _invalid("a name", value, place)
    return value


def _invalid(expected: str, found: object, place: str) -> InvalidStructure:
    return InvalidStructure(
        f"Expected {expected}, found {describe(found)} - at {_shorten(place)}."
    )


def _shorten(place: str) -> str:
    return place if len(place) <= 200 else f"{place[:100]}...{place[-90:]}"
