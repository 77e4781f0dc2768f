"""The closed table of array dtypes: their names, and the dtypes they are stored as.

A dtype that core Zarr v3 lacks is stored as its bits in an unsigned integer array,
so that any Zarr reader lists and reads the group. Sub-byte dtypes take a byte each.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ._errors import InvalidLayout, show

_CORE = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
_BITS = [
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
    "int2",
    "int4",
    "uint2",
    "uint4",
]

DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in _CORE} | {
    name: np.dtype(getattr(ml_dtypes, name)) for name in _BITS
}
"""Every dtype a checkpoint can hold, by its JAX name."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_STORED = {
    name: dtype if name in _CORE else np.dtype(f"uint{8 * dtype.itemsize}")
    for name, dtype in DTYPES.items()
}

_ITEMSIZES = {name: dtype.itemsize for name, dtype in _STORED.items()}


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a name in the table; InvalidLayout if it is not."""
    try:
        return DTYPES[name]
    except (KeyError, TypeError):
        raise InvalidLayout(
            f"expected one of the {len(DTYPES)} known dtypes, found {show(name)}"
        ) from None


def name_of(dtype: np.dtype[Any]) -> str | None:
    """Return the name of a dtype, or None if checkpoints cannot hold it.

    >>> name_of(np.dtype(">f4")), name_of(np.dtype("O"))
    ('float32', None)
    """
    native = dtype if dtype.isnative else dtype.newbyteorder("=")
    return _NAMES.get(native)


def stored_dtype(name: str) -> np.dtype[Any]:
    """Return the core Zarr dtype that holds the bits of dtype `name`."""
    return _STORED[name]


def itemsize_of(name: str) -> int:
    """Return the bytes an element of dtype `name` takes where it is stored."""
    return _ITEMSIZES[name]
