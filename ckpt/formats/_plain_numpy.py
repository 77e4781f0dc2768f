"""Arrays and scalars of numpy, from the records that a pickle of them makes."""

from __future__ import annotations

import math
import re
from typing import Any, cast

import numpy as np

from layouts import name_of

from .._errors import Untrusted
from ._entry import Tensor
from ._record import Record
from ._torch_tensor import Refused

_DTYPE = re.compile(r"[<>=|]?(?:[?bB]|[biufc](?:1|2|4|8|16))")


def is_numpy(record: Record) -> bool:
    """Tell whether a record is an array, a scalar or a dtype of numpy."""
    return record.module.partition(".")[0] == "numpy"


def read_numpy(record: Record) -> Tensor | Refused | str:
    """Return an array or scalar as a Tensor that has its values, a dtype as its name.

    Untrusted for records that numpy does not write.
    """
    args = record.args
    if record.name == "dtype":
        dtype = _dtype(record)
        return Refused("of a dtype of numpy") if dtype is None else str(dtype)
    if record.name == "scalar" and len(args) == 2:
        return _array(args[0], (), args[1])
    if record.name == "_frombuffer" and len(args) == 4:
        return _array(args[1], args[2], args[0], order=args[3])
    state = record.state
    if record.name == "_reconstruct" and isinstance(state, tuple):
        fields = cast(tuple[Any, ...], state)
        if len(fields) == 5:
            _, shape, dtype, fortran, data = fields
            return _array(dtype, shape, data, order="F" if fortran is True else "C")
    raise Untrusted("expected an array of numpy, found an incomplete one")


def _array(dtype: Any, shape: Any, data: Any, *, order: Any = "C") -> Tensor | Refused:
    found = _dtype(dtype)
    name = None if found is None else name_of(found)
    if found is None or name is None:
        return Refused("of a dtype of numpy")
    if not isinstance(shape, tuple) or not all(
        type(n) is int and 0 <= n < 1 << 62 for n in cast(tuple[Any, ...], shape)
    ):
        raise Untrusted("expected the shape of an array")
    sizes = cast(tuple[int, ...], shape)
    count = math.prod(sizes) * found.itemsize
    if (
        not isinstance(data, (bytes, bytearray))
        or len(data) != count
        or len(sizes) > 64
        or math.prod(n or 1 for n in sizes) * found.itemsize >= 1 << 62
    ):
        raise Untrusted(f"expected {count} bytes of an array of shape {sizes}")
    if order not in ("C", "F"):
        raise Untrusted("expected an array in C or F order")
    flat = np.frombuffer(data, found) if count else np.zeros(0, found)
    native = found.newbyteorder("=")
    array = np.asarray(flat.reshape(sizes, order=order), native, order="C")
    return Tensor(name, sizes, array)


def _dtype(record: Any) -> np.dtype[Any] | None:
    """Return the dtype of a record, None where it is not one of plain numbers."""
    if not isinstance(record, Record) or record.name != "dtype" or not record.args:
        raise Untrusted("expected a dtype of numpy, found another value")
    text = record.args[0]
    if type(text) is not str or not _DTYPE.fullmatch(text):
        return None
    try:
        dtype = np.dtype(text)
    except TypeError:
        return None
    state = record.state
    if isinstance(state, tuple) and state[1:2] == (">",):
        return dtype.newbyteorder(">")
    return dtype
