"""What a pickle held, as a tree: dicts, lists and tuples of plain values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from .._errors import LimitExceeded, Unsupported, Untrusted
from ._entry import Tensor
from ._plain_numpy import is_numpy, read_numpy
from ._record import Global, Record
from ._torch_tensor import ITEMSIZES, Refused, Storage, view_storage

_DEPTH = 100
_ITEMS = 1 << 20
"""The most leaves and containers of a tree, each counted wherever it occurs."""
_PLAIN = 4
"""How many a container or plain value counts for: a file has fewer than tensors."""

_LEAVES = (str, int, float, bool, type(None), complex, bytes, Tensor)

_ATTRIBUTES = {
    ("argparse", "Namespace"),
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
    ("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"),
    ("deepspeed.utils.tensor_fragment", "fragment_address"),
}
"""Classes whose objects are no more than their attributes."""

_VIEWS = 4
_VIEWS_FREE = 1 << 28
"""How many times the bytes of a file its tensors may have, and how many beside."""

Unknown = Callable[[str, str], None]
"""Told the path and the kind of what cannot be part of a tree, which becomes None."""


@dataclass(slots=True)
class _Walk:
    """What was made of each object, with its count of items; None while it is made."""

    where: str
    unknown: Unknown | None
    made: dict[int, tuple[Any, int] | None] = field(
        default_factory=dict[int, "tuple[Any, int] | None"]
    )
    kept: list[Any] = field(default_factory=list[Any])
    views: int = 0
    seen: set[int] = field(default_factory=set[int])


def to_tree(value: Any, *, where: str, unknown: Unknown | None = None) -> Any:
    """Return a decoded pickle as a tree; objects that it shares stay shared.

    Sets become sorted tuples, arrays of numpy Tensors. Unsupported, with its path, for
    what has no place in a tree, unless `unknown` takes note of it (a tensor that cannot
    be read is always Unsupported). Untrusted for cycles, LimitExceeded for trees that
    are too deep or too large. `where` is for messages.

    >>> to_tree({"a": {3, 1}, "b": [bytearray(b"x")]}, where="a file")
    {'a': (1, 3), 'b': [b'x']}
    """
    return _make(_Walk(where, unknown), value, ())[0]


def _make(walk: _Walk, value: Any, path: tuple[Any, ...]) -> tuple[Any, int]:
    if type(value) is Tensor:
        _check_views(walk, value, path)
        return value, 1
    if type(value) in _LEAVES:
        return value, _PLAIN
    key = id(value)
    if key in walk.made:
        known = walk.made[key]
        if known is None:
            raise Untrusted(
                f"expected a tree, found an object within itself - {_at(walk, path)}: "
                "do not trust this file"
            )
        return known
    if len(path) >= _DEPTH:
        raise LimitExceeded(
            f"expected a tree of at most {_DEPTH} levels - in {walk.where}"
        )
    walk.made[key] = None
    walk.kept.append(value)
    near = (
        len(cast("list[Any]", value)) if isinstance(value, (dict, list, tuple)) else 0
    )
    _check_count(walk, max(_PLAIN * len(walk.kept), near), path)
    made = _convert(walk, value, path)
    _check_count(walk, made[1], path)
    walk.made[key] = made
    return made


def _check_count(walk: _Walk, count: int, path: tuple[Any, ...]) -> None:
    if count > _ITEMS:
        raise LimitExceeded(
            f"expected at most {_ITEMS} items of a tree, found more - "
            f"{_at(walk, path)}: save large lists as tensors"
        )


def _check_views(walk: _Walk, tensor: Tensor, path: tuple[Any, ...]) -> None:
    """Refuse views of the same few bytes that together are far more than the file."""
    if id(tensor) in walk.seen or not isinstance(tensor.data, tuple):
        return
    walk.seen.add(id(tensor))
    blob = tensor.data[0].blob
    walk.views += math.prod(tensor.shape) * ITEMSIZES[tensor.dtype]
    if blob.codec is None and walk.views > _VIEWS_FREE + _VIEWS * blob.length:
        raise LimitExceeded(
            f"expected tensors of at most {_VIEWS} times the bytes of their file, "
            f"found {walk.views:,} bytes of {blob.length:,} - {_at(walk, path)}: save "
            "a copy of tensors that share their items"
        )


def _convert(walk: _Walk, value: Any, path: tuple[Any, ...]) -> tuple[Any, int]:
    if isinstance(value, dict):
        return _convert_dict(walk, cast(dict[Any, Any], value), path)
    if isinstance(value, (list, tuple)):
        items: list[Any] = []
        count = _PLAIN
        for n, item in enumerate(cast("list[Any] | tuple[Any, ...]", value)):
            made, more = _make(walk, item, (*path, n))
            items.append(made)
            count += more
        return (items if isinstance(value, list) else tuple(items)), count
    if isinstance(value, bytearray):
        return bytes(value), 1
    if isinstance(value, (set, frozenset)):
        return _convert(walk, _sort(cast(set[Any], value)), path)
    if isinstance(value, Storage):
        return _convert(walk, view_storage(value), path)
    if isinstance(value, Tensor):
        return value, 1
    if isinstance(value, Refused):
        raise Unsupported(
            f"expected tensors with plain values, found one {value.why} - "
            f"{_at(walk, path)}: save it as a dense tensor"
        )
    if isinstance(value, Record):
        if is_numpy(value):
            made = read_numpy(value)
            if isinstance(made, Refused):
                return _pass_over(walk, f"an array {made.why}", path)
            return _convert(walk, made, path)
        if (value.module, value.name) in _ATTRIBUTES:
            return _convert(walk, value.state or {}, path)
    if isinstance(value, _LEAVES):
        return value, 1
    return _pass_over(walk, _describe(value), path)


def _convert_dict(
    walk: _Walk, value: Mapping[Any, Any], path: tuple[Any, ...]
) -> tuple[Any, int]:
    made: dict[Any, Any] = {}
    count = _PLAIN
    for key, item in value.items():
        if type(key) not in (str, int):
            _pass_over(walk, f"a key of type {type(key).__name__}", path)
            continue
        made[key], more = _make(walk, item, (*path, key))
        count += more
    return made, count


def _sort(items: set[Any] | frozenset[Any]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(items))
    except TypeError:
        return tuple(items)


def _describe(value: Any) -> str:
    if isinstance(value, (Record, Global)):
        return f"an object of {value.module}.{value.name}"[:200]
    return f"a value of type {type(value).__name__}"


def _pass_over(walk: _Walk, what: str, path: tuple[Any, ...]) -> tuple[Any, int]:
    if walk.unknown is None:
        raise Unsupported(
            f"expected tensors and plain values, found {what} - {_at(walk, path)}: "
            "save the file without it"
        )
    walk.unknown(show_place(path), what)
    return None, 1


def _at(walk: _Walk, path: tuple[Any, ...]) -> str:
    return f"at `{show_place(path)}`, in {walk.where}"


def show_place(path: tuple[Any, ...]) -> str:
    """Return a path for a message, of which a hostile one cannot make much."""
    text = "/".join(str(key)[:200] for key in path)
    return text if text.isprintable() and len(text) <= 300 else ascii(text[:200])
