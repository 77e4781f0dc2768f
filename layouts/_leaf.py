"""One leaf of a saved tree: what it is and where its bytes live."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ._box import Box, Grid, Shape
from ._dtype import dtype_of, itemsize_of
from ._mesh import Placement
from ._writers import Writers

ARRAY_KINDS = frozenset({"jax", "key", "numpy", "numpy_scalar", "str", "bytes"})
VALUE_KINDS = frozenset({"int", "float", "bool", "complex", "str", "bytes"})


@dataclass(frozen=True, slots=True)
class Packed:
    """Stored as pieces in its writers' packs; without writers process 0 writes all."""

    piece: Shape
    writers: Writers | None = None


@dataclass(frozen=True, slots=True)
class Chunked:
    """Stored as a Zarr array: a grid of objects, each a grid of chunks.

    Without writers process 0 writes all objects.
    """

    name: str
    object: Shape
    chunk: Shape
    writers: Writers | None = None


@dataclass(frozen=True, slots=True)
class Loose:
    """Kept by a checkpoint of another library, whose manifest is in memory alone.

    `blocks` are boxes whose items lie in C order, each a run; of those any box can be
    read, where `gap` bytes between two runs are read too. Without blocks whole chunks
    are read. `chunk` is also where the leaf is cut for several readers.
    """

    chunk: Shape
    blocks: tuple[Box, ...] = ()
    gap: int = 0

    @property
    def writers(self) -> Writers | None:
        """No process of ours wrote it."""
        return None


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
    store: Packed | Chunked | Loose | None = None
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
        match self.store:
            case Chunked():
                return Grid(self.shape, self.store.object)
            case Loose():
                return Grid(self.shape, self.store.chunk)
            case _:
                return Grid(self.shape, cast(Packed, self.store).piece)

    @property
    def chunks(self) -> Grid:
        """The grid of what is read and checked at once."""
        if isinstance(self.store, Chunked):
            return Grid(self.shape, self.store.chunk)
        return self.cells

    def writer(self, cell: int) -> int:
        """Return the process that wrote the cell with this number."""
        writers = self.store.writers if self.store else None
        return writers.process(cell) if writers else 0

    def writers(self, cells: Iterable[int]) -> Iterator[int]:
        """Return the process that wrote each cell."""
        writers = self.store.writers if self.store else None
        return map(writers.process, cells) if writers else (0 for _ in cells)

    def to_json(
        self, placements: dict[Placement, int], writers: dict[Writers, int]
    ) -> dict[str, Any]:
        """Return the leaf as JSON, placement and writers as numbers in these tables."""
        found: dict[str, Any] = {"path": self.path, "kind": self.kind}
        if self.store is None:
            return found | {"value": self.value}
        if isinstance(self.store, Loose):
            raise TypeError(
                "expected a leaf of a checkpoint of ours, found a loose one"
            )
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
            found["writers"] = writers.setdefault(self.store.writers, len(writers))
        return found
