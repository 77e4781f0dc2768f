"""Carries out a write plan: objects, packs and metadata, each a file of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

import layouts
from layouts import (
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
from ._errors import Unsupported
from ._hash import ValueHash, hash_if_like, lay_flat
from ._source import Source
from ._store import Store, Writer

Array = np.ndarray[Any, Any]
_BATCH_CHUNKS = 256
_SENT_AT_ONCE = 16
_PUT_BYTES = 1 << 30
_PACK_BATCH_BYTES = 1 << 20

Candidates = dict[tuple[int, int], ObjectPart]
"""What is said of an object if its values are equal: by leaf and object."""

T = TypeVar("T")
R = TypeVar("R")


def run_all(work: Callable[[T], R], items: Sequence[T], *, parallel: int) -> list[R]:
    """Return the results of `work` in the order of `items`; the first error wins.

    After an error, what has not begun is given up.
    """
    if len(items) <= 1 or parallel == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(parallel, len(items))) as pool:
        futures: list[Future[R]] = []
        rest: list[R] = []
        try:
            try:
                for item in items:
                    futures.append(pool.submit(work, item))
            except RuntimeError:
                # The interpreter is exiting and takes no more work: this thread, which
                # it waits for, does the rest.
                rest = [work(item) for item in items[len(futures) :]]
            # One wait for all: waking up for each result would take a core from them.
            wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                future.cancel()  # none is left but after an error
            # What began before the one that failed may have failed as well.
            for future in futures:
                if not future.cancelled():
                    future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    return [future.result() for future in futures] + rest


class _Scratch(NamedTuple):
    """Buffers to gather a batch in, those that none uses now: warm pages are fast."""

    batch_bytes: int
    free: list[Array]

    def take(self, size: int) -> Array:
        """Return a buffer of `size` bytes or more, for the caller to give back."""
        try:
            room = self.free.pop()
        except IndexError:
            room = np.empty(self.batch_bytes, np.uint8)
        return room if len(room) >= size else np.empty(size, np.uint8)


def write_objects(
    store: Store,
    plan: WritePlan,
    sources: Sequence[Source],
    *,
    codec: str | None,
    max_host_bytes: int | None,
    in_background: bool = False,
    candidates: Candidates | None = None,
) -> list[ObjectPart]:
    """Write the objects of the Zarr arrays and return what the part says of them.

    `in_background` leaves processors to the training that goes on beside. Those whose
    values are a candidate's are not written; without candidates (None) none is hashed.
    """
    batch_bytes, parallel = store.batch_bytes, store.parallel
    if store.is_remote:
        _refuse_large(plan)
        # Each object is held whole, and once more while it is sent.
        parallel = min(parallel, _SENT_AT_ONCE)
    if in_background:
        parallel = max(1, parallel // 2)
    if max_host_bytes is not None:
        # An object, at most a quarter of the budget, may be held whole and sent.
        parallel = min(parallel, 2)
        batch_bytes = min(batch_bytes, max_host_bytes // 4)
    scratch = _Scratch(batch_bytes, [])

    def work(write: ObjectWrite) -> ObjectPart:
        source = sources[write.leaf]
        return _write_object(store, plan, write, source, codec, scratch, candidates)

    return run_all(work, plan.objects, parallel=parallel)


def _refuse_large(plan: WritePlan) -> None:
    """Refuse an object that is too much for one request to a store."""
    for write in plan.objects:
        if write.nbytes > _PUT_BYTES:
            leaf = plan.leaves[write.leaf]
            raise Unsupported(
                f"expected parts of at most {_PUT_BYTES:,} bytes that divide, found "
                f"one of {write.nbytes:,} - at `{leaf.path}`: pad the dimension that "
                "is partitioned, so that each part of it has divisors"
            )


def _write_object(
    store: Store,
    plan: WritePlan,
    write: ObjectWrite,
    source: Source,
    codec: str | None,
    scratch: _Scratch,
    candidates: Candidates | None,
) -> ObjectPart:
    leaf = plan.leaves[write.leaf]
    kept = cast(Chunked, leaf.store)
    at = leaf.cells.coordinates(write.object)
    box = leaf.cells.box(at)
    name = f"{kept.name}/c/" + "/".join(map(str, at))
    values = source.fetch(box).view(layouts.stored_dtype(leaf.dtype))
    if codec and leaf.dtype == "bool" and values.view(np.uint8).max(initial=0) > 1:
        raise Unsupported(
            "expected booleans of 0 and 1 with codec=, found other bytes - at "
            f"`{leaf.path}`: save it as `array.view('uint8')` or without codec="
        )
    grid = Grid(box.shape, kept.chunk)
    chunk_bytes = math.prod(kept.chunk) * leaf.itemsize
    hasher, found = None, b""
    if candidates is not None:
        known = candidates.get((write.leaf, write.object))
        if known is not None:
            room = scratch.take(chunk_bytes)
            form = ValueHash(leaf, box.shape, kept)
            found = hash_if_like(_chunks(values, grid), known, form, room)
            scratch.free.append(room)
            if found == known.hash:
                return known
        if not found:
            hasher = ValueHash(leaf, box.shape, kept)
    cells = tuple(o // c for o, c in zip(kept.object, kept.chunk, strict=True))
    size = None
    if codec is None:
        stored = grid.length * (chunk_bytes + layouts.CHECKSUM_BYTES)
        size = stored + 16 * math.prod(cells) + layouts.CHECKSUM_BYTES
    with store.write(name, size=size) as out:
        if codec is None:
            crcs = _write_plain(out, values, grid, chunk_bytes, scratch, hasher)
            lengths = [chunk_bytes] * grid.length
        else:
            crcs, lengths = _write_coded(out, _chunks(values, grid), codec, hasher)
        out.write(_index(cells, grid.counts, tuple(lengths)))
        out.close()
    return ObjectPart(
        write.leaf,
        write.object,
        np.array(crcs, np.uint32),
        np.array(lengths, np.int64) if codec else None,
        hasher.digest() if hasher else found,
    )


@lru_cache(maxsize=64)
def _index(
    cells: tuple[int, ...], present: tuple[int, ...], lengths: tuple[int, ...]
) -> tuple[bytes, bytes]:
    """Return the index at an object's end, and its checksum."""
    stored = [n + layouts.CHECKSUM_BYTES for n in lengths]
    index = layouts.shard_index(cells, present, stored)
    return index, checksum(index).to_bytes(4, "little")


def _chunks(values: Array, grid: Grid) -> Iterator[Array]:
    """Yield an object's chunks in C order, of full shape."""
    for part in map(values.__getitem__, grid.slices()):
        if part.shape != grid.cell:
            whole = np.zeros(grid.cell, part.dtype)
            whole[tuple([slice(0, n) for n in part.shape])] = part
            part = whole
        yield part


def _write_plain(
    out: Writer,
    values: Array,
    grid: Grid,
    chunk_bytes: int,
    scratch: _Scratch,
    hasher: ValueHash | None,
) -> list[int]:
    """Write chunks as they are, a batch at a time, and return their checksums.

    Those that do not lie in one run of memory are gathered first.
    """
    batch = min(max(1, scratch.batch_bytes // chunk_bytes), _BATCH_CHUNKS)
    room = scratch.take(batch * chunk_bytes)
    slots = [room[n * chunk_bytes : (n + 1) * chunk_bytes] for n in range(batch)]
    crcs: list[int] = []
    buffers: list[Any] = []
    for number, chunk in enumerate(_chunks(values, grid)):
        raw = lay_flat(chunk, slots[number % batch])
        crc = checksum(raw)
        crcs.append(crc)
        if hasher:
            hasher.add(raw)
        buffers += (raw, crc.to_bytes(4, "little"))
        if len(buffers) == 2 * batch:
            out.write(buffers)
            buffers = []
    if buffers:
        out.write(buffers)
    scratch.free.append(room)
    return crcs


def _write_coded(
    out: Writer, chunks: Iterator[Array], codec: str, hasher: ValueHash | None
) -> tuple[list[int], list[int]]:
    """Write compressed chunks; return their checksums and lengths."""
    crcs: list[int] = []
    lengths: list[int] = []
    for chunk in chunks:
        data = encode_chunk(codec, chunk)
        if hasher:
            hasher.add(np.ascontiguousarray(chunk).reshape(-1).view(np.uint8))
        crc = checksum(data)
        crcs.append(crc)
        lengths.append(len(data))
        out.write([data, crc.to_bytes(4, "little")])
    return crcs, lengths


def write_packs(store: Store, plan: WritePlan, sources: Sequence[Source]) -> Array:
    """Write this process's packs and return each row's CRC-32C."""
    crcs = np.empty(len(plan.rows), np.uint32)
    first = 0
    while first < len(plan.rows):
        pack = plan.rows[first].pack
        last = first
        while last < len(plan.rows) and plan.rows[last].pack == pack:
            last += 1
        rows = plan.rows[first:last]
        name = layouts.pack_name(plan.process, pack)
        size = rows[-1].offset + rows[-1].length
        with store.write(f"{name}/c/0", size=size) as out:
            _write_rows(out, plan, rows, sources, crcs[first:last])
            out.close()
        first = last
    return crcs


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
        if held >= _PACK_BATCH_BYTES:
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
