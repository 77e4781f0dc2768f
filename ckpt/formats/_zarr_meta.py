"""Metadata of one Zarr array, version 2 or 3, checked: what it says is all that we use.

The codecs are a closed set, sizes and counts are limited, and nothing of the document
is ever handed on as it stands.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from layouts import LayoutError, dtype_of

from .._errors import LimitExceeded, Unsupported, Untrusted
from ._entry import Shape
from ._orbax_json import parse

DOCUMENT_BYTES = 1 << 20
"""More than any honest document has; they are held for thousands of arrays at once."""

_RANK = 32
_ITEMS = 1 << 56
_INNER = 1 << 18
"""Inner chunks in a shard: its index has 16 bytes for each."""

Compressor = Literal["zstd", "gzip", "zlib", "blosc", "bz2"]

_PLAIN = re.compile(r"([<>|])([biufc])(\d{1,2})")
_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}


@dataclass(frozen=True, slots=True)
class Codecs:
    """How the items of a chunk become stored bytes.

    They are laid out with dimension `order[d]` as the d-th, `before` CRC-32Cs are put
    behind them, then they are compressed, and `after` more are put behind that.
    """

    order: Shape
    big_endian: bool = False
    compressor: Compressor | None = None
    before: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True)
class Shards:
    """The inner chunks of a chunk that is a shard: their shape, where the index is."""

    chunk: Shape
    index: Codecs
    at_end: bool


@dataclass(frozen=True, slots=True)
class ZarrArray:
    """One array: `chunk` is what one object holds, `fill` what an absent one means."""

    dtype: str
    shape: Shape
    chunk: Shape
    codecs: Codecs
    fill: Any
    separator: str
    prefix: str
    shards: Shards | None = None

    @property
    def piece(self) -> Shape:
        """The shape of the smallest part that can be read alone."""
        return self.shards.chunk if self.shards else self.chunk

    @property
    def cells(self) -> int:
        """The number of chunks."""
        pairs = zip(self.shape, self.chunk, strict=True)
        return math.prod(-(-n // c) for n, c in pairs)

    def key(self, cell: Shape) -> str:
        """Return the name of a chunk's object, below the array's own."""
        if not cell:
            return self.prefix or "0"
        parts = [self.prefix] if self.prefix else []
        return self.separator.join([*parts, *map(str, cell)])


def parse_zarr(data: bytes, *, version: int, where: str) -> ZarrArray:
    """Read a `.zarray` or `zarr.json`; Damaged, Untrusted, Unsupported say why not."""
    try:
        fields = _object(parse(data, where=where), "an object")
        if fields.get("zarr_format") != version:
            _refuse(f"zarr_format {version}", fields.get("zarr_format"))
        return _parse_v2(fields) if version == 2 else _parse_v3(fields)
    except _Refused as refused:
        kind = Unsupported if refused.feature else Untrusted
        advice = (
            "read it with TensorStore and save it anew"
            if refused.feature
            else "no writer makes this, get the checkpoint again"
        )
        raise kind(f"{refused} - at {where}: {advice}") from None


class _Refused(Exception):
    """Says what is wrong, before it is known where."""

    def __init__(self, text: str, *, feature: bool) -> None:
        super().__init__(text)
        self.feature = feature


def _refuse(expected: str, found: object, *, feature: bool = False) -> Any:
    raise _Refused(f"expected {expected}, found {found!r:.80}", feature=feature)


def _parse_v2(fields: dict[str, Any]) -> ZarrArray:
    if fields.get("filters"):
        _refuse("no filters", fields["filters"], feature=True)
    shape, chunk = _shapes(fields.get("shape"), fields.get("chunks"))
    dtype, big = _dtype_v2(fields.get("dtype"))
    order = fields.get("order", "C")
    if order not in ("C", "F"):
        _refuse("order C or F", order)
    axes = range(len(shape))
    codecs = Codecs(
        tuple(axes) if order == "C" else tuple(reversed(axes)),
        big,
        _compressor(fields.get("compressor"), key="id"),
    )
    separator = _separator(fields.get("dimension_separator", "."))
    return ZarrArray(
        dtype, shape, chunk, codecs, fields.get("fill_value"), separator, ""
    )


def _parse_v3(fields: dict[str, Any]) -> ZarrArray:
    if fields.get("node_type") != "array":
        _refuse("an array", fields.get("node_type"))
    if fields.get("storage_transformers"):
        _refuse("no transformers", fields["storage_transformers"], feature=True)
    grid, settings = _named(fields.get("chunk_grid"))
    if grid != "regular":
        _refuse("a regular grid", grid, feature=True)
    shape, chunk = _shapes(fields.get("shape"), settings.get("chunk_shape"))
    dtype = _dtype(fields.get("data_type"))
    encoding, settings = _named(fields.get("chunk_key_encoding"))
    if encoding not in ("default", "v2"):
        _refuse("default or v2 keys", encoding, feature=True)
    plain = encoding == "v2"
    separator = _separator(settings.get("separator", "." if plain else "/"))
    prefix = "" if plain else "c"
    codecs, shards = _parse_codecs(fields.get("codecs"), chunk, dtype)
    fill = fields.get("fill_value")
    return ZarrArray(dtype, shape, chunk, codecs, fill, separator, prefix, shards)


def _parse_codecs(
    value: Any, chunk: Shape, dtype: str, *, nested: bool = False
) -> tuple[Codecs, Shards | None]:
    chain = [_named(item) for item in _list(value, "codecs")]
    if chain and chain[0][0] == "sharding_indexed" and not nested:
        if len(chain) > 1:
            _refuse("shards and nothing after them", chain[1][0], feature=True)
        return _parse_shards(chain[0][1], chunk, dtype)
    order, big, compressor = tuple(range(len(chunk))), None, None
    before = after = 0
    for name, settings in chain:
        if name == "transpose" and big is None:
            turned = _ints(settings.get("order"), "an order")
            if sorted(turned) != list(range(len(chunk))):
                _refuse("an order of all dimensions", turned)
            order = tuple(order[d] for d in turned)
        elif name == "bytes" and big is None:
            endian = settings.get("endian", "little")
            if endian not in ("little", "big"):
                _refuse("endian little or big", endian)
            big = endian == "big"
        elif name == "crc32c" and big is not None:
            before, after = (
                (before + 1, after) if compressor is None else (before, after + 1)
            )
        elif big is not None and compressor is None:
            compressor = _compressor({"name": name}, key="name")
        else:
            _refuse("codecs that we read, in their order", name, feature=True)
    if big is None:
        _refuse("a bytes codec", [name for name, _ in chain], feature=True)
    if before + after > 4:
        _refuse("few checksums", before + after)
    return Codecs(order, bool(big), compressor, before, after), None


def _parse_shards(
    settings: dict[str, Any], shard: Shape, dtype: str
) -> tuple[Codecs, Shards]:
    chunk = _ints(settings.get("chunk_shape"), "a chunk shape")
    if len(chunk) != len(shard) or any(
        n < 1 or m % n for n, m in zip(chunk, shard, strict=True)
    ):
        _refuse(f"chunks that divide shards of {shard}", chunk)
    counts = tuple(m // n for n, m in zip(chunk, shard, strict=True))
    if math.prod(counts) > _INNER:
        _refuse(f"at most {_INNER} chunks in a shard", math.prod(counts))
    codecs, _ = _parse_codecs(settings.get("codecs"), chunk, dtype, nested=True)
    index, _ = _parse_codecs(
        settings.get("index_codecs"), (*counts, 2), "uint64", nested=True
    )
    if index.compressor:
        _refuse("an index of a fixed size", index.compressor)
    place = settings.get("index_location", "end")
    if place not in ("start", "end"):
        _refuse("an index at start or end", place)
    return codecs, Shards(chunk, index, place == "end")


def _shapes(shape: Any, chunk: Any) -> tuple[Shape, Shape]:
    sizes, pieces = _ints(shape, "a shape"), _ints(chunk, "a chunk shape")
    if len(sizes) != len(pieces) or any(n < 1 for n in pieces):
        _refuse(f"chunks of {len(sizes)} dimensions, none 0", pieces)
    for dims in (sizes, pieces):
        if math.prod(max(n, 1) for n in dims) > _ITEMS:
            raise LimitExceeded(
                f"expected at most {_ITEMS:,} items in an array, found {dims!r:.80}: "
                "no device holds it, get the checkpoint again"
            )
    return sizes, pieces


def _compressor(value: Any, *, key: str) -> Compressor | None:
    if value is None:
        return None
    name = _object(value, "a compressor").get(key)
    known = ("zstd", "gzip", "blosc") + (("zlib", "bz2") if key == "id" else ())
    if name not in known:
        _refuse(f"one of {', '.join(known)}", name, feature=True)
    return cast(Compressor, name)


def _dtype_v2(value: Any) -> tuple[str, bool]:
    match = _PLAIN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return _dtype(value), False
    order, kind, size = match.groups()
    name = _KINDS[kind] + ("" if kind == "b" else str(8 * int(size)))
    if kind == "b" and size != "1":
        _refuse("a dtype", value)
    if order == "|" and size != "1":
        _refuse("a dtype with its byte order", value)
    return _dtype(name), order == ">"


def _dtype(value: Any) -> str:
    try:
        dtype_of(value)
    except LayoutError:
        _refuse("a dtype that JAX has", value, feature=True)
    return cast(str, value)


def _separator(value: Any) -> str:
    if value not in (".", "/"):
        _refuse("a separator . or /", value)
    return cast(str, value)


def _named(value: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(value, str):
        return value, {}
    fields = _object(value, "a name and its configuration")
    name = fields.get("name")
    if not isinstance(name, str):
        return _refuse("a name", name)
    return name, _object(fields.get("configuration") or {}, "a configuration")


def _object(value: Any, expected: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        return _refuse(expected, value)
    return cast("dict[str, Any]", value)


def _list(value: Any, expected: str) -> list[Any]:
    if not isinstance(value, list) or len(value := cast("list[Any]", value)) > _RANK:
        return _refuse(f"{expected}, at most {_RANK}", value)
    return value


def _ints(value: Any, expected: str) -> Shape:
    found = _list(value, expected)
    if not all(type(n) is int and 0 <= n <= _ITEMS for n in found):
        _refuse(expected, found)
    return tuple(found)


def fill_of(array: ZarrArray, *, where: str) -> np.ndarray[Any, Any]:
    """Return the value of items whose chunk is absent, as a 0-d array."""
    dtype, value = dtype_of(array.dtype), array.fill
    try:
        if isinstance(value, str) and re.fullmatch(r"0x[0-9a-fA-F]{1,32}", value):
            data = int(value, 16).to_bytes(dtype.itemsize, "little")
            return np.frombuffer(data, dtype).reshape(())
        if dtype.kind == "c" and isinstance(value, list):
            real, imaginary = cast("list[Any]", value)
            return np.array(complex(float(real), float(imaginary)), dtype)
        if dtype == np.bool_ and type(value) is bool:
            return np.array(value)
        if array.dtype.lstrip("u").startswith("int") and type(value) is int:
            filled = np.array(value, np.int64 if value < 0 else np.uint64)
            if int(filled.astype(dtype)) == value:
                return filled.astype(dtype)
        elif dtype != np.bool_ and isinstance(value, int | float | str):
            with np.errstate(over="ignore"):
                made = np.array(float(value)).astype(dtype)
            if math.isfinite(float(value)) == bool(np.isfinite(made)):
                return made
    except (ValueError, TypeError, OverflowError):
        pass
    raise Untrusted(
        f"expected a fill value of {array.dtype}, found {value!r:.60} - at {where}: "
        "no writer makes this, get the checkpoint again"
    )
