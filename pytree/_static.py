"""Static data of nodes: JSON that loses nothing, or else a label."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

Json = Any
"""A value as the json module makes it; nothing about it is taken on trust."""

_EXACT = 1 << 53
"""Integers beyond this are text in JSON: many readers make floats of numbers."""
_DEPTH = 32
_LABEL = 300


@dataclass(frozen=True, slots=True)
class Label:
    """The qualified name of a static value that JSON cannot hold."""

    text: str

    def __repr__(self) -> str:
        return f"<{self.text}>"


@dataclass(frozen=True, slots=True)
class Static:
    """One static value: the text of its JSON, or its label.

    Text, so that a value is immutable and hashable, and True is not 1.
    """

    json: str | None = None
    label: str = ""

    @property
    def value(self) -> Any:
        """The value, made anew, or its `Label`."""
        if self.json is None:
            return Label(self.label)
        return decode(json.loads(self.json))


def make_static(value: object) -> Static:
    """Return the static form of any value; a label where JSON would lose something."""
    try:
        return Static(json=_dump(encode(value)))
    except ValueError:
        return Static(label=name_of(value))


def read_static(value: Json) -> Static:
    """Return the static form of a value that is encoded; ValueError if it is not."""
    decode(value)
    return Static(json=_dump(value))


def encode(value: Any, *, depth: int = _DEPTH) -> Json:
    """Return JSON for None, bool, int, float, str and lists, tuples, dicts of them.

    Raises ValueError for anything else, subclasses included.
    """
    kind = cast(type[object], type(value))
    if value is None or kind is bool:
        return value
    if kind is str and is_text(value):
        return value
    if kind is int:
        return value if -_EXACT <= value <= _EXACT else {"int": hex(value)}
    if kind is float:
        return {"float": value.hex()}
    if depth == 0:
        raise ValueError("nested too deeply")
    if kind is list:
        return [encode(item, depth=depth - 1) for item in value]
    if kind is tuple:
        return {"tuple": [encode(item, depth=depth - 1) for item in value]}
    if kind is dict and all(type(key) is str and is_text(key) for key in value):
        pairs = value.items()
        return {"dict": [[key, encode(item, depth=depth - 1)] for key, item in pairs]}
    raise ValueError(f"{kind.__name__} has no JSON")


def decode(value: Json, *, depth: int = _DEPTH) -> Any:
    """Return the value that `encode` was given; ValueError for what it never makes."""
    kind = cast(type[object], type(value))
    if value is None or kind is bool or (kind is str and is_text(value)):
        return value
    if kind is int and -_EXACT <= value <= _EXACT:
        return value
    if is_list(value) and depth:
        return [decode(item, depth=depth - 1) for item in value]
    if not is_dict(value) or len(value) != 1:
        raise ValueError(f"Expected static JSON, found {describe(value)}")
    [(tag, body)] = value.items()
    if tag in ("int", "float") and type(body) is str:
        return _decode_number(tag, body)
    if tag == "tuple" and is_list(body) and depth:
        return tuple([decode(item, depth=depth - 1) for item in body])
    if tag == "dict" and is_list(body) and depth:
        pairs = [_decode_pair(pair, depth=depth - 1) for pair in body]
        if len(dict(pairs)) == len(pairs):
            return dict(pairs)
    raise ValueError(f"Expected static JSON, found {describe(value)}")


def _decode_pair(pair: Json, *, depth: int) -> tuple[str, Any]:
    if is_list(pair) and len(pair) == 2:
        key, value = pair
        if is_text(key):
            return key, decode(value, depth=depth)
    raise ValueError(f"Expected a pair of a string and a value, found {describe(pair)}")


def _decode_number(tag: str, text: str) -> int | float:
    try:
        value = int(text, 16) if tag == "int" else float.fromhex(text)
    except (ValueError, OverflowError):
        value = None
    # Each number is written in one way: the plain one, unless that would lose.
    if value is None or encode(value) != {tag: text}:
        raise ValueError(f"Expected a hexadecimal {tag}, found {describe(text)}")
    return value


def is_list(value: object) -> TypeGuard[list[Json]]:
    """Say whether a value is a JSON array."""
    return type(value) is list


def is_dict(value: object) -> TypeGuard[dict[str, Json]]:
    """Say whether a value is a JSON object."""
    return type(value) is dict


def is_text(value: object) -> TypeGuard[str]:
    """Say whether a value is a string that UTF-8 can hold."""
    if type(value) is not str:
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def name_of(value: object) -> str:
    """Return the qualified name of a class or function, else of the value's type.

    >>> import math
    >>> name_of(math.sqrt), name_of(dict), name_of({1, 2})
    ('math.sqrt', 'builtins.dict', 'builtins.set')
    """
    named: Any = value if callable(value) else type(value)
    if not isinstance(getattr(named, "__qualname__", None), str):
        named = type(value)
    module = getattr(named, "__module__", None)
    name = f"{module}.{named.__qualname__}" if module else named.__qualname__
    text = name.encode("ascii", "backslashreplace").decode()
    return (text if text.isprintable() else ascii(text)[1:-1])[:_LABEL]


def describe(value: object) -> str:
    """Return a short, safe text for a value found in JSON."""
    if isinstance(value, (list, tuple, dict)):
        return f"a {type(cast(object, value)).__name__}"
    if isinstance(value, int) and value.bit_length() > 256:
        return "a huge integer"
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _dump(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"))
