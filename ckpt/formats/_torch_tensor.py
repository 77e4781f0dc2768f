"""Tensors of PyTorch, from the functions that pickles of them call."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, cast

from layouts import DTYPES, Box

from .._errors import Damaged, LimitExceeded, Untrusted
from ._entry import Blob, Block, Shape, Tensor
from ._record import Global

ITEMSIZES = {name: dtype.itemsize for name, dtype in DTYPES.items()} | {
    "complex32": 4,
    "qint8": 1,
    "quint8": 1,
    "qint32": 4,
    "quint4x2": 1,
    "quint2x4": 1,
    "float4_e2m1fn_x2": 1,
    "bits8": 1,
}
"""The sizes of what PyTorch calls dtypes, in bytes; not all are known to `layouts`."""

_RANK = 64
_SPREAD = 1 << 26
"""How many bytes a tensor may have that is larger than where its items are."""


@dataclass(frozen=True, slots=True)
class StorageType:
    """A class of storages: `dtype` is None where they hold bytes."""

    dtype: str | None

    @property
    def itemsize(self) -> int:
        """The size of one item in bytes."""
        return ITEMSIZES[self.dtype or "uint8"]


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """Bytes that tensors are views of, within a blob.

    Equal `views` are one Tensor: so tied weights stay tied.
    """

    type: StorageType
    blob: Blob
    start: int
    size: int
    views: dict[Any, Tensor] = field(default_factory=dict[Any, Tensor])


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """Stands where something was that cannot be read; `why` completes a message."""

    why: str


def view_storage(storage: Storage) -> Tensor | Refused:
    """Return the items of a whole storage."""
    dtype = storage.type.dtype or "uint8"
    return make_tensor(storage, dtype, 0, (storage.size // ITEMSIZES[dtype],), (1,))


def make_tensor(
    storage: Any, dtype: Any, offset: Any, size: Any, stride: Any
) -> Tensor | Refused:
    """Return a view of a storage; offset and strides count items.

    Untrusted unless all its items lie within the storage.
    """
    if not isinstance(storage, Storage):
        raise Untrusted("expected a tensor over a storage, found another value")
    shape, strides = read_sizes(size), read_sizes(stride)
    if type(offset) is not int or offset < 0 or len(shape) != len(strides):
        raise Untrusted("expected an offset, sizes and strides of one rank")
    if dtype not in DTYPES:
        return Refused(f"of dtype torch.{dtype}")
    itemsize = ITEMSIZES[dtype]
    count = math.prod(shape)
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if count and (offset + last + 1) * itemsize > storage.size:
        raise Untrusted(
            f"expected items within a storage of {storage.size} bytes, found an offset "
            f"of {offset}, sizes {shape} and strides {strides} of {dtype}"
        )
    if math.prod(n or 1 for n in shape) * itemsize >= 1 << 62:
        raise LimitExceeded(f"expected less than 2**62 bytes, found {dtype}{shape}")
    if count * itemsize > max(storage.size, _SPREAD):
        raise LimitExceeded(
            f"expected at most {_SPREAD} bytes in a tensor that repeats its items, "
            f"found sizes {shape} and strides {strides} of {dtype}"
        )
    block = Block(
        Box((0,) * len(shape), shape),
        storage.blob,
        storage.start + (offset * itemsize if count else 0),
        None
        if _is_packed(shape, strides)
        else tuple(stride * itemsize for stride in strides),
    )
    made = Tensor(dtype, shape, (block,))
    if not count:
        return made
    return storage.views.setdefault((dtype, shape, block), made)


def rebuild_v2(
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    requires_grad: Any = False,
    hooks: Any = None,
    metadata: Any = None,
) -> Tensor | Refused:
    """Stand in for the function that makes tensors of the old dtypes."""
    dtype = storage.type.dtype if isinstance(storage, Storage) else None
    if metadata and any(cast(dict[Any, Any], metadata).values()):
        return Refused("with a conjugate or negative bit")
    return make_tensor(storage, dtype or "uint8", offset, size, stride)


def rebuild_v3(
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    requires_grad: Any,
    hooks: Any,
    dtype: Any,
    metadata: Any = None,
) -> Tensor | Refused:
    """Stand in for the function that makes tensors of the newer dtypes."""
    if type(dtype) is not str or dtype not in ITEMSIZES:
        raise Untrusted("expected a dtype of PyTorch, found another value")
    if metadata and any(cast(dict[Any, Any], metadata).values()):
        return Refused("with a conjugate or negative bit")
    return make_tensor(storage, dtype, offset, size, stride)


def rebuild_parameter(
    data: Any, requires_grad: Any, hooks: Any, state: Any = None
) -> Any:
    """Stand in for the functions that make parameters of tensors."""
    if not isinstance(data, (Tensor, Refused)):
        raise Untrusted("expected a tensor as a parameter's data")
    return data


def rebuild_typed(func: Any, cls: Any, args: Any, state: Any = None) -> Any:
    """Stand in for the function that makes tensors of a class, with attributes."""
    if not isinstance(func, Global) or func.call is None or not isinstance(cls, Global):
        raise Untrusted("expected a function and a class of tensors")
    if (cls.module, cls.name) not in TENSOR_CLASSES:
        return Refused(f"of the class {cls.module}.{cls.name}"[:200])
    made = func.call(*args)
    if not isinstance(made, (Tensor, Refused)):
        raise Untrusted("expected a function that makes tensors")
    return made


TENSOR_CLASSES = {
    ("torch", "Tensor"),
    ("torch.nn.parameter", "Parameter"),
    ("torch.nn.parameter", "Buffer"),
}


def find_storage(pid: Any) -> tuple[StorageType, str, int]:
    """Return the type, key and size in bytes of a storage that a pickle refers to."""
    if not isinstance(pid, tuple) or len(cast(tuple[Any, ...], pid)) not in (5, 6):
        raise Untrusted("expected a reference to a storage, found another value")
    kind, cls, key, _, count = cast(tuple[Any, ...], pid)[:5]
    if kind != "storage" or not isinstance(cls, StorageType) or type(key) is not str:
        raise Untrusted("expected a reference to a storage, found another")
    if pid[5:] not in ((), (None,)):
        raise Untrusted("expected whole storages, found a view of one")
    if type(count) is not int or not 0 <= count < 1 << 62:
        raise Untrusted(f"expected the size of storage {key!a}")
    return cls, key, count * cls.itemsize


def check_size(found: int, expected: int, *, key: str) -> None:
    """Raise Damaged unless a storage has the size that its tensors count on."""
    if found != expected:
        raise Damaged(
            f"expected {expected} bytes in storage {key[:80]!a}, found {found}"
        )


def read_sizes(value: Any) -> Shape:
    """Return the sizes of an array; Untrusted or LimitExceeded for other values."""
    if not isinstance(value, tuple):
        raise Untrusted("expected sizes, found another value")
    sizes = cast(tuple[Any, ...], value)
    for n in sizes:
        # From 2**61 - 1 on, hashes of numbers repeat: places are looked up by theirs.
        if type(n) is not int or not 0 <= n < (1 << 61) - 1:
            raise Untrusted("expected sizes, found another value")
    if len(sizes) > _RANK:
        raise LimitExceeded(f"expected at most {_RANK} dimensions, found {len(sizes)}")
    return sizes


def _is_packed(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Tell whether items lie in C order, whatever the strides of dimensions of one."""
    step = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != step:
            return 0 in shape
        step *= n
    return True
