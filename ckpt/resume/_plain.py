"""Plain values as JSON text, and back, with nothing lost and no class from a file.

None, bool, int, float, str, bytes, list, tuple, dict and numpy arrays. What JSON lacks
is an object of one field whose name begins with "~".
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from .._errors import Unsupported, Untrusted

_SAFE_INT = 1 << 53
_ODD = (
    ArithmeticError,
    LookupError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
_KINDS = "biufc"
_DTYPE = re.compile(r"[<|][biufc]\d{1,2}")


def encode_plain(value: Any) -> str:
    """Return plain values as JSON text; Unsupported for others, naming their type.

    >>> encode_plain({"seed": 1 << 70, "rows": (1, 2)})
    '{"seed":{"~int":"0x400000000000000000"},"rows":{"~tuple":[1,2]}}'
    """
    return json.dumps(_encode(value), separators=(",", ":"), allow_nan=False)


def decode_plain(text: str) -> Any:
    """Return what `encode_plain` took; Untrusted for text that it does not make.

    >>> decode_plain(encode_plain({"a": (1, b"x", float("inf"))}))
    {'a': (1, b'x', inf)}
    """
    try:
        return _decode(json.loads(text))
    except _ODD as error:
        raise Untrusted(
            f"expected plain values as JSON, found {text!r:.80} ({error!s:.80})"
        ) from None


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return _encode_array(cast("np.ndarray[Any, Any]", value))
    if isinstance(value, int):
        value = int(value)
        return value if abs(value) < _SAFE_INT else {"~int": hex(value)}
    if isinstance(value, float):
        value = float(value)
        return value if math.isfinite(value) else {"~float": value.hex()}
    if isinstance(value, (bytes, bytearray)):
        return {"~bytes": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [_encode(item) for item in cast("list[Any]", value)]
    if isinstance(value, tuple):
        return {"~tuple": [_encode(item) for item in cast("tuple[Any, ...]", value)]}
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value)
        if all(isinstance(key, str) and key[:1] != "~" for key in items):
            return {key: _encode(item) for key, item in items.items()}
        return {"~dict": [[_encode(k), _encode(v)] for k, v in items.items()]}
    raise Unsupported(
        "expected plain values (None, bool, int, float, str, bytes, list, tuple, dict, "
        f"numpy arrays), found {type(value).__module__}.{type(value).__qualname__}"
    )


def _encode_array(value: np.ndarray[Any, Any] | np.generic) -> Any:
    array = np.asarray(value)
    if array.dtype.kind not in _KINDS:
        raise Unsupported(f"expected an array of numbers, found dtype {array.dtype}")
    stored = array.astype(array.dtype.newbyteorder("<"))
    data = base64.b64encode(stored.tobytes()).decode()
    tag = "~scalar" if isinstance(value, np.generic) else "~array"
    return {tag: [stored.dtype.str, list(array.shape), data]}


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    items = cast("dict[str, Any]", value)
    tag = next((key for key in items if key[:1] == "~"), None)
    if tag is None:
        return {key: _decode(item) for key, item in items.items()}
    ((_, body),) = items.items()
    return _DECODERS[tag](body)


def _decode_array(body: Any) -> np.ndarray[Any, Any]:
    text, shape, data = body
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"dtype {text!r:.20}")
    dtype = np.dtype(text)
    array = np.frombuffer(base64.b64decode(data, validate=True), dtype)
    # A copy: what is read from a buffer cannot be written to.
    return array.reshape([int(n) for n in shape]).astype(dtype.newbyteorder("="))


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "~int": lambda body: int(body, 16),
    "~float": float.fromhex,
    "~bytes": lambda body: base64.b64decode(body, validate=True),
    "~tuple": lambda body: tuple(_decode(item) for item in body),
    "~dict": lambda body: {_decode(key): _decode(item) for key, item in body},
    "~array": _decode_array,
    "~scalar": lambda body: _decode_array(body)[()],
}
