"""A structure's JSON.

A leaf is its number. None is null. Every other node is an object: `kind`; `type` for
namedtuples and registered nodes; `keys` but for lists and tuples; `children`; `static`,
if there is any. Numbers are given in order of first occurrence; a number that comes
again is the same leaf.
"""

from __future__ import annotations

import json
from typing import Any, cast

from ._errors import InvalidStructure
from ._node import ABSENT_NODE, KINDS, NONE, Kind, Node, join_path
from ._path import Key, format_key
from ._static import Json, Static, decode, describe, encode, is_text

_FIELDS = {
    "dict": ("kind", "keys", "children"),
    "OrderedDict": ("kind", "keys", "children"),
    "list": ("kind", "children"),
    "tuple": ("kind", "children"),
    "absent": ("kind",),
    "namedtuple": ("kind", "type", "keys", "children"),
    "node": ("kind", "type", "keys", "children"),
}


def write_node(node: Node | int) -> Json:
    """Return the JSON of a node and all below it."""
    if isinstance(node, int):
        return node
    if node.kind == "none":
        return None
    value: dict[str, Json] = {"kind": node.kind}
    if node.kind == "absent":
        return value
    if node.type:
        value["type"] = node.type
    if node.kind not in ("list", "tuple"):
        value["keys"] = [key if type(key) is str else encode(key) for key in node.keys]
    value["children"] = [
        child if type(child) is int else write_node(child) for child in node.children
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
    return reader.read(value, "", "$", 0), reader.positions, reader.numbers


class _Reader:
    """Reads one value; counts the leaves on the way."""

    __slots__ = ("count", "max_depth", "numbers", "positions")

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self.count = 0
        self.positions: list[str] = []
        self.numbers: list[int] = []

    def read(self, value: Json, path: str, place: str, depth: int) -> Node | int:
        kind = type(value)
        if kind is int:
            return self._read_leaf(value, path, place)
        if value is None:
            return NONE
        if kind is not dict:
            raise _invalid("a leaf number, null or a node", value, place)
        if depth >= self.max_depth:
            raise InvalidStructure(
                f"Expected at most {self.max_depth} nested nodes, found more - "
                f"at {place[:200]}."
            )
        return self._read_fields(value, path, place, depth)

    def _read_leaf(self, number: int, path: str, place: str) -> int:
        if number == self.count:
            self.count += 1
        elif not 0 <= number < self.count:
            raise _invalid(f"a leaf number up to {self.count}", number, place)
        self.positions.append(path)
        self.numbers.append(number)
        return number

    def _read_fields(
        self, value: dict[Any, Json], path: str, place: str, depth: int
    ) -> Node:
        kind = value.get("kind")
        if type(kind) is not str or kind not in KINDS:
            raise _invalid("a known kind of node", kind, f"{place}.kind")
        fields = _FIELDS[kind]
        has_static = kind == "node" and "static" in value
        for name in value:
            if name not in fields and not (has_static and name == "static"):
                raise _invalid(f"only the fields of a {kind}", name, place)
        for name in fields:
            if name not in value:
                raise _invalid(f"the field {name}", "none", place)
        if kind == "absent":
            return ABSENT_NODE
        name = _read_name(value["type"], f"{place}.type") if "type" in value else ""
        items = _read_list(value["children"], f"{place}.children")
        keys, segments = (
            _read_keys(value["keys"], len(items), place)
            if "keys" in value
            else (tuple(range(len(items))), [str(i) for i in range(len(items))])
        )
        if kind == "namedtuple" and not all(type(key) is str for key in keys):
            raise _invalid("field names", "other keys", f"{place}.keys")
        children: list[Node | int] = []
        for i, (segment, item) in enumerate(zip(segments, items, strict=True)):
            below = join_path(path, segment)
            if type(item) is int and item == self.count:
                self.count += 1
                self.positions.append(below)
                self.numbers.append(item)
                children.append(item)
            else:
                inner = f"{place}.children[{i}]"
                children.append(self.read(item, below, inner, depth + 1))
        static = _read_statics(value["static"], place) if has_static else ()
        return Node(cast(Kind, kind), tuple(children), keys, name, static)


def _read_keys(
    value: Json, count: int, place: str
) -> tuple[tuple[Key, ...], list[str]]:
    place += ".keys"
    items = _read_list(value, place)
    if len(items) != count:
        raise _invalid(f"as many keys as children ({count})", len(items), place)
    keys = tuple(
        [
            item if type(item) is str else _read_key(item, f"{place}[{i}]")
            for i, item in enumerate(items)
        ]
    )
    try:
        segments = [format_key(key) for key in keys]
    except ValueError as error:
        raise _invalid("keys that a path can hold", "others", place) from error
    # Both: 1 and True are one key of a dict, two nans are two keys with one text.
    if len(set(keys)) < count or len(set(segments)) < count:
        raise _invalid("each key once", "one twice", place)
    return keys, segments


def _read_key(value: Json, place: str) -> Key:
    try:
        key = decode(value)
    except ValueError as error:
        raise _invalid("a key", value, place) from error
    if key is None or type(key) in (str, int, float, bool):
        return key
    raise _invalid("a key", value, place)


def _read_statics(value: Json, place: str) -> tuple[tuple[str, Static], ...]:
    place += ".static"
    if type(value) is not dict or not value:
        raise _invalid("an object with static values", value, place)
    statics: list[tuple[str, Static]] = []
    for name, item in cast(dict[Any, Json], value).items():
        statics.append((_read_name(name, place), _read_static(item, place)))
    return tuple(statics)


def _read_static(value: Json, place: str) -> Static:
    if type(value) is dict and len(cast(dict[Any, Json], value)) == 1:
        [(tag, body)] = cast(dict[Any, Json], value).items()
        if tag == "label":
            return Static(label=_read_name(body, place))
        if tag == "json":
            try:
                decode(body)
            except ValueError as error:
                raise InvalidStructure(f"{error} - at {place}.") from error
            return Static(json=json.dumps(body, separators=(",", ":")))
    raise _invalid("one of json and label", value, place)


def _read_list(value: Json, place: str) -> list[Json]:
    if type(value) is not list:
        raise _invalid("a list", value, place)
    return cast(list[Json], value)


def _read_name(value: Json, place: str) -> str:
    if value == "" or not is_text(value):
        raise _invalid("a name", value, place)
    return value


def _invalid(expected: str, found: object, place: str) -> InvalidStructure:
    place = place if len(place) <= 200 else "..." + place[-197:]
    return InvalidStructure(
        f"Expected {expected}, found {describe(found)} - at {place}."
    )
