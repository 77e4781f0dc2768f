"""One leaf of a saved tree: what it is and where its bytes live."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ._box import Grid, Shape
from ._dtype import dtype_of, stored_dtype
from ._errors import InvalidLayout, TooLarge
from ._mesh import Placement
from ._name import check_name

ARRAY_KINDS = frozenset({"jax", "key", "numpy", "numpy_scalar", "str", "bytes"})
VALUE_KINDS = frozenset({"int", "float", "bool", "complex", "str", "bytes"})

Runs = tuple[tuple[int, int], ...]
"""Writers, run-length encoded in the order of the cells: (process, count)."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Stored as pieces in its writers' packs."""

    piece: Shape
    writers: Runs = ()


@dataclass(frozen=True, slots=True)
class Chunked:
    """Stored as a Zarr array: a grid of objects, each a grid of chunks."""

    name: str
    object: Shape
    chunk: Shape
    writers: Runs = ()


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf: its path, its kind, and either a small value or a stored array.

    `shape` and `dtype` are those of the stored array; a typed PRNG key ("key") is
    stored as its uint32 key data, whose last dimensions `impl` accounts for.
    """

    path: str
    kind: str
    dtype: str = ""
    shape: Shape = ()
    placement: Placement | None = None
    store: Packed | Chunked | None = None
    weak: bool = False
    impl: str | None = None
    value: Any = None

    @property
    def itemsize(self) -> int:
        """Bytes an element takes where it is stored."""
        return stored_dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array; 0 for a value kept in the manifest."""
        return math.prod(self.shape) * self.itemsize if self.store else 0

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return dtype_of(self.dtype)

    @property
    def cells(self) -> Grid:
        """The grid of what is written at once: pieces of a pack, or objects."""
        if isinstance(self.store, Chunked):
            return Grid(self.shape, self.store.object)
        return Grid(self.shape, cast(Packed, self.store).piece)

    @property
    def chunks(self) -> Grid:
        """The grid of what is read and checked at once."""
        if isinstance(self.store, Chunked):
            return Grid(self.shape, self.store.chunk)
        return self.cells

    def writer(self, cell: int) -> int:
        """Return the process that wrote the cell with this number."""
        if not self.store or not self.store.writers:
            return 0
        for process, count in self.store.writers:
            if cell < count:
                return process
            cell -= count
        raise IndexError(cell)

    def to_json(self, placements: dict[Placement, int]) -> dict[str, Any]:
        """Return the leaf as JSON, its placement as a number in `placements`."""
        found: dict[str, Any] = {"path": self.path, "kind": self.kind}
        if self.store is None:
            return found | {"value": self.value}
        found |= {"dtype": self.dtype, "shape": self.shape}
        if self.placement is not None:
            found["placement"] = placements.setdefault(self.placement, len(placements))
        if self.weak:
            found["weak"] = True
        if self.impl is not None:
            found["impl"] = self.impl
        if isinstance(self.store, Chunked):
            found["array"] = self.store.name
            found["object"] = self.store.object
            found["chunk"] = self.store.chunk
        elif self.store.piece != self.shape:
            found["piece"] = self.store.piece
        if self.store.writers:
            found["writers"] = self.store.writers
        return found


_FIELDS = {"path", "kind", "dtype", "shape", "placement", "weak", "impl"}
_PACKED_FIELDS = _FIELDS | {"piece", "writers"}
_CHUNKED_FIELDS = _FIELDS | {"array", "object", "chunk", "writers"}


def leaf_from_json(value: Any, placements: list[Placement], processes: int) -> Leaf:
    """Read a leaf, checking every bound before anything of its size is made."""
    if not isinstance(value, dict):
        raise InvalidLayout(f"expected a leaf, found {value!r:.80}")
    fields = cast("dict[str, Any]", value)
    path, kind = fields.get("path"), fields.get("kind")
    if not isinstance(path, str) or not isinstance(kind, str):
        raise InvalidLayout(f"expected a leaf with path and kind, found {value!r:.80}")
    try:
        if "value" in fields:
            if kind not in VALUE_KINDS or fields.keys() != {"path", "kind", "value"}:
                raise InvalidLayout(f"expected a small value, found kind {kind!r:.40}")
            return Leaf(path, kind, value=fields["value"])
        known = _CHUNKED_FIELDS if "array" in fields else _PACKED_FIELDS
        if kind not in ARRAY_KINDS or not fields.keys() <= known:
            raise InvalidLayout(
                f"expected a stored array, found kind {kind!r:.40} "
                f"with {sorted(fields.keys() - known)}"
            )
        return _array_leaf(path, kind, fields, placements, processes)
    except InvalidLayout as error:
        raise InvalidLayout(f"{error} - at `{path:.200}`") from None


def _array_leaf(
    path: str,
    kind: str,
    fields: dict[str, Any],
    placements: list[Placement],
    processes: int,
) -> Leaf:
    dtype, shape = fields.get("dtype"), _shape(fields.get("shape"))
    itemsize = dtype_of(cast(str, dtype)).itemsize
    if math.prod(max(n, 1) for n in shape) * itemsize >= 1 << 63:
        raise TooLarge(f"expected under 2**63 bytes, found shape {shape} of {dtype}")
    number = fields.get("placement")
    if number is not None and not (
        type(number) is int and 0 <= number < len(placements)
    ):
        raise InvalidLayout(f"expected a placement number, found {number!r:.40}")
    placement = None if number is None else placements[number]
    rank = len(shape)
    spec = placement.spec if placement else None
    if spec is not None and len(spec) > rank:
        raise InvalidLayout(f"expected a spec of rank {rank}, found {len(spec)}")
    weak, impl = fields.get("weak", False), fields.get("impl")
    if type(weak) is not bool or (impl is not None) != (kind == "key"):
        raise InvalidLayout("expected weak to be a bool, and impl on keys alone")
    if impl is not None and not isinstance(impl, str):
        raise InvalidLayout(f"expected the name of a PRNG, found {impl!r:.40}")
    if "array" in fields:
        cell = _shape(fields.get("object"), rank, least=1)
        chunk = _shape(fields.get("chunk"), rank, least=1)
        if any(o % c for o, c in zip(cell, chunk, strict=True)) or not rank:
            raise InvalidLayout(f"expected objects of whole chunks, found {cell}")
        store = Chunked(check_name(fields["array"]), cell, chunk)
        if Grid(shape, chunk).length > 1 << 26 or math.prod(cell) * itemsize >> 40:
            raise TooLarge(f"expected fewer chunks, found {chunk} of {shape}")
    else:
        store = Packed(_shape(fields.get("piece", list(shape)), rank))
        if any(not p and n for n, p in zip(shape, store.piece, strict=True)):
            raise InvalidLayout(f"expected pieces, found shape {store.piece}")
        if math.prod(store.piece) * itemsize >> 40 or (
            store.piece != shape and Grid(shape, store.piece).length > 1 << 26
        ):
            raise TooLarge(f"expected fewer pieces, found {store.piece} of {shape}")
    if "writers" in fields:
        store = _with_writers(store, shape, fields["writers"], processes)
    return Leaf(
        path, kind, cast(str, dtype), shape, placement, store, weak, cast(Any, impl)
    )


def _with_writers(
    store: Packed | Chunked, shape: Shape, value: Any, processes: int
) -> Packed | Chunked:
    try:
        runs = tuple((process, count) for process, count in value)
    except (TypeError, ValueError):
        raise InvalidLayout(f"expected runs of writers, found {value!r:.80}") from None
    for process, count in runs:
        if type(process) is not int or type(count) is not int:
            raise InvalidLayout(f"expected runs of writers, found {value!r:.80}")
        if not (0 <= process < processes and count > 0):
            raise InvalidLayout(
                f"expected writers under {processes}, found {process} for {count}"
            )
    if isinstance(store, Chunked):
        length = Grid(shape, store.object).length
        made: Packed | Chunked = Chunked(store.name, store.object, store.chunk, runs)
    else:
        length = Grid(shape, store.piece).length
        made = Packed(store.piece, runs)
    if sum(count for _, count in runs) != length:
        raise InvalidLayout(f"expected writers for {length} cells, found {runs!r:.80}")
    return made


def _shape(value: Any, rank: int | None = None, *, least: int = 0) -> Shape:
    if not isinstance(value, list) or len(cast("list[Any]", value)) > 32:
        raise InvalidLayout(f"expected a shape of rank <= 32, found {value!r:.80}")
    for n in cast("list[Any]", value):
        if type(n) is not int or not least <= n < 1 << 48:
            raise InvalidLayout(f"expected lengths under 2**48, found {value!r:.80}")
    shape = tuple(cast("list[int]", value))
    if rank is not None and len(shape) != rank:
        raise InvalidLayout(f"expected a shape of rank {rank}, found {shape}")
    return shape
