"""From what a format found to what the rest of the package reads: a manifest."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

import layouts
import pytree
from layouts import Box, Leaf, Loose, Manifest

from .._catalog import Opened
from .._errors import Unsupported
from .._foreign import Goals
from .._read import empty_aligned
from .._source import describe_leaf
from .._store import Store
from .._store_options import GivenOptions
from .._warn import warn_caller
from ._collector import hold_collector
from ._detect import find_catalogue
from ._entry import Array, Catalogue, Tensor
from ._fill import SPAN_BYTES, Want, fill_wants
from ._marks import Marks, mark_files
from ._strides import choose_chunk, held_bytes, is_in_c_order, item_bytes

_REMOTE_GAP = 64 << 10
"""What costs less to read, of an object far away, than one more request."""

_SHOWN = 20

_DEPTH = 100


@dataclass(frozen=True, slots=True)
class ForeignValues:
    """The tensors of a foreign checkpoint, by the number of their leaf."""

    store: Store
    catalogue: Catalogue
    paths: tuple[str, ...]
    tensors: tuple[Tensor | None, ...]
    marks: Marks

    @property
    def format(self) -> str:
        """What the checkpoint is."""
        return self.catalogue.format

    def fill(
        self, goals: Sequence[Goals], *, parallel: int, max_host_bytes: int | None
    ) -> None:
        """Fill the buffers, which have the dtype that a leaf is stored in."""
        most = SPAN_BYTES
        if max_host_bytes is not None:
            tensors = [cast(Tensor, self.tensors[number]) for number, _, _ in goals]
            held = max(map(held_bytes, tensors), default=0)
            parallel = max(1, min(parallel, max_host_bytes // 2 // max(held, 1)))
            most = min(most, max_host_bytes // 2 // parallel)
        wants = [
            Want(
                self.paths[number],
                cast(Tensor, self.tensors[number]),
                tuple(zip(boxes, buffers, strict=True)),
                most,
            )
            for number, boxes, buffers in goals
        ]
        fill_wants(
            self.store,
            wants,
            gap=_gap(self.store),
            parallel=parallel,
            marks=self.marks,
        )

    def checks(self) -> Iterator[tuple[str, int, Callable[[], None]]]:
        """Yield name, bytes and check of each tensor, and what the format adds."""
        for path, tensor in zip(self.paths, self.tensors, strict=True):
            if tensor is not None:
                size = math.prod(tensor.shape) * item_bytes(tensor)

                def work(path: str = path, tensor: Tensor = tensor) -> None:
                    self._read_through(path, tensor)

                yield path, size, work
        for check in self.catalogue.checks:
            yield check.name, check.size, check.work

    def _read_through(self, path: str, tensor: Tensor) -> None:
        dtype = layouts.stored_dtype(tensor.dtype)
        grid = layouts.Grid(tensor.shape, choose_chunk(tensor))
        for number in range(grid.length):
            box = grid.box(grid.coordinates(number))
            want = Want(path, tensor, ((box, empty_aligned(box.shape, dtype)),))
            fill_wants(self.store, [want], gap=_gap(self.store), marks=self.marks)


def _gap(store: Store) -> int:
    return _REMOTE_GAP if store.is_remote else 0


def open_foreign(
    path: str | os.PathLike[str], step: int | None, options: GivenOptions | None
) -> Opened | None:
    """Open the checkpoint of another library, or return None where none is there.

    Raises Damaged, Untrusted, Unsupported or LimitExceeded for one that is there and
    cannot be read.
    """
    with hold_collector():
        found = find_catalogue(path, step, options)
        if found is None:
            return None
        store, catalogue = found
        opened = describe_catalogue(store, catalogue)
    if catalogue.notes:
        more = len(catalogue.notes) - _SHOWN
        shown = "\n  ".join(catalogue.notes[:_SHOWN])
        more_text = f"\n  (+{more} more)" if more > 0 else ""
        warn_caller(
            f"not all in {store.url} was read as {catalogue.format}:\n  {shown}"
            f"{more_text}"
        )
    return opened


def describe_catalogue(store: Store, catalogue: Catalogue) -> Opened:
    """Return a catalogue as what the rest of the package reads."""
    tensors: dict[int, Tensor] = {}
    try:
        tree = _with_marks(catalogue.tree, tensors, {}, 0)
        found, structure = pytree.flatten(tree)
    except pytree.UnsupportedTree as error:
        raise Unsupported(f"{error} - in {store.url}") from error
    leaves: list[Leaf] = []
    kept: list[Tensor | None] = []
    gap = _gap(store)
    for path, value in found.items():
        leaf, tensor = _describe(path, value, tensors.get(id(value)), gap)
        leaves.append(leaf)
        kept.append(tensor)
    manifest = Manifest(catalogue.step, "", structure, tuple(leaves), ())
    marks = mark_files(store, kept)
    values = ForeignValues(store, catalogue, structure.paths, tuple(kept), marks)
    digest = _digest(catalogue, manifest)
    return Opened(store, manifest, 0, digest, None, None, foreign=values)


def _with_marks(
    value: Any, tensors: dict[int, Tensor], marks: dict[int, Any], depth: int
) -> Any:
    """Return a tree with an empty array for each Tensor: pytree knows what is tied."""
    if depth > _DEPTH:
        raise pytree.UnsupportedTree(
            f"expected at most {_DEPTH} nested containers, found more"
        )
    if isinstance(value, Tensor):
        mark = marks.get(id(value))
        if mark is None:
            mark = marks[id(value)] = np.empty(0, np.uint8)
            tensors[id(mark)] = value
        return mark
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {_key(k): _with_marks(v, tensors, marks, depth + 1) for k, v in items}
    if isinstance(value, (list, tuple)):
        children = [
            _with_marks(v, tensors, marks, depth + 1) for v in cast("list[Any]", value)
        ]
        return children if isinstance(value, list) else tuple(children)
    if isinstance(value, np.ndarray):
        array = cast(Array, value)
        name = layouts.name_of(array.dtype)
        if name is not None:
            native = np.ascontiguousarray(array, layouts.dtype_of(name))
            tensor = Tensor(name, array.shape, native.reshape(array.shape))
            return _with_marks(tensor, tensors, {}, depth)
    return cast(Any, value)


def _key(key: Any) -> Any:
    if type(key) in (str, int, float, bool, type(None)):
        return key
    raise pytree.UnsupportedTree(
        f"expected keys that are text, numbers or None, found {key!r:.80}"
    )


def _describe(
    path: str, value: Any, tensor: Tensor | None, gap: int
) -> tuple[Leaf, Tensor | None]:
    if tensor is None:
        # A Python value, by the rules of our own saves.
        source = describe_leaf(path, value, None)
        if source.pieces is None:
            return source.leaf, None
        data = cast(Array, source.array)
        tensor = Tensor(source.leaf.dtype, source.leaf.shape, data)
        kept = Loose(choose_chunk(tensor))
        return replace(source.leaf, store=kept), tensor
    blocks: tuple[Box, ...] = ()
    if isinstance(tensor.data, tuple):
        itemsize, boxes = item_bytes(tensor), list[Box]()
        for block in tensor.data:
            if block.blob.codec is not None or not is_in_c_order(block, itemsize):
                break
            boxes.append(block.box)
        else:
            blocks = tuple(boxes)
    leaf = Leaf(
        path,
        tensor.kind,
        tensor.dtype,
        tensor.shape,
        tensor.placement,
        Loose(choose_chunk(tensor), blocks, gap),
        impl=tensor.impl,
    )
    return leaf, tensor


def _digest(catalogue: Catalogue, manifest: Manifest) -> str:
    """Return what stands for the catalogue: names, types and shapes, not the values."""
    said = [
        (x.path, x.kind, x.dtype, x.shape, x.impl, repr(x.value))
        for x in manifest.leaves
    ]
    text = repr((catalogue.format, catalogue.step, catalogue.objects, said))
    return layouts.digest(text.encode(errors="backslashreplace"))
