"""Which dtype changes lose nothing."""

from __future__ import annotations

from typing import Any, cast

import ml_dtypes
import numpy as np

_SUB_BYTE = {"int2", "uint2", "int4", "uint4"}


def is_lossless(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Tell whether every value of one dtype is a value of the other.

    >>> is_lossless(np.dtype("int16"), np.dtype("float32"))
    True
    >>> is_lossless(np.dtype("int32"), np.dtype("float32"))
    False
    """
    if source == target:
        return True
    if target.name == "float8_e8m0fnu":
        return False  # powers of two alone: no zero, no sign
    if source.kind == "b":
        return True
    if target.kind == "b":
        return False
    if target.kind == "c":
        part = np.dtype(f"float{4 * target.itemsize}")
        whole = (
            np.dtype(f"float{4 * source.itemsize}") if source.kind == "c" else source
        )
        return is_lossless(whole, part)
    if source.kind == "c":
        return False
    if _is_integer(target):
        return _is_integer(source) and _range_within(source, target)
    if _is_integer(source):
        bits = _integer_bits(source)
        mantissa = int(_finfo(target).nmant) + 1
        return bits <= mantissa and bits <= _exponents(target)[1]
    return _float_within(source, target)


def convert(values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> Any:
    """Return the values in another dtype, as C would and without a warning."""
    if values.dtype.kind == "c" and dtype.kind != "c":
        values = values.real
    with np.errstate(all="ignore"):
        if values.dtype != dtype and {values.dtype.name, dtype.name} <= _SUB_BYTE:
            values = values.astype(np.int8)  # between these there is no cast
        return values.astype(dtype)


def fits(value: Any, dtype: np.dtype[Any]) -> bool:
    """Tell whether an array of the dtype holds a Python number exactly.

    >>> fits(3, np.dtype("float32")), fits(0.1, np.dtype("float32"))
    (True, False)
    >>> fits(300, np.dtype("int8")), fits(float("nan"), np.dtype("int32"))
    (False, False)
    """
    exact = isinstance(value, int)
    if dtype.kind == "b":
        return isinstance(value, bool)
    if _is_integer(dtype):
        info = ml_dtypes.iinfo(dtype)
        return exact and info.min <= value <= info.max
    if isinstance(value, complex) and dtype.kind != "c":
        return False
    try:
        back = convert(np.asarray(value), dtype).item()
    except (OverflowError, TypeError, ValueError):
        return False
    # Python compares ints with floats exactly; the text of a float shows -0.0 and nan.
    return bool(back == value) if exact else repr(back) == repr(type(back)(value))


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" or dtype.name.startswith(("int", "uint"))


def _range_within(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    a, b = ml_dtypes.iinfo(source), ml_dtypes.iinfo(target)
    return bool(b.min <= a.min and a.max <= b.max)


def _integer_bits(dtype: np.dtype[Any]) -> int:
    return int(ml_dtypes.iinfo(dtype).max).bit_length()


def _finfo(dtype: np.dtype[Any]) -> Any:
    return cast("Any", ml_dtypes.finfo(dtype))


def _exponents(dtype: np.dtype[Any]) -> tuple[int, int]:
    info = _finfo(dtype)
    return int(info.minexp) - int(info.nmant), int(info.maxexp)


def _float_within(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    a, b = _finfo(source), _finfo(target)
    low, high = _exponents(source), _exponents(target)
    return bool(
        a.nmant <= b.nmant
        and high[0] <= low[0]
        and low[1] <= high[1]
        and (np.dtype(target).itemsize > 1 or source == target)
    )
