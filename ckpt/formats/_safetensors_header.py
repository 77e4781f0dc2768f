"""One safetensors file: its header, believed only where every rule holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import layouts

from .._errors import (
    CkptError,
    Damaged,
    LimitExceeded,
    NotFound,
    Unsupported,
    Untrusted,
)
from .._store import CutShort, Reader, Store
from ._entry import Blob, Block, Shape, Tensor
from ._json import JSON_BYTES, is_numbers, is_text, parse_object, show
from ._nibbles import read_nibbles

DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
    "F4": "float4_e2m1fn",
}
"""The dtypes that headers name, and their JAX names."""

_FIELDS = ("dtype", "shape", "data_offsets")
_UNPACKED = ("F6_E2M3", "F6_E3M2")
_FIRST_BYTES = 64 << 10
_MOST_DEPTH = 100
_MOST_RANK = 64
_U64 = 1 << 64


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor of a file: its bytes begin at `start` of what follows the header."""

    dtype: str
    shape: Shape
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself; its tensors begin at `data`."""

    store: Store
    name: str
    data: int
    rows: dict[str, Row]
    metadata: dict[str, str]

    @property
    def where(self) -> str:
        """The file, for messages."""
        return f"{self.store.url}/{self.name}"

    def blob(self, name: str) -> Blob:
        """Return where a tensor's bytes are."""
        row = self.rows[name]
        return Blob(self.name, self.data + row.start, row.length)

    def tensor(self, name: str) -> Tensor:
        """Return a tensor of the file."""
        row, blob = self.rows[name], self.blob(name)
        if row.dtype == "float4_e2m1fn":
            where = f"`{name}`, in {self.where}"
            lazy = read_nibbles(self.store, blob, row.shape, where=where)
            return Tensor(row.dtype, row.shape, lazy)
        return Tensor(row.dtype, row.shape, (Block(layouts.whole(row.shape), blob),))


def read_header(store: Store, name: str) -> Header:
    """Read and check the header of one file.

    Damaged where it is missing, cut short or has holes, Untrusted where it contradicts
    itself, LimitExceeded where the header is too long.
    """
    where = f"{store.url}/{name}"
    try:
        with store.open(name) as reader:
            size = reader.size
            text = _read_text(reader, where)
    except NotFound:
        raise Damaged(f"expected a file, found none - in {where}") from None
    except CutShort:
        raise Damaged(f"expected more bytes, found them cut off - in {where}") from None
    data = 8 + len(text)
    parsed = parse_object(text, where, what="a header")
    del text
    metadata = _take_metadata(parsed.pop("__metadata__", None), where)
    rows = {key: _make_row(key, entry, where) for key, entry in parsed.items()}
    _check_chain(rows, size - data, where)
    return Header(store, name, data, rows, metadata)


def _read_text(reader: Reader, where: str) -> bytes:
    """Return the JSON of a header, once the file is as long as it says."""
    # One request brings most headers whole.
    first = bytearray(min(reader.size, _FIRST_BYTES))
    reader.read_into(0, first)
    length = int.from_bytes(first[:8], "little")
    rest = reader.size - 8
    if rest < 0 or length > rest:
        raise Damaged(
            f"expected 8 bytes and then a header of {length:,}, found {reader.size:,} "
            f"in all - in {where}: it is cut off, or no safetensors file"
        )
    if length > JSON_BYTES:
        raise LimitExceeded(
            f"expected a header of at most {JSON_BYTES:,} bytes, found {length:,} - "
            f"in {where}: split the file"
        )
    if length <= len(first) - 8:
        return bytes(first[8 : 8 + length])
    text = bytearray(length)
    reader.read_into(8, text)
    return bytes(text)


def _take_metadata(found: Any, where: str) -> dict[str, str]:
    if found is None:
        return {}
    if isinstance(found, dict):
        metadata = cast("dict[str, Any]", found)
        if all(is_text(k) and is_text(v) for k, v in metadata.items()):
            return metadata
    raise Untrusted(f"expected __metadata__ of texts, found others - in {where}")


def _make_row(name: str, entry: Any, where: str) -> Row:
    def refuse(expected: str, found: Any) -> CkptError:
        return Untrusted(
            f"expected {expected}, found {show(found)} - at {show(name)}, in {where}"
        )

    if not is_text(name):
        raise refuse("a name in Unicode", "a lone surrogate")
    if not isinstance(entry, dict):
        raise refuse("dtype, shape and data_offsets", entry)
    fields = cast("dict[str, Any]", entry)
    dtype: Any = fields.get("dtype")
    shape: Any = fields.get("shape")
    offsets: Any = fields.get("data_offsets")
    if not is_numbers(shape) or len(shape) > _MOST_RANK:
        raise refuse("a shape of at most 64 integers", shape)
    if not is_numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise refuse("two ascending data_offsets", offsets)
    if dtype in _UNPACKED:
        raise Unsupported(
            f"expected a dtype that arrays have, found {dtype} - at {show(name)}, in "
            f"{where}: convert it with what wrote it"
        )
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise refuse("a dtype that safetensors has", dtype)
    if _is_deep([v for k, v in fields.items() if k not in _FIELDS]):
        raise refuse("fewer nested values", entry)
    length: int = offsets[1] - offsets[0]
    bits = 4 if dtype == "F4" else 8 * layouts.dtype_of(DTYPES[dtype]).itemsize
    for size in shape:
        bits *= size
        # An overflow in front of a zero counts too, as in the format's own reader.
        if bits >= 8 * _U64:
            raise refuse("fewer than 2**64 bytes", shape)
    if bits != 8 * length:
        raise refuse(f"{bits / 8:,.9g} bytes for {dtype}{list(shape)}", length)
    return Row(DTYPES[dtype], tuple(shape), offsets[0], length)


def _is_deep(level: Sequence[Any]) -> bool:
    """Tell whether fields that nobody knows hold values that are nested deep."""
    for _ in range(_MOST_DEPTH):
        level = [inner for value in level for inner in _children(value)]
        if not level:
            return False
    return True


def _children(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else ()


def _check_chain(rows: dict[str, Row], size: int, where: str) -> None:
    """Refuse tensors that do not follow one another from the header to the end."""
    end = 0
    for name, row in sorted(rows.items(), key=lambda x: (x[1].start, x[1].length)):
        if row.start != end:
            kind, found = (
                (Untrusted, "an overlap") if row.start < end else (Damaged, "a hole")
            )
            raise kind(
                f"expected a tensor to begin where the last ends, at {end:,}, found "
                f"{found} to {row.start:,} - at {show(name)}, in {where}"
            )
        end += row.length
    if end > size:
        raise Damaged(
            f"expected {end:,} bytes of tensors, found {size:,} - in {where}: it is "
            "cut off; complete the download"
        )
    if end < size:
        raise Untrusted(
            f"expected {end:,} bytes of tensors, found {size:,} - in {where}: nothing "
            "may follow them"
        )
