"""What a foreign checkpoint holds: its tree, and where the bytes of each tensor lie."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from layouts import Box, Placement

from .._store import Reader, Store
from ._tiles import tiles as tiles

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


class Blob(NamedTuple):
    """Some bytes of an object of the store: `length` of them, at `offset`.

    With a codec they are one stream of it; offsets within a blob count what comes out.
    """

    name: str
    offset: int
    length: int
    codec: Literal["zstd"] | None = None


class Block(NamedTuple):
    """A box of a tensor as plain little-endian items in a blob, the first at `offset`.

    `strides` are in bytes and never negative; without them the items are in C order.
    All items must lie within the blob: whoever makes a Block has checked that.
    Where they lie may be looked for when they are read: `find`, if given, takes the
    object, open, and returns the Block with that or, where it had to read them anyway,
    the values in the tensor's dtype. It is called from any thread, and raises Damaged.
    """

    box: Box
    blob: Blob
    offset: int = 0
    strides: Shape | None = None
    find: Callable[[Reader], Block | Array] | None = None


@dataclass(frozen=True, slots=True)
class Lazy:
    """Another reader of boxes: it reads whole chunks of this shape, from any thread.

    `read` returns the values of a box in the tensor's dtype; it raises Damaged.
    """

    chunk: Shape
    read: Callable[[Box], Array]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """One tensor: dtype by its name in `layouts`, shape, and where its values are.

    Blocks tile the shape exactly: whoever makes a Tensor has proven it (`tiles`). An
    array holds the values themselves. The same Tensor at two places of a tree is tied.
    `kind` is "key" for the key data of a typed PRNG key of `impl`, "numpy" for what
    stays on the host on any mesh.
    """

    dtype: str
    shape: Shape
    data: tuple[Block, ...] | Lazy | Array
    placement: Placement | None = None
    kind: Literal["jax", "key", "numpy"] = "jax"
    impl: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A look at one object that reading the tensors alone does not take.

    `work` raises Damaged (or another CkptError) where something is wrong.
    """

    name: str
    size: int
    work: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Folder:
    """A place to look for a foreign checkpoint in.

    `names` are those of all objects below it, sorted. `file` is the name of the one
    that the caller asked for, "" where that is the folder. `step` is the step that is
    wanted, None for the newest.
    """

    store: Store
    names: tuple[str, ...]
    file: str = ""
    step: int | None = None

    def has(self, name: str) -> bool:
        """Tell whether an object is there."""
        at = bisect_left(self.names, name)
        return self.names[at : at + 1] == (name,)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What was found: the format, and a tree of dicts, lists and tuples.

    Leaves are Tensors, and None, bool, int, float, complex, str and bytes as they are.
    `objects` are the names of the objects it lies in, `notes` what the caller should be
    warned of (files that were passed over), `meta` what the format says beside.
    """

    format: str
    tree: Any
    objects: tuple[str, ...]
    step: int = 0
    notes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict[str, Any])


def cut_run(shape: Shape, start: int, stop: int) -> Iterator[tuple[Box, int]]:
    """Yield boxes that hold items `start` to `stop` of an array in C order.

    Each box is itself one run in C order; with it comes where in the run it begins.

    >>> [(b.start, b.shape, at) for b, at in cut_run((3, 4), 2, 9)]
    [((0, 2), (1, 2), 0), ((1, 0), (1, 4), 2), ((2, 0), (1, 1), 6)]
    """
    inner = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    at = start
    while at < stop:
        if not shape:
            yield Box((), ()), 0
            return
        index = [at // i % n for i, n in zip(inner, shape, strict=True)]
        # The outermost dimension whose whole rows begin here and end in time.
        d = next(
            d for d in range(len(shape)) if at % inner[d] == 0 and at + inner[d] <= stop
        )
        rows = min((stop - at) // inner[d], shape[d] - index[d])
        sizes = (*(1 for _ in range(d)), rows, *shape[d + 1 :])
        yield Box((*index[: d + 1], *(0 for _ in shape[d + 1 :])), sizes), at - start
        at += rows * inner[d]
