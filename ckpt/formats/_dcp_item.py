"""One item of PyTorch DCP: a box of a tensor, as a whole archive of its own."""

from __future__ import annotations

import struct
from typing import Any, cast

import numpy as np

import layouts

from .._errors import CkptError, Damaged, StoreError
from .._store import CutShort, Reader, Store
from ._entry import Array, Blob, Block, Shape, Tensor
from ._pickle import decode_pickle
from ._plain import show_place
from ._torch import read_torch, read_torch_bytes
from ._torch_globals import TORCH
from ._torch_tensor import Storage, find_storage
from ._zstd import decode_zstd

_HEAD = 4096
"""What is read of an item to find its values: names, a pickle and headers."""

SMALL = 64 * 1024
"""Items of up to so many bytes are read whole, by one request."""

_AROUND = 1024 * 1024
"""How much more than the values an item may hold, decoded."""

_LOCAL = struct.Struct("<4s5H3L2H")


def find_box(
    store: Store, blob: Blob, reader: Reader, *, name: str, dtype: str, shape: Shape
) -> Block | Array:
    """Return where the values of a box are, or the values if they had to be read.

    Damaged unless the item is a tensor of this dtype and shape. `name` is for messages.
    """
    try:
        return _find_box(store, blob, reader, dtype=dtype, shape=shape)
    except StoreError:
        raise
    except CkptError as error:
        kind = Damaged if isinstance(error, CutShort) else type(error)
        shown = f"`{show_place((name,))}`"
        text = str(error).replace("at ``", f"at {shown}")
        text = text if shown in text else f"{text} (a box of {shown})"
        raise kind(text) from error


def _find_box(
    store: Store, blob: Blob, reader: Reader, *, dtype: str, shape: Shape
) -> Block | Array:
    where = f"{store.url}/{blob.name}"
    data = None
    if blob.codec is not None or blob.length <= SMALL:
        data = _read_item(blob, reader, limit=_plain_size(dtype, shape) + _AROUND)
        tensor = _look_in(data, blob) or read_torch_bytes(data, blob, where=where)
    else:
        buffer = bytearray(min(_HEAD, blob.length))
        reader.read_into(blob.offset, buffer)
        tensor = _look_in(bytes(buffer), blob) or read_torch(store, blob, reader=reader)
    if not isinstance(tensor, Tensor) or (tensor.dtype, tensor.shape) != (dtype, shape):
        found = "another value"
        if isinstance(tensor, Tensor):
            found = f"{tensor.dtype}{list(tensor.shape)}"
        raise Damaged(
            f"expected {dtype}{list(shape)}, found {found} - at byte {blob.offset:,} "
            f"in {where}: metadata and data are not of one checkpoint"
        )
    if isinstance(tensor.data, np.ndarray):
        return tensor.data
    (block,) = cast(tuple[Block], tensor.data)
    return block if data is None else _view(data, block, dtype)


def _read_item(blob: Blob, reader: Reader, *, limit: int) -> bytes:
    """Return the bytes of an item, decoded."""
    buffer = bytearray(blob.length)
    reader.read_into(blob.offset, buffer)
    if blob.codec is None:
        return bytes(buffer)
    # An archive adds about so much to the values.
    return decode_zstd(bytes(buffer), limit=limit, guess=limit - _AROUND + 1577)


def _plain_size(dtype: str, shape: Shape) -> int:
    return int(np.prod(shape, dtype=object)) * layouts.stored_dtype(dtype).itemsize


def _look_in(head: bytes, blob: Blob) -> Tensor | None:
    """Return the tensor that an archive holds by its first bytes, if they show it.

    PyTorch writes the pickle first, and the one storage soon after it. Anything else is
    for the reader of whole archives, which starts at the end: one more request.
    """
    if head[:4] != b"PK\3\4" or len(head) < _LOCAL.size or b"little" not in head:
        return None
    fields = _LOCAL.unpack_from(head)
    start = _LOCAL.size + fields[9]
    top, slash, rest = head[_LOCAL.size : start].partition(b"/")
    if not slash or rest != b"data.pkl":
        return None

    def find(pid: Any) -> Storage:
        kind, key, size = find_storage(pid)
        name = top + b"/data/" + key.encode()
        at = head.find(name) - _LOCAL.size
        if at < 0 or head[at : at + 4] != b"PK\3\4":
            raise Damaged("expected the header of a storage, found none")
        header = _LOCAL.unpack_from(head, at)
        begin = at + _LOCAL.size + header[9] + header[10]
        if header[9] != len(name) or header[3] or begin + size > blob.length:
            raise Damaged("expected the header of a storage, found another")
        return Storage(kind, blob, begin, size)

    try:
        at = start + fields[10]
        value, _ = decode_pickle(head, at=at, globals=TORCH, persistent=find)
    except StoreError:
        raise
    except CkptError:
        return None
    return value if isinstance(value, Tensor) else None


def _view(data: bytes, block: Block, dtype: str) -> Array:
    """Return the values of a box in the bytes of its item."""
    stored, shape = layouts.stored_dtype(dtype), block.box.shape
    strides = block.strides
    last = (
        block.box.size * stored.itemsize
        if strides is None
        else sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        + stored.itemsize
    )
    if block.offset + last > len(data):
        raise Damaged(f"expected more bytes of an item, found {len(data):,}")
    plain = np.ndarray(shape, stored, data, block.offset, strides)
    return plain.view(layouts.dtype_of(dtype))
