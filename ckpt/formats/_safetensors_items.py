"""What is written to safetensors files: arrays by name, from a tree or a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import jax
import numpy as np

import layouts
import pytree
from layouts import Box, Chunked, Leaf, Loose, Shape

from .._catalog import Openable, Opened, PathLike, is_handle, open_path
from .._checkpoint import decode_leaf_value
from .._copy import Progress
from .._errors import Unsupported
from .._job import ALONE, Job
from .._read import Fill, empty_aligned, fill_buffers
from .._snapshot import describe_equal, flatten_tree, mark_leaves
from .._source import Source, describe_leaf
from .._store_options import GivenOptions
from .._together import is_global
from ._entry import Array
from ._safetensors_header import DTYPES

NAMES = {name: told for told, name in DTYPES.items()}
"""The dtypes that safetensors has, by their JAX names, and how headers name them."""

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Item:
    """An array to write; `rows` says in which steps of each dimension it is stored."""

    name: str
    dtype: str
    shape: Shape
    source: Source | int | Array
    rows: Shape | None = None

    @property
    def bits(self) -> int:
        """Bits of one value in a file."""
        if self.dtype == "float4_e2m1fn":
            return 4
        return 8 * layouts.dtype_of(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of it in a file."""
        return math.prod(self.shape) * self.bits // 8

    @property
    def chunk_bytes(self) -> int:
        """Bytes that are held at least while any of it is read."""
        return math.prod(self.rows or ()) * max(self.bits, 8) // 8


Read = Callable[[Sequence[tuple[Item, Box]]], list[Array]]
"""Returns the values of some boxes, valid until the caller may change the tree."""


@dataclass(frozen=True, slots=True)
class Content:
    """The arrays to write, the names that are tied to one, and how to read boxes.

    `is_at_hand` where reading them costs next to nothing: they are whole on the host.
    `marks` has what must be the same in each process of a job of several.
    """

    items: tuple[Item, ...]
    ties: dict[str, str]
    read: Read
    is_at_hand: bool
    marks: dict[str, str]


@dataclass(frozen=True, slots=True)
class Request:
    """What `ckpt.save_safetensors` was asked for."""

    tree_or_path: Any
    out: PathLike
    step: int | None
    select: str | Iterable[str] | None
    rename: Mapping[str, str] | None
    metadata: Mapping[str, str] | None
    max_shard_bytes: int
    max_host_bytes: int | None
    overwrite: bool
    progress: Progress | None
    options: GivenOptions | None


def take_content(request: Request, job: Job = ALONE) -> Content:
    """Return what is to be written; Unsupported, listing all that cannot be."""
    opened = _open(request.tree_or_path, request.step, request.options)
    sources: dict[str, Source] = {}
    if opened is None:
        leaves, structure = flatten_tree(request.tree_or_path)
        make = partial(_describe, leaves, sources, job.count)
        read, where = _read_tree, "the tree"
    else:
        structure = opened.manifest.structure
        numbers = {leaf.path: n for n, leaf in enumerate(opened.manifest.leaves)}
        make = partial(_describe_stored, opened, numbers)
        read, where = _reader(opened, request.max_host_bytes), opened.store.url
    groups = _choose(structure, request.select)
    names = pytree.rename_paths(
        [p for g in groups.values() for p in g], request.rename or {}
    )
    items: list[Item] = []
    ties: dict[str, str] = {}
    wrong: list[str] = []
    seen: dict[str, str] = {}
    for leaf_path, paths in groups.items():
        for path in paths:
            name = name_of_path(names[path])
            if reason := _refuse_name(name, seen):
                wrong.append(f"`{path}`: {reason}")
            seen.setdefault(name, path)
        try:
            item = make(leaf_path)
        except Unsupported as error:
            wrong.append(str(error))
            continue
        first, *others = [name_of_path(names[path]) for path in paths]
        items.append(replace(item, name=first))
        ties.update(dict.fromkeys(others, first))
    if not groups:
        raise ValueError(f"expected arrays to write, found none - in {where}")
    if wrong:
        more = len(wrong) - _SHOWN
        lines = wrong[:_SHOWN] + ([f"... and {more:,} more"] if more > 0 else [])
        raise Unsupported(
            f"expected what safetensors files can hold, found {len(wrong)} leaves that "
            f"they cannot - in {where}: leave them out (select=) or convert them\n  "
            + "\n  ".join(lines)
        )
    marks: dict[str, str] = {}
    if job.count > 1:
        marks = describe_equal(mark_leaves(structure, sources))
    return Content(tuple(items), ties, read, all(map(_is_at_hand, items)), marks)


def name_of_path(path: str) -> str:
    """Return the name of a leaf: its keys with dots between.

    >>> name_of_path("layers/0/w"), name_of_path("model.layers.0.w")
    ('layers.0.w', 'model.layers.0.w')
    """
    return ".".join(map(str, pytree.parse_path(path)))


def _is_tree(given: Any) -> bool:
    """Tell whether what is to be written is a tree, not a checkpoint or its path."""
    if isinstance(given, str) or hasattr(given, "__fspath__"):
        return False
    return not (is_handle(given) and isinstance(_opened(given), Opened))


def is_shared(given: Any) -> bool:
    """Tell whether it is a tree with arrays on devices of several processes."""
    if jax.process_count() == 1 or not _is_tree(given):
        return False
    leaves = flatten_tree(given)[0].values()
    return any(is_global(getattr(leaf, "sharding", None)) for leaf in leaves)


def _open(given: Any, step: int | None, options: GivenOptions | None) -> Opened | None:
    """Return the checkpoint that is given itself or by its path; None for a tree."""
    if not _is_tree(given):
        return open_path(cast("Openable", given), step, options)
    if step is not None:
        raise ValueError(f"expected step={step} with a path, found a tree")
    return None


def _opened(given: Any) -> Any:
    return getattr(given, "opened", None)


def _choose(
    structure: pytree.Structure, select: str | Iterable[str] | None
) -> dict[str, list[str]]:
    """Return the paths to write, by the path of the leaf that they all are."""
    chosen = pytree.compile_globs("**" if select is None else select)
    groups: dict[str, list[str]] = {}
    for path in structure.positions:
        if chosen(path):
            groups.setdefault(structure.ties.get(path, path), []).append(path)
    return groups


def _refuse_name(name: str, seen: Mapping[str, str]) -> str:
    if not name:
        return "it has no name, put it in a dict"
    if name == "__metadata__":
        return "its name is what headers call their metadata, rename= it"
    if name in seen:
        return f"its name {name!a:.200} is that of `{seen[name]}` too, rename= one"
    return ""


def _describe(
    leaves: Mapping[str, Any], sources: dict[str, Source], processes: int, path: str
) -> Item:
    """Return a leaf of a tree as it is written, and note it in `sources`."""
    value = leaves[path]
    source = describe_leaf(path, value, None, processes=processes)
    sources[path] = source
    if type(value) in (bool, int, float, complex, str, bytes):
        return _number(path, value)
    if processes == 1 and not source.is_on_host:
        raise Unsupported(
            f"`{path}`: expected an array of this process, found one of another: "
            "let that one call save_safetensors"
        )
    return _make_item(source.leaf, source, None)


def _describe_stored(opened: Opened, numbers: Mapping[str, int], path: str) -> Item:
    number = numbers[path]
    leaf = opened.manifest.leaves[number]
    if leaf.store is None:
        return _number(leaf.path, decode_leaf_value(leaf))
    rows = None
    if isinstance(leaf.store, Chunked) or (
        isinstance(leaf.store, Loose) and not leaf.store.blocks
    ):
        rows = leaf.store.chunk
    return _make_item(leaf, number, rows)


def _number(path: str, value: Any) -> Item:
    """Return a Python number as an array without dimensions."""
    found = type(value).__name__
    if isinstance(value, (str, bytes, complex)):
        raise Unsupported(f"`{path}`: expected an array, found a {found}")
    try:
        array = np.asarray(value)
    except OverflowError:
        array = np.asarray(None)
    name = layouts.name_of(array.dtype)
    if name not in NAMES:
        raise Unsupported(f"`{path}`: expected an int of 64 bits, found a longer one")
    return Item(path, name, (), array)


def _make_item(leaf: Leaf, source: Source | int, rows: Shape | None) -> Item:
    if leaf.kind in ("str", "bytes", "key"):
        advice = ": save jax.random.key_data of it" if leaf.kind == "key" else ""
        raise Unsupported(
            f"`{leaf.path}`: expected an array, found a {leaf.kind}{advice}"
        )
    odd = leaf.dtype == "float4_e2m1fn" and math.prod(leaf.shape) % 2
    if leaf.dtype not in NAMES or odd:
        found = "an odd number of float4_e2m1fn" if odd else leaf.dtype
        raise Unsupported(
            f"`{leaf.path}`: expected a dtype that safetensors has, found {found}"
        )
    return Item(leaf.path, leaf.dtype, leaf.shape, source, rows)


def _read_tree(wanted: Sequence[tuple[Item, Box]]) -> list[Array]:
    return [read_source(item.source, box) for item, box in wanted]


def _is_at_hand(item: Item) -> bool:
    source = item.source
    if not isinstance(source, Source):
        return not isinstance(source, int)
    return isinstance(source.array, np.ndarray) and source.array.flags.c_contiguous


def read_source(source: Source | int | Array, box: Box) -> Array:
    """Return a box of a leaf of a tree, gathered from the pieces that it lies in."""
    if not isinstance(source, Source):
        return cast("Array", source)
    pieces = source.pieces
    if pieces is None or pieces.piece == source.leaf.shape:
        return source.fetch(box)
    grid = layouts.Grid(source.leaf.shape, pieces.piece)
    values = np.empty(box.shape, source.leaf.numpy_dtype)
    for number in grid.numbers(box):
        common = layouts.intersect(grid.box(grid.coordinates(number)), box)
        if common is not None:
            values[common.within(box.start)] = source.fetch(common)
    return values


def _reader(opened: Opened, max_host_bytes: int | None) -> Read:
    """Return what reads boxes of a checkpoint, every byte of them checked."""

    def read(wanted: Sequence[tuple[Item, Box]]) -> list[Array]:
        values: list[Array] = []
        fills: list[Fill] = []
        for item, box in wanted:
            if not isinstance(item.source, int):
                values.append(cast("Array", item.source))
                continue
            leaf = opened.manifest.leaves[item.source]
            buffer = empty_aligned(box.shape, layouts.stored_dtype(leaf.dtype))
            values.append(buffer.view(leaf.numpy_dtype))
            if box.size:
                plan = layouts.plan_leaf_read(item.source, leaf, [box])
                fills.append(Fill(plan, (buffer,)))
        fill_buffers(opened, fills, max_host_bytes=max_host_bytes)
        return values

    return read
