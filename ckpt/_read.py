"""Carries out read plans: each chunk is read once, checked, and laid in its boxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

import layouts
from layouts import (
    Box,
    CellRead,
    Chunked,
    Leaf,
    LeafRead,
    Manifest,
    ObjectPart,
    PackRow,
)

from ._catalog import Opened, raise_if_removed, read_anywhere, read_twice
from ._codec import decode_chunk
from ._crc import checksum
from ._errors import Damaged, LimitExceeded, NotFound
from ._store import CutShort, Reader, Store
from ._write import run_all

Array = np.ndarray[Any, Any]
Lay = Callable[[Box, Array], None]
"""Takes the values of a box of the leaf, valid only during the call."""


@dataclass(frozen=True, slots=True)
class Fill:
    """A leaf's read plan, and a host buffer for each of its target boxes.

    Buffers have the dtype in which the leaf is stored.
    """

    read: LeafRead
    buffers: tuple[Array, ...]


def empty_aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an uninitialised array that devices in host memory can take as it is.

    LimitExceeded when there is no memory for it.
    """
    size = math.prod(shape) * dtype.itemsize
    try:
        raw = np.empty(size + 64, np.uint8)
        offset = -raw.ctypes.data % 64
        # Numpy refuses some shapes that hold nothing: their other sizes overflow.
        return raw[offset : offset + size].view(dtype).reshape(shape)
    except (MemoryError, ValueError):
        raise LimitExceeded(
            f"expected memory for {size:,} bytes, of an array of shape {shape}, found "
            "none: select= less, or restore onto more processes"
        ) from None


def fill_buffers(
    opened: Opened, fills: Sequence[Fill], *, max_host_bytes: int | None = None
) -> None:
    """Read and check every chunk the plans name, into the buffers.

    What is read at once, besides the buffers, stays below half of `max_host_bytes`.
    Raises Damaged, naming leaf and object, before any wrong value is handed out.
    """
    if opened.foreign is not None:
        goals = [(f.read.leaf, f.read.targets, f.buffers) for f in fills]
        parallel = _parallel(opened, max_host_bytes)
        opened.foreign.fill(goals, parallel=parallel, max_host_bytes=max_host_bytes)
        return
    objects: list[tuple[Fill, CellRead]] = []
    packed: dict[int, list[tuple[Fill, CellRead]]] = {}
    for fill in fills:
        chunked = isinstance(opened.manifest.leaves[fill.read.leaf].store, Chunked)
        for cell in fill.read.cells:
            if chunked:
                objects.append((fill, cell))
            else:
                packed.setdefault(cell.writer, []).append((fill, cell))
    tables = {p: object_table(opened, p) for p in {c.writer for _, c in objects}}

    def read_one(item: tuple[Fill, CellRead]) -> None:
        fill, cell = item
        part = tables[cell.writer][cell.leaf, cell.cell]

        def lay(box: Box, values: Array) -> None:
            for target in cell.targets:
                scatter(box, values, fill.read.targets[target], fill.buffers[target])

        read_object(opened, part, cell.chunks, lay)

    run_all(read_one, objects, parallel=_parallel(opened, max_host_bytes))
    for writer, cells in packed.items():
        # Tied paths may want one leaf in several ways.
        wanted: Wanted = {}
        for fill, cell in cells:
            wanted.setdefault((cell.leaf, cell.cell), []).append((fill, cell))
        _read_packed(opened, writer, wanted)


def _parallel(opened: Opened, max_host_bytes: int | None) -> int:
    parallel = opened.store.parallel
    if max_host_bytes is None:
        return parallel
    # A remote store's answer is there twice for a moment.
    held = 4 * opened.store.request_bytes
    return max(1, min(parallel, max_host_bytes // held))


def object_table(opened: Opened, process: int) -> dict[tuple[int, int], ObjectPart]:
    """Return what a process's part says of each Zarr object, by (leaf, object)."""
    return {(o.leaf, o.object): o for o in opened.part(process).objects}


def scatter(box: Box, values: Array, target: Box, buffer: Array) -> None:
    """Copy the values of a box into a buffer that holds `target`."""
    common = layouts.intersect(box, target)
    if common is not None:
        buffer[common.within(target.start)] = values[common.within(box.start)]


def damaged(
    opened: Opened,
    leaf: Leaf,
    name: str,
    found: str,
    box: Box,
    store: Store | None = None,
) -> Damaged:
    """Return the error that names a damaged leaf, box, object, and its directory."""
    where = opened.store.url if store is None else store.url
    spans = ", ".join(f"{a}:{b}" for a, b in zip(box.start, box.stop, strict=True))
    return Damaged(
        f"expected the bytes that were saved, found {found} - at "
        f"`{leaf.path}`[{spans}], object {name}, in {where} "
        f"step {opened.manifest.step}: restore another step, and run ckpt.verify on "
        "this one"
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """An object of a leaf: what is wrong with it is said of the leaf."""

    opened: Opened
    store: Store
    leaf: Leaf
    name: str
    box: Box

    def refuse(self, found: str) -> Damaged:
        return damaged(self.opened, self.leaf, self.name, found, self.box, self.store)

    @contextmanager
    def reading(self, size: int, *, exact: bool) -> Generator[Reader]:
        try:
            with self.store.open(self.name, size=size, trusted=not exact) as reader:
                if reader.size != size:
                    raise self.refuse(f"{reader.size} bytes instead of {size}")
                yield reader
        except NotFound:
            raise_if_removed(self.opened)
            raise self.refuse("no such object") from None
        except CutShort:
            raise self.refuse(f"fewer bytes than {size}") from None


def open_object(
    opened: Opened,
    leaf: Leaf,
    name: str,
    box: Box,
    size: int,
    *,
    exact: bool = False,
    store: Store | None = None,
) -> AbstractContextManager[Reader]:
    """Open an object whose size is known; Damaged if it is missing or of another size.

    From a remote store any is taken that has the bytes which are read, unless its size
    must be `exact`: that costs a request. `store` is the checkpoint's by default.
    """
    known = _Known(opened, store or opened.store, leaf, name, box)
    return known.reading(size, exact=exact)


def object_size(manifest: Manifest, part: ObjectPart) -> int:
    """Return the size an object must have: its chunks, checksums and index."""
    store = cast(Chunked, manifest.leaves[part.leaf].store)
    cells = math.prod(o // c for o, c in zip(store.object, store.chunk, strict=True))
    return _stored_bytes(manifest, part) + 16 * cells + layouts.CHECKSUM_BYTES


def _stored_bytes(manifest: Manifest, part: ObjectPart) -> int:
    count = len(part.crcs)
    if part.lengths is None:
        data = count * layouts.chunk_bytes(manifest, part.leaf)
    else:
        data = int(part.lengths.sum())
    return data + count * layouts.CHECKSUM_BYTES


def read_object(
    opened: Opened,
    part: ObjectPart,
    chunks: Sequence[int],
    lay: Lay,
    *,
    exact: bool = False,
) -> None:
    """Read chunks of an object in merged requests, check each, and lay it.

    What a remote store brings damaged is read once more.
    """

    def read(store: Store) -> None:
        read_object_in(opened, store, part, chunks, lay, exact=exact)

    read_anywhere(opened, part.source, read)


def read_object_in(
    opened: Opened,
    store: Store,
    part: ObjectPart,
    chunks: Sequence[int],
    lay: Lay,
    *,
    exact: bool,
) -> None:
    """Read chunks of an object that lies in a directory, once."""
    manifest = opened.manifest
    leaf = manifest.leaves[part.leaf]
    box = leaf.cells.box(leaf.cells.coordinates(part.object))
    name = layouts.object_name(manifest, part.leaf, part.object)
    size = object_size(manifest, part)
    with open_object(opened, leaf, name, box, size, exact=exact, store=store) as reader:
        if part.lengths is None:
            source = _read_plain(opened, part, leaf, reader, chunks)
        else:
            source = _read_coded(opened, part, leaf, reader, chunks)
        grid = layouts.Grid(box.shape, cast(Chunked, leaf.store).chunk)
        for number, data, stored, values in source:
            inner = grid.box(grid.coordinates(number))
            start = tuple(a + b for a, b in zip(box.start, inner.start, strict=True))
            at = Box(start, inner.shape)
            crc = checksum(data)
            if crc != part.crcs[number] or stored != crc:
                found = f"chunk {number} changed"
                raise damaged(opened, leaf, name, found, at, store)
            try:
                whole = values()
            except ValueError as error:
                found = f"chunk {number} undecodable ({error})"
                raise damaged(opened, leaf, name, found, at, store) from None
            if whole.shape != inner.shape:
                whole = whole[tuple(slice(0, n) for n in inner.shape)]
            lay(at, whole)


Chunk = tuple[int, Any, int, Callable[[], Array]]
"""A chunk's number, its stored bytes, the checksum behind them, and its values."""


def _read_plain(
    opened: Opened, part: ObjectPart, leaf: Leaf, reader: Reader, chunks: Sequence[int]
) -> Iterator[Chunk]:
    """Yield chunks that no codec changed, several adjacent ones a request."""
    shape = cast(Chunked, leaf.store).chunk
    size = layouts.chunk_bytes(opened.manifest, part.leaf)
    stride = size + layouts.CHECKSUM_BYTES
    most = layouts.chunks_a_request(
        opened.manifest, part.leaf, opened.store.request_bytes
    )
    scratch = np.empty(min(most, len(chunks)) * stride, np.uint8)
    dtype = layouts.stored_dtype(leaf.dtype)
    for run in layouts.merge_runs(chunks, most=most):
        reader.read_into(run.start * stride, scratch[: len(run) * stride])
        for at, number in enumerate(run):
            data = scratch[at * stride : at * stride + size]
            tail = scratch[at * stride + size : (at + 1) * stride]
            stored = int.from_bytes(tail.tobytes(), "little")
            yield number, data, stored, lambda d=data: d.view(dtype).reshape(shape)


def _read_coded(
    opened: Opened, part: ObjectPart, leaf: Leaf, reader: Reader, chunks: Sequence[int]
) -> Iterator[Chunk]:
    """Yield chunks that a codec compressed; they are decoded only once checked.

    As many adjacent ones a request as if they were not compressed.
    """
    lengths = cast(Any, part.lengths)
    ends = np.cumsum(lengths + layouts.CHECKSUM_BYTES)
    shape = cast(Chunked, leaf.store).chunk
    dtype = layouts.stored_dtype(leaf.dtype)
    codec = cast(str, opened.manifest.codec)
    most = layouts.chunks_a_request(
        opened.manifest, part.leaf, opened.store.request_bytes
    )
    for run in layouts.merge_runs(chunks, most=most):
        begin = int(ends[run.start - 1]) if run.start else 0
        raw = np.empty(int(ends[run.stop - 1]) - begin, np.uint8)
        reader.read_into(begin, raw)
        for number in run:
            stop = int(ends[number]) - begin
            tail = stop - layouts.CHECKSUM_BYTES
            data = raw[tail - int(lengths[number]) : tail]
            stored = int.from_bytes(raw[tail:stop].tobytes(), "little")

            def decode(data: Array = data) -> Array:
                return decode_chunk(codec, data.tobytes(), dtype, shape)

            yield number, data, stored, decode


Wanted = dict[tuple[int, int], list[tuple[Fill, CellRead]]]
"""The fills that want a piece, by (leaf, piece)."""


def _read_packed(opened: Opened, writer: int, wanted: Wanted) -> None:
    """Read the wanted rows of a writer's packs, adjacent ones in one request."""
    part = opened.part(writer)
    sizes: dict[int, int] = {}
    chosen: dict[int, list[tuple[PackRow, int]]] = {}
    for row, crc in zip(part.rows, part.row_crcs.tolist(), strict=True):
        sizes[row.pack] = row.offset + row.length
        if (row.leaf, row.piece) in wanted:
            chosen.setdefault(row.pack, []).append((row, crc))

    def read_pack(pack: int) -> None:
        name = f"{layouts.pack_name(writer, pack)}/c/0"
        rows = chosen[pack]
        first = opened.manifest.leaves[rows[0][0].leaf]
        box = first.cells.box(first.cells.coordinates(rows[0][0].piece))
        with open_object(opened, first, name, box, sizes[pack]) as reader:
            for run in adjacent_rows(rows, opened.store.request_bytes):
                _read_rows(opened, name, reader, run, wanted)

    def work(pack: int) -> None:
        read_twice(opened.store, lambda: read_pack(pack))

    run_all(work, list(chosen), parallel=opened.store.parallel)


def adjacent_rows(
    rows: Sequence[tuple[PackRow, int]], request_bytes: int
) -> Iterator[list[tuple[PackRow, int]]]:
    """Yield a pack's rows in runs that lie side by side, each within a request."""
    run: list[tuple[PackRow, int]] = []
    end = begin = 0
    for row, crc in rows:
        stop = row.offset + row.length
        if run and (row.offset != end or stop - begin > request_bytes):
            yield run
            run = []
        if not run:
            begin = row.offset
        run.append((row, crc))
        end = stop
    if run:
        yield run


def _read_rows(
    opened: Opened,
    name: str,
    reader: Reader,
    run: list[tuple[PackRow, int]],
    wanted: Wanted,
) -> None:
    begin = run[0][0].offset
    data = np.empty(run[-1][0].offset + run[-1][0].length - begin, np.uint8)
    reader.read_into(begin, data)
    leaves = opened.manifest.leaves
    for row, crc in run:
        raw = data[row.offset - begin : row.offset - begin + row.length]
        leaf = leaves[row.leaf]
        if checksum(raw) != crc:
            box = leaf.cells.box(leaf.cells.coordinates(row.piece))
            raise damaged(opened, leaf, name, "its piece changed", box)
        stored = raw.view(layouts.stored_dtype(leaf.dtype)) if row.length else raw
        box = leaf.cells.box(leaf.cells.coordinates(row.piece))
        values = stored.reshape(box.shape)
        for fill, cell in wanted[row.leaf, row.piece]:
            for target in cell.targets:
                goal, buffer = fill.read.targets[target], fill.buffers[target]
                if goal == box:
                    buffer[...] = values
                else:
                    scatter(box, values, goal, buffer)
