"""Which classes saved nodes come back as."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ._node import Node
from ._path import Key
from ._static import name_of

T = TypeVar("T")
Unflatten = Callable[[dict[Key, Any], dict[str, Any]], object]

_CLASSES: dict[str, tuple[type, Unflatten]] = {}


def register(
    cls: type[T], *, name: str | None = None, unflatten: Unflatten | None = None
) -> type[T]:
    """Make nodes saved under a type's name come back as `cls`, and return `cls`.

    The name is "module.QualName" of `cls` unless given, as for a class that has moved.
    A namedtuple or dataclass is filled field by field, without a call of `__init__`;
    for any other class `unflatten(children, static)` makes the object, both by key.
    Static values that JSON cannot hold are not among `static`; a dataclass takes its
    field's default for them.

    Raises TypeError for a class that needs `unflatten`, and ValueError for a name that
    another class has.

    >>> import dataclasses, jax
    >>> @register
    ... @jax.tree_util.register_dataclass
    ... @dataclasses.dataclass
    ... class Point:
    ...     x: float
    """
    if unflatten is None:
        unflatten = _find_unflatten(cls)
    name = name_of(cls) if name is None else name
    known = _CLASSES.setdefault(name, (cls, unflatten))
    if known[0] is not cls:
        raise ValueError(
            f"Expected one class named {name}, found a second. "
            "Give one of them another name, or register it in one place only."
        )
    _CLASSES[name] = (cls, unflatten)
    return cls


def build_registered(node: Node, children: list[Any]) -> Any:
    """Return the object for a node of a registered name; KeyError for other names."""
    _, unflatten = _CLASSES[node.type]
    static = {name: s.value for name, s in node.static if s.json is not None}
    return unflatten(dict(zip(node.keys, children, strict=True)), static)


def is_registered(name: str) -> bool:
    """Say whether a class is registered under the name."""
    return name in _CLASSES


def _find_unflatten(cls: Any) -> Unflatten:
    if dataclasses.is_dataclass(cls):
        return lambda children, static: _fill_dataclass(cls, children | static)
    if hasattr(cls, "_fields") and hasattr(cls, "_make"):
        return lambda children, _: _fill_namedtuple(cls, children)
    raise TypeError(
        f"Expected a namedtuple or a dataclass, found {name_of(cls)}. "
        "Pass unflatten=, which makes an object from its children and static values."
    )


def _fill_dataclass(cls: Any, values: dict[Any, Any]) -> object:
    made = object.__new__(cls)
    fields = dataclasses.fields(cls)
    _refuse_unknown(cls, values, {field.name for field in fields})
    for field in fields:
        if field.name in values:
            value = values[field.name]
        elif field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            raise _no_value(cls, field.name)
        object.__setattr__(made, field.name, value)
    return made


def _fill_namedtuple(cls: Any, values: dict[Any, Any]) -> object:
    names = cast(tuple[str, ...], cls._fields)
    _refuse_unknown(cls, values, set(names))
    values = cls._field_defaults | values
    for name in names:
        if name not in values:
            raise _no_value(cls, name)
    return cls._make([values[name] for name in names])


def _refuse_unknown(cls: type, values: dict[Any, Any], names: set[str]) -> None:
    unknown = [key for key in values if key not in names]
    if unknown:
        raise ValueError(
            f"Expected only fields of the registered {name_of(cls)}, found "
            f"{unknown!r}. Register the class that was saved, or pass unflatten=."
        )


def _no_value(cls: type, name: str) -> ValueError:
    return ValueError(
        f"Expected a value for the field {name} of the registered {name_of(cls)}, "
        "found none that was stored. Give the field a default, or pass unflatten=."
    )
