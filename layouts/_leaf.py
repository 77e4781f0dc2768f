"""One leaf of a saved tree: what it is and where its bytes live."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ._box import Grid, Shape
from ._dtype import dtype_of, itemsize_of
from ._mesh import Placement

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
        return itemsize_of(self.dtype)

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
        store = cast("Packed | Chunked", self.store)
        return Grid(
            self.shape, store.object if isinstance(store, Chunked) else store.piece
        )

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
        return next(self.writers([cell]))

    def writers(self, cells: Iterable[int]) -> Iterator[int]:
        """Yield the process that wrote each cell; their numbers must ascend."""
        if not self.store or not self.store.writers:
            yield from (0 for _ in cells)
            return
        runs = iter(self.store.writers)
        process, stop = next(runs)
        for cell in cells:
            while cell >= stop:
                process, count = next(runs)
                stop += count
            yield process

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
