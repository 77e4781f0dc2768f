"""What a node of an unknown type comes back as."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, final

import jax

from ._node import Kind, Node
from ._path import Key, format_path
from ._static import Static


@dataclass(frozen=True, slots=True)
class Tag:
    """All of a record but its children; hashable, so that jit can compare records."""

    kind: Kind
    type: str
    path: str
    static: tuple[tuple[str, Static], ...]
    keys: tuple[Key, ...] = field(compare=False, repr=False)


# Without slots: with them Python 3.11 says the wrong thing when a field is set.
@final
@dataclass(frozen=True, repr=False)
class Record:
    """A node whose type is not known here: its fields by attribute or by `[key]`.

    It is a pytree, and flattening it gives the structure it was made from. Static
    values are fields too, labels where JSON could not hold them. A field that is called
    like an attribute of every record (`fields`, `type_name`) is reached by `[key]`.

    >>> import collections, pytree
    >>> leaves, structure = pytree.flatten(collections.namedtuple("P", "x y")(1, 2))
    >>> saved = pytree.Structure.from_json(structure.to_json())
    >>> record = pytree.unflatten(saved, leaves)
    >>> record.x, record["y"]
    (1, 2)
    """

    _tag: Tag
    _children: tuple[Any, ...]

    @property
    def type_name(self) -> str:
        """The qualified name of the type that was saved."""
        return self._tag.type

    @property
    def fields(self) -> Mapping[Key, Any]:
        """The static values and the children, by name or key."""
        values: dict[Key, Any] = {name: s.value for name, s in self._tag.static}
        children = dict(zip(self._tag.keys, self._children, strict=True))
        return MappingProxyType(values | children)

    def __getitem__(self, key: Key) -> Any:
        return self.fields[key]

    def __getattr__(self, name: str) -> Any:
        # Copying and pickling look for methods before there is any field.
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(f"{self.type_name} has no field {name!r}") from None

    def __dir__(self) -> Iterable[str]:
        return [*object.__dir__(self), *(k for k in self.fields if isinstance(k, str))]

    def __repr__(self) -> str:
        items = ", ".join(
            f"{key if isinstance(key, str) and key.isidentifier() else repr(key)}"
            f"={value!r}"
            for key, value in self.fields.items()
        )
        return f"Record[{self.type_name}]({items})"


def make_record(node: Node, children: list[Any]) -> Record:
    """Return a record in place of a node."""
    path = format_path(node.keys)
    tag = Tag(node.kind, node.type, path, node.static, node.keys)
    return Record(tag, tuple(children))


def open_record(record: Record) -> tuple[Tag, tuple[Any, ...]]:
    """Return what a record is made of."""
    return record._tag, record._children  # pyright: ignore[reportPrivateUsage]


def _flatten_with_keys(record: Record) -> tuple[list[tuple[Any, Any]], Tag]:
    tag, children = open_record(record)
    keys = [
        jax.tree_util.GetAttrKey(key)
        if isinstance(key, str)
        else jax.tree_util.DictKey(key)
        for key in tag.keys
    ]
    return list(zip(keys, children, strict=True)), tag


def _unflatten(tag: Tag, children: Iterable[Any]) -> Record:
    return Record(tag, tuple(children))


jax.tree_util.register_pytree_with_keys(  # pyright: ignore[reportUnknownMemberType]
    Record, _flatten_with_keys, _unflatten
)
