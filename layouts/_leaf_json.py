"""Reading leaves from JSON that may be hostile.

Every number is checked before anything of its size is made: what a checkpoint of this
format can hold is bounded by the bytes of its documents, not by what they claim.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, cast

from ._box import Grid, Shape
from ._cut import PACK_BYTES
from ._dtype import dtype_of
from ._errors import InvalidLayout, LayoutError, TooLarge, show, show_path
from ._expect import expect_int, expect_list, is_object
from ._json import check_depth
from ._leaf import ARRAY_KINDS, VALUE_KINDS, Chunked, Leaf, Packed
from ._mesh import Placement
from ._name import check_name
from ._writers import Writers

_RANK = 32
_LENGTH = 1 << 48
_OBJECT_BYTES = 1 << 40
_VALUE_FIELDS = {"path", "kind", "value"}
_FIELDS = {"path", "kind", "dtype", "shape", "placement", "weak", "impl"}
_PACKED_FIELDS = _FIELDS | {"piece", "writers"}
_CHUNKED_FIELDS = _FIELDS | {"array", "object", "chunk", "writers"}


def leaf_from_json(
    value: Any, placements: list[Placement], writers: list[Writers]
) -> Leaf:
    """Read a leaf, or say what is wrong and at which path.

    `placements` and `writers` are the tables whose entries leaves name by number.
    """
    fields = value if is_object(value) else {}
    path, kind = fields.get("path"), fields.get("kind")
    if type(path) is not str or type(kind) is not str:
        raise InvalidLayout(f"expected a leaf's path and kind, found {show(value)}")
    try:
        if "value" in fields:
            return _value_leaf(path, kind, fields)
        return _array_leaf(path, kind, fields, placements, writers)
    except LayoutError as error:
        raise type(error)(f"{error} - at `{show_path(path)}`") from None


def _value_leaf(path: str, kind: str, fields: dict[str, Any]) -> Leaf:
    if kind not in VALUE_KINDS or fields.keys() != _VALUE_FIELDS:
        raise InvalidLayout(
            f"expected a small value, found kind {show(kind)} with {_names(fields)}"
        )
    check_depth(fields["value"], depth=1)
    return Leaf(path, kind, value=fields["value"])


def _array_leaf(
    path: str,
    kind: str,
    fields: dict[str, Any],
    placements: list[Placement],
    writers: list[Writers],
) -> Leaf:
    known = _CHUNKED_FIELDS if "array" in fields else _PACKED_FIELDS
    if kind not in ARRAY_KINDS or not fields.keys() <= known:
        raise InvalidLayout(
            f"expected a stored array, found kind {show(kind)} with {_names(fields)}"
        )
    dtype, shape = fields.get("dtype"), _shape(fields.get("shape"))
    size = dtype_of(cast(str, dtype)).itemsize
    placement = _placement(fields.get("placement"), placements, len(shape))
    weak, impl = fields.get("weak", False), fields.get("impl")
    if type(weak) is not bool:
        raise InvalidLayout(f"expected weak to be a bool, found {show(weak)}")
    if kind == "key":
        if not isinstance(impl, str) or dtype != "uint32":
            raise InvalidLayout("expected a key of uint32 with its impl, found another")
    elif "impl" in fields:
        raise InvalidLayout(f"expected impl on keys alone, found {show(impl)}")
    if (kind == "numpy_scalar" and shape) or (
        kind in ("str", "bytes") and (dtype != "uint8" or len(shape) != 1)
    ):
        raise InvalidLayout(f"expected a {kind}, found {show(dtype)} of {show(shape)}")
    store = _store(fields, shape, size, writers)
    return Leaf(path, kind, cast(str, dtype), shape, placement, store, weak, impl)


def _names(fields: dict[str, Any]) -> str:
    return show(sorted(fields))


def _placement(number: Any, placements: list[Placement], rank: int) -> Placement | None:
    if number is None:
        return None
    found = placements[expect_int(number, "a placement", below=len(placements))]
    if found.spec is not None and len(found.spec) != rank:
        raise InvalidLayout(f"expected a spec of rank {rank}, found {len(found.spec)}")
    return found


def _store(
    fields: dict[str, Any], shape: Shape, itemsize: int, known: list[Writers]
) -> Packed | Chunked:
    rank = len(shape)
    writers = None
    if "writers" in fields:
        number = expect_int(fields["writers"], "writers", below=len(known))
        writers = known[number]
    if "array" in fields:
        cell = _shape(fields.get("object"), rank, least=1)
        chunk = _shape(fields.get("chunk"), rank, least=1)
        cells = _count_objects(shape, cell, chunk, itemsize)
        store = Chunked(check_name(fields["array"]), cell, chunk, writers)
    else:
        piece = _shape(fields["piece"], rank) if "piece" in fields else shape
        cells = _count_pieces(shape, piece, itemsize)
        store = Packed(piece, writers)
    if writers and writers.length != cells:
        raise InvalidLayout(
            f"expected writers of {cells} cells, found those of {writers.length}"
        )
    return store


# The leaves of a tree have few shapes: most are checked already when they come.
@lru_cache(maxsize=1024)
def _count_pieces(shape: Shape, piece: Shape, itemsize: int) -> int:
    """Refuse pieces that do not cut the array, or that no pack would hold."""
    _check_size(shape, itemsize)
    pairs = zip(shape, piece, strict=True)
    if any(p > max(n, 1) or (n and not p) for n, p in pairs):
        raise InvalidLayout(f"expected pieces of {shape}, found {piece}")
    if math.prod(piece) * itemsize > PACK_BYTES:
        raise TooLarge(f"expected pieces of at most {PACK_BYTES} bytes, found {piece}")
    return Grid(shape, piece).length


@lru_cache(maxsize=1024)
def _count_objects(shape: Shape, cell: Shape, chunk: Shape, itemsize: int) -> int:
    """Refuse objects that are not whole chunks, or reach past what the array needs."""
    _check_size(shape, itemsize)
    if not shape or any(o % c for o, c in zip(cell, chunk, strict=True)):
        raise InvalidLayout(
            f"expected objects of whole chunks, found {cell} of {chunk}"
        )
    triples = zip(shape, cell, chunk, strict=True)
    if any(c > max(n, 1) or o >= max(n, 1) + c for n, o, c in triples):
        raise InvalidLayout(f"expected objects inside {shape}, found {cell} of {chunk}")
    if math.prod(cell) * itemsize > _OBJECT_BYTES:
        raise TooLarge(f"expected objects under {_OBJECT_BYTES} bytes, found {cell}")
    return Grid(shape, cell).length


def _check_size(shape: Shape, itemsize: int) -> None:
    if math.prod([max(n, 1) for n in shape]) * itemsize >= 1 << 63:
        raise TooLarge(f"expected under 2**63 bytes, found shape {shape}")


def _shape(value: Any, rank: int | None = None, *, least: int = 0) -> Shape:
    lengths = expect_list(value, "lengths", length=rank)
    if len(lengths) > _RANK:
        raise TooLarge(f"expected a rank of at most {_RANK}, found {len(lengths)}")
    for n in lengths:
        if type(n) is not int or not least <= n < _LENGTH:
            raise InvalidLayout(f"expected lengths under 2**48, found {show(value)}")
    return tuple(lengths)
