"""The objects of a checkpoint as they are stored, each with the check of its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

import layouts
from layouts import Chunked, FileEntry, ObjectPart, PackRow

from ._catalog import Opened, raise_if_removed, read_twice
from ._crc import checksum
from ._errors import Damaged, LimitExceeded, NotFound
from ._read import damaged, empty_aligned, object_size
from ._store import CutShort

Bytes = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object: its name, its size, and what raises Damaged for other bytes."""

    name: str
    size: int
    check: Callable[[Bytes], None]


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
            yield _list_pack(opened, process, pack, rows)
        for entry in part.files:
            yield _list_file(opened, entry)
    for process, ref in enumerate(manifest.parts):
        name = layouts.part_name(process)
        yield _list_document(opened, name, ref.bytes, ref.sha256)
    yield _list_document(
        opened, "manifest.json", _manifest_bytes(opened), opened.digest
    )


def read_whole(opened: Opened, stored: StoredObject) -> Bytes:
    """Read an object and check it; Damaged when it is missing or another.

    LimitExceeded when there is no memory for it.
    """
    return read_twice(opened.store, lambda: _read_whole(opened, stored))


def _read_whole(opened: Opened, stored: StoredObject) -> Bytes:
    store = opened.store
    data = empty_aligned((stored.size,), np.dtype(np.uint8))
    try:
        with store.open(stored.name, size=stored.size, trusted=True) as reader:
            if reader.size != stored.size:
                raise _other(opened, stored.name, f"{reader.size} bytes")
            reader.read_into(0, data)
    except NotFound:
        raise_if_removed(opened)
        raise _other(opened, stored.name, "no such object") from None
    except CutShort:
        raise _other(opened, stored.name, "fewer bytes") from None
    stored.check(data)
    return data


def _other(opened: Opened, name: str, found: str) -> Damaged:
    return Damaged(
        f"expected the bytes that were saved, found {found} - object {name}, in "
        f"{opened.store.url} step {opened.manifest.step}: run ckpt.verify on it"
    )


def _manifest_bytes(opened: Opened) -> int:
    if opened.record is not None:
        return opened.record.manifest_bytes
    size = opened.store.size("manifest.json")
    if size is None:
        raise _other(opened, "manifest.json", "no such object")
    if size > layouts.DOCUMENT_BYTES:
        raise LimitExceeded(
            f"expected a manifest of at most {layouts.DOCUMENT_BYTES:,} bytes, found "
            f"{size:,} - in {opened.store.url}"
        )
    return size


def _list_object(opened: Opened, part: ObjectPart) -> StoredObject:
    name = layouts.object_name(opened.manifest, part.leaf, part.object)

    def check(data: Bytes) -> None:
        leaf = opened.manifest.leaves[part.leaf]
        box = leaf.cells.box(leaf.cells.coordinates(part.object))
        lengths, index = layout_object(opened, part)
        first = 0
        for number, length in enumerate(lengths.tolist()):
            crc = checksum(data[first : first + length])
            tail = data[first + length : first + length + layouts.CHECKSUM_BYTES]
            stored = int.from_bytes(tail.tobytes(), "little")
            if crc != part.crcs[number] or stored != crc:
                raise damaged(opened, leaf, name, f"chunk {number} changed", box)
            first += length + layouts.CHECKSUM_BYTES
        if data[first:].tobytes() != index:
            raise damaged(opened, leaf, name, "its index changed", box)

    return StoredObject(name, object_size(opened, part), check)


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
    opened: Opened, process: int, pack: int, rows: list[tuple[PackRow, int]]
) -> StoredObject:
    name = f"{layouts.pack_name(process, pack)}/c/0"

    def check(data: Bytes) -> None:
        for row, crc in rows:
            if checksum(data[row.offset : row.offset + row.length]) != crc:
                leaf = opened.manifest.leaves[row.leaf]
                box = leaf.cells.box(leaf.cells.coordinates(row.piece))
                raise damaged(opened, leaf, name, "its piece changed", box)

    return StoredObject(name, rows[-1][0].offset + rows[-1][0].length, check)


def _list_file(opened: Opened, entry: FileEntry) -> StoredObject:
    def check(data: Bytes) -> None:
        if checksum(data) != entry.crc:
            raise _other(opened, entry.name, "other text")

    return StoredObject(entry.name, entry.bytes, check)


def _list_document(opened: Opened, name: str, size: int, sha256: str) -> StoredObject:
    def check(data: Bytes) -> None:
        if layouts.digest(data.tobytes()) != sha256:
            raise _other(opened, name, "another document")

    return StoredObject(name, size, check)
