"""Small Python values in the manifest, in a JSON that loses nothing."""

from __future__ import annotations

import struct
from typing import Any

INLINE_BYTES = 1024
"""Text and bytes longer than this are stored as arrays of bytes."""


def encode_value(value: Any) -> Any:
    """Return the JSON of a Python int, float, bool, complex, str or bytes.

    >>> encode_value(255), encode_value(0.5), encode_value(b"ab")
    ('0xff', '0x1.0000000000000p-1', '6162')
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return hex(value)
    if isinstance(value, float):
        if value != value:  # the payload and sign of a NaN survive only as bits
            return "nan:" + struct.pack(">d", value).hex()
        return value.hex()
    if isinstance(value, complex):
        return [encode_value(value.real), encode_value(value.imag)]
    return value.hex() if isinstance(value, bytes) else value


def decode_value(kind: str, value: Any) -> Any:
    """Return the Python value; ValueError or TypeError if it is not one.

    >>> decode_value("complex", ["0x1.0p+0", "inf"])
    (1+infj)
    """
    if kind == "bool":
        if not isinstance(value, bool):
            raise TypeError(f"expected a bool, found {value!r:.40}")
        return value
    if kind == "complex":
        real, imaginary = value
        return complex(_decode_float(real), _decode_float(imaginary))
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.40}")
    if kind == "int":
        return int(value, 16)
    if kind == "float":
        return _decode_float(value)
    return bytes.fromhex(value) if kind == "bytes" else value


def _decode_float(text: str) -> float:
    if text.startswith("nan:"):
        return struct.unpack(">d", bytes.fromhex(text[4:]))[0]
    return float.fromhex(text)
