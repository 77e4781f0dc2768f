"""Carries out a write plan: objects, packs and metadata, each a file of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import numpy as np

import layouts
from layouts import (
    Box,
    Chunked,
    FileEntry,
    Grid,
    ObjectPart,
    ObjectWrite,
    PackRow,
    WritePlan,
)

from ._codec import encode_chunk
from ._crc import checksum
from ._source import Source
from ._store import Store, Writer

Array = np.ndarray[Any, Any]
_BATCH_BYTES = 1 << 20

T = TypeVar("T")
R = TypeVar("R")


def run_all(work: Callable[[T], R], items: Sequence[T], *, parallel: int) -> list[R]:
    """Return the results of `work` in the order of `items`; the first error wins.

    After an error, what has not begun is given up.
    """
    if len(items) <= 1 or parallel == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(parallel, len(items))) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def write_objects(
    store: Store, plan: WritePlan, sources: Sequence[Source], *, codec: str | None
) -> list[ObjectPart]:
    """Write the objects of the Zarr arrays and return what the part says of them."""

    def work(write: ObjectWrite) -> ObjectPart:
        return _write_object(store, plan, write, sources[write.leaf], codec)

    return run_all(work, plan.objects, parallel=store.parallel)


def _write_object(
    store: Store, plan: WritePlan, write: ObjectWrite, source: Source, codec: str | None
) -> ObjectPart:
    leaf = plan.leaves[write.leaf]
    kept = cast(Chunked, leaf.store)
    at = leaf.cells.coordinates(write.object)
    box = leaf.cells.box(at)
    name = f"{kept.name}/c/" + "/".join(map(str, at))
    values = source.fetch(box).view(layouts.stored_dtype(leaf.dtype))
    grid = Grid(box.shape, kept.chunk)
    crcs = np.empty(grid.length, np.uint32)
    lengths = np.empty(grid.length, np.int64)
    cells = tuple(o // c for o, c in zip(kept.object, kept.chunk, strict=True))
    size = None
    if codec is None:
        chunk_bytes = math.prod(kept.chunk) * leaf.itemsize + layouts.CHECKSUM_BYTES
        size = grid.length * chunk_bytes + 16 * math.prod(cells) + 4
    with store.write(name, size=size) as out:
        chunks = _chunks(values, grid, box)
        if codec is None:
            _write_plain(out, chunks, crcs, lengths)
        else:
            _write_coded(out, chunks, crcs, lengths, codec)
        stored = lengths + layouts.CHECKSUM_BYTES
        index = layouts.shard_index(cells, grid.counts, stored)
        out.write([index, checksum(index).to_bytes(4, "little")])
        out.close()
    return ObjectPart(write.leaf, write.object, crcs, lengths if codec else None)


def _chunks(values: Array, grid: Grid, box: Box) -> Iterator[Array]:
    """Yield an object's chunks in C order, contiguous and of full shape."""
    for number in range(grid.length):
        part = values[grid.box(grid.coordinates(number)).slices]
        if part.shape != grid.cell:
            whole = np.zeros(grid.cell, part.dtype)
            whole[tuple(slice(0, n) for n in part.shape)] = part
            part = whole
        yield part


def _write_plain(
    out: Writer, chunks: Iterator[Array], crcs: Array, lengths: Array
) -> None:
    """Write chunks a batch at a time, gathered where they do not lie in one run."""
    scratch: list[Array] = []
    buffers: list[Any] = []
    held = 0
    for number, chunk in enumerate(chunks):
        if chunk.flags.c_contiguous:
            data = chunk
        else:
            if len(scratch) <= len(buffers) // 2:
                scratch.append(np.empty(chunk.shape, chunk.dtype))
            data = scratch[len(buffers) // 2]
            data[...] = chunk
        raw = data.reshape(-1).view(np.uint8)
        crcs[number] = crc = checksum(raw)
        lengths[number] = raw.nbytes
        buffers += [raw, crc.to_bytes(4, "little")]
        held += raw.nbytes
        if held >= _BATCH_BYTES:
            out.write(buffers)
            buffers, held = [], 0
    if buffers:
        out.write(buffers)


def _write_coded(
    out: Writer, chunks: Iterator[Array], crcs: Array, lengths: Array, codec: str
) -> None:
    for number, chunk in enumerate(chunks):
        data = encode_chunk(codec, chunk)
        crcs[number] = crc = checksum(data)
        lengths[number] = len(data)
        out.write([data, crc.to_bytes(4, "little")])


def write_packs(
    store: Store, plan: WritePlan, sources: Sequence[Source]
) -> tuple[Array, dict[str, int]]:
    """Write this process's packs; return each row's CRC-32C and the packs' sizes."""
    crcs = np.empty(len(plan.rows), np.uint32)
    sizes: dict[str, int] = {}
    first = 0
    while first < len(plan.rows):
        pack = plan.rows[first].pack
        last = first
        while last < len(plan.rows) and plan.rows[last].pack == pack:
            last += 1
        rows = plan.rows[first:last]
        name = layouts.pack_name(plan.process, pack)
        sizes[name] = rows[-1].offset + rows[-1].length
        with store.write(f"{name}/c/0", size=sizes[name]) as out:
            _write_rows(out, plan, rows, sources, crcs[first:last])
            out.close()
        first = last
    return crcs, sizes


def _write_rows(
    out: Writer,
    plan: WritePlan,
    rows: Sequence[PackRow],
    sources: Sequence[Source],
    crcs: Array,
) -> None:
    buffers: list[bytes] = []
    held = 0
    for number, row in enumerate(rows):
        leaf = plan.leaves[row.leaf]
        cells = leaf.cells
        data = (
            sources[row.leaf].fetch(cells.box(cells.coordinates(row.piece))).tobytes()
        )
        crcs[number] = checksum(data)
        buffers.append(data)
        held += len(data)
        if held >= _BATCH_BYTES:
            out.write([b"".join(buffers)])
            buffers, held = [], 0
    out.write([b"".join(buffers)])


def write_files(store: Store, documents: dict[str, Any]) -> list[FileEntry]:
    """Write small JSON files beside the data and return their sizes and checksums."""

    def work(item: tuple[str, Any]) -> FileEntry:
        name, document = item
        data = layouts.dump_json(document)
        with store.write(name, size=len(data)) as out:
            out.write([data])
            out.close()
        return FileEntry(name, len(data), checksum(data))

    return run_all(work, sorted(documents.items()), parallel=max(store.parallel, 8))
