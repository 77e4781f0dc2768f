"""States of foreign data pipelines as plain values, and back.

Plain: None, bool, int, float, str, bytes, numpy arrays, lists, and dicts with text
keys. What else a state holds is a dict whose key "$" says what it stands for.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from .._errors import DataMismatch

_MARK = "$"
_LEAVES = (type(None), bool, int, float, str, bytes)


def freeze(value: Any, path: str = "state") -> Any:
    """Return a plain value that `thaw` makes this one of again; TypeError names it."""
    if type(value) in _LEAVES:
        return value
    if isinstance(value, np.generic):
        return {
            _MARK: "scalar",
            "items": _freeze_array(np.array(cast("Any", value)), path),
        }
    if isinstance(value, np.ndarray):
        return _freeze_array(cast("np.ndarray[Any, Any]", value), path)
    if is_tensor(value):
        array = np.array(value.detach().cpu().numpy())
        return {_MARK: "tensor", "items": _freeze_array(array, path)}
    if isinstance(value, dict):
        return _freeze_dict(cast("dict[Any, Any]", value), path)
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            found = list(cast("Iterable[Any]", value))
            ordered = sorted(found, key=repr) if kind in (set, frozenset) else found
            items = [freeze(item, f"{path}[{n}]") for n, item in enumerate(ordered)]
            return items if kind is list else {_MARK: kind.__name__, "items": items}
    raise TypeError(
        f"expected a data position of numbers, texts, bytes, lists, dicts and arrays, "
        f"found {type(value).__module__}.{type(value).__qualname__} at {path}"
    )


def thaw(value: Any) -> Any:
    """Return what `freeze` made this of; DataMismatch when it was not `freeze`."""
    if isinstance(value, list):
        return [thaw(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    found = cast("dict[str, Any]", value)
    if _MARK not in found:
        return {key: thaw(item) for key, item in found.items()}
    make = _MAKERS.get(found[_MARK])
    if make is None or found.keys() != {_MARK, "items"}:
        raise DataMismatch(
            f"expected a data position, found one marked {found[_MARK]!r}, which this "
            f"version does not know"
        )
    return make(found["items"])


def digest(value: Any) -> str:
    """Return a text that tells whether two plain values are equal."""
    text = json.dumps(value, default=_digest_leaf, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def is_tensor(value: Any) -> bool:
    """Return whether this is a tensor of torch, without importing it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _freeze_dict(value: dict[Any, Any], path: str) -> dict[str, Any]:
    if all(type(key) is str for key in value) and _MARK not in value:
        return {key: freeze(item, f"{path}.{key}") for key, item in value.items()}
    items = [
        [freeze(key, f"{path}, a key"), freeze(item, f"{path}[{key!r}]")]
        for key, item in value.items()
    ]
    return {_MARK: "dict", "items": items}


def _freeze_array(value: np.ndarray[Any, Any], path: str) -> np.ndarray[Any, Any]:
    if value.dtype.hasobject:
        raise TypeError(
            f"expected a data position with arrays of numbers, found an array of "
            f"Python objects at {path}"
        )
    return value.copy()


def _thaw_tensor(array: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise DataMismatch(
            "expected the saved pipeline, which uses torch, found one that does not"
        )
    return torch.from_numpy(np.array(array))


def _thaw_scalar(array: Any) -> Any:
    return np.asarray(array)[()]


def _thaw_pairs(pairs: Any) -> dict[Any, Any]:
    return {thaw(key): thaw(item) for key, item in pairs}


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "dict": _thaw_pairs,
    "frozenset": lambda items: frozenset(map(thaw, items)),
    "scalar": _thaw_scalar,
    "set": lambda items: set(map(thaw, items)),
    "tensor": _thaw_tensor,
    "tuple": lambda items: tuple(map(thaw, items)),
}


def _digest_leaf(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    array = cast("np.ndarray[Any, Any]", value)
    content = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return {"array": [str(array.dtype), list(array.shape), content]}
