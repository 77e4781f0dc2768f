"""The objects of a checkpoint as they are stored, and what their bytes must be."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

import layouts
from layouts import Chunked, ObjectPart, PackRow

from ._catalog import Opened, raise_if_removed
from ._crc import checksum
from ._errors import Damaged, NotFound
from ._read import empty_aligned, object_size
from ._store import CutShort, Reader, Store

Bytes = np.ndarray[Any, Any]

Segment = tuple[int, int | str]
"""How many bytes come next in an object, and their CRC-32C, or SHA-256 as text."""

BATCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object: its name, its size, the leaf it holds, and its bytes in segments.

    `source` is the directory of the run that it lies in, "" for the checkpoint's own.
    """

    name: str
    size: int
    segments: Callable[[], Iterable[Segment]]
    leaf: int | None = None
    source: str = ""


def list_objects(opened: Opened) -> Iterator[StoredObject]:
    """Yield all objects that a checkpoint names: data, then parts, then its manifest.

    Each is listed after those that it describes.
    """
    manifest = opened.manifest
    for process in range(manifest.processes):
        part = opened.part(process)
        for item in part.objects:
            yield _list_object(opened, item)
        packs: dict[int, list[tuple[PackRow, int]]] = {}
        for row, crc in zip(part.rows, part.row_crcs.tolist(), strict=True):
            packs.setdefault(row.pack, []).append((row, crc))
        for pack, rows in packs.items():
            yield _list_pack(process, pack, rows)
        for entry in part.files:
            yield _list_whole(entry.name, entry.bytes, entry.crc)
    for process, ref in enumerate(manifest.parts):
        yield _list_whole(layouts.part_name(process), ref.bytes, ref.sha256)
    yield _list_whole("manifest.json", opened.manifest_bytes, opened.digest)


def _list_whole(name: str, size: int, check: int | str) -> StoredObject:
    return StoredObject(name, size, lambda: [(size, check)])


def read_batches(
    opened: Opened,
    store: Store,
    stored: StoredObject,
    batch_bytes: int = BATCH_BYTES,
) -> Generator[Bytes]:
    """Yield an object's bytes from front to back, each batch checked before.

    `store` is where it is read: a directory of the run, or a copy's. Damaged when it is
    missing, shorter, or another (longer, too, where to see that costs no request). A
    batch, of about `batch_bytes`, is valid until the next.
    """
    with _reading(opened, store, stored) as reader:
        room = np.empty(0, np.uint8)
        at = 0
        for batch in _batches(stored.segments(), batch_bytes):
            size = sum(length for length, _ in batch)
            if size > len(room):
                room = empty_aligned((size,), np.dtype(np.uint8))
            data = room[:size]
            reader.read_into(at, data)
            first = 0
            for length, crc in batch:
                if not _is_right(data[first : first + length], crc):
                    raise _other(opened, store, stored, f"others at {at + first:,}")
                first += length
            at += size
            yield data


def _is_right(data: Bytes, check: int | str) -> bool:
    if isinstance(check, str):
        return layouts.digest(data.tobytes()) == check
    return checksum(data) == check


@contextmanager
def _reading(opened: Opened, store: Store, stored: StoredObject) -> Generator[Reader]:
    try:
        with store.open(stored.name, size=stored.size, trusted=True) as reader:
            if reader.size != stored.size:
                raise _other(opened, store, stored, f"{reader.size:,} bytes")
            yield reader
    except NotFound:
        raise_if_removed(opened)
        raise _other(opened, store, stored, "no such object") from None
    except CutShort:
        raise _other(opened, store, stored, "fewer bytes") from None


def _batches(segments: Iterable[Segment], most: int) -> Iterator[list[Segment]]:
    batch: list[Segment] = []
    held = 0
    for segment in segments:
        if batch and held + segment[0] > most:
            yield batch
            batch, held = [], 0
        batch.append(segment)
        held += segment[0]
    if batch:
        yield batch


def _other(opened: Opened, store: Store, stored: StoredObject, found: str) -> Damaged:
    where = ""
    if stored.leaf is not None:
        where = f"at `{opened.manifest.leaves[stored.leaf].path}`, "
    return Damaged(
        f"expected the bytes that were saved ({stored.size:,}), found {found} - "
        f"{where}object {stored.name}, in {store.url} step {opened.manifest.step}: run "
        "ckpt.verify on it"
    )


def _list_object(opened: Opened, part: ObjectPart) -> StoredObject:
    name = layouts.object_name(opened.manifest, part.leaf, part.object)

    def segments() -> Iterator[Segment]:
        lengths, index = layout_object(opened, part)
        for length, crc in zip(lengths.tolist(), part.crcs.tolist(), strict=True):
            yield length, crc
            yield layouts.CHECKSUM_BYTES, checksum(crc.to_bytes(4, "little"))
        yield len(index), checksum(index)

    size = object_size(opened.manifest, part)
    return StoredObject(name, size, segments, part.leaf, part.source)


def layout_object(opened: Opened, part: ObjectPart) -> tuple[Bytes, bytes]:
    """Return the lengths of an object's chunks, and the index that is its end."""
    leaf = opened.manifest.leaves[part.leaf]
    store = cast(Chunked, leaf.store)
    box = leaf.cells.box(leaf.cells.coordinates(part.object))
    cells = tuple(o // c for o, c in zip(store.object, store.chunk, strict=True))
    lengths = part.lengths
    if lengths is None:
        size = layouts.chunk_bytes(opened.manifest, part.leaf)
        lengths = np.full(len(part.crcs), size, np.int64)
    counts = layouts.Grid(box.shape, store.chunk).counts
    index = layouts.shard_index(cells, counts, lengths + layouts.CHECKSUM_BYTES)
    return lengths, index + checksum(index).to_bytes(4, "little")


def _list_pack(
    process: int, pack: int, rows: list[tuple[PackRow, int]]
) -> StoredObject:
    last, _ = rows[-1]
    return StoredObject(
        f"{layouts.pack_name(process, pack)}/c/0",
        last.offset + last.length,
        lambda: [(row.length, crc) for row, crc in rows],
        rows[0][0].leaf,
    )
