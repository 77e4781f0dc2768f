"""A part: what one process wrote, byte for byte, with the checksum of each chunk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ._box import Grid
from ._errors import InvalidLayout
from ._json import frame, unframe
from ._leaf import Chunked
from ._manifest import Manifest
from ._name import check_name
from ._pack import PackRow, pack_rows, written_cells

PART = "ckpt-part"
CHECKSUM_BYTES = 4
"""Each chunk of a Zarr array is followed by its CRC-32C, little-endian."""

Crcs = NDArray[np.uint32]
Lengths = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """One object of a Zarr array: its chunks in C order, those inside the array.

    `crcs` are the CRC-32C of the chunks' stored bytes; `lengths` their sizes without
    the checksum, None when no codec makes them differ.
    """

    leaf: int
    object: int
    crcs: Crcs
    lengths: Lengths | None = None


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A small file written beside the data (Zarr metadata)."""

    name: str
    bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one process wrote."""

    process: int
    commit: str
    objects: tuple[ObjectPart, ...]
    rows: tuple[PackRow, ...]
    row_crcs: Crcs
    files: tuple[FileEntry, ...] = ()

    def encode(self) -> bytes:
        """Return the part as its file."""
        columns = list(zip(*self.rows, strict=True)) or [()] * 5
        body = {
            "process": self.process,
            "commit": self.commit,
            "objects": [_object_json(o) for o in self.objects],
            "packs": {
                **dict(zip(PackRow._fields, columns, strict=True)),
                "crc32c": _hex(self.row_crcs),
            },
            "files": [[f.name, f.bytes, f.crc] for f in self.files],
        }
        return frame(PART, body)


def _object_json(part: ObjectPart) -> dict[str, Any]:
    found = {"leaf": part.leaf, "object": part.object, "crc32c": _hex(part.crcs)}
    if part.lengths is not None:
        found["lengths"] = part.lengths.tolist()
    return found


def _hex(crcs: Crcs) -> str:
    return crcs.astype(">u4").tobytes().hex()


def _unhex(text: Any, count: int) -> Crcs:
    if not isinstance(text, str) or len(text) != 8 * count:
        raise InvalidLayout(f"expected {count} checksums, found {text!r:.60}")
    try:
        return np.frombuffer(bytes.fromhex(text), ">u4").astype(np.uint32)
    except ValueError:
        raise InvalidLayout(f"expected checksums, found {text!r:.60}") from None


def chunk_count(manifest: Manifest, leaf: int, number: int) -> int:
    """Return how many chunks the numbered object of a Zarr array holds."""
    return object_chunks(manifest, leaf, number).length


def object_chunks(manifest: Manifest, leaf: int, number: int) -> Grid:
    """Return the grid of the chunks of one object, relative to the object."""
    found = manifest.leaves[leaf]
    store = cast(Chunked, found.store)
    return Grid(found.cells.box(found.cells.coordinates(number)).shape, store.chunk)


def object_name(manifest: Manifest, leaf: int, number: int) -> str:
    """Return the name of the numbered object of a Zarr array."""
    found = manifest.leaves[leaf]
    at = found.cells.coordinates(number)
    return f"{cast(Chunked, found.store).name}/c/" + "/".join(map(str, at))


def expected_objects(manifest: Manifest, process: int) -> list[tuple[int, int]]:
    """Return (leaf, object) of every Zarr object that a process writes, in order."""
    return [
        (number, cell)
        for number, leaf in enumerate(manifest.leaves)
        if isinstance(leaf.store, Chunked)
        for cell in written_cells(leaf, process)
    ]


def parse_part(manifest: Manifest, process: int, data: bytes) -> Part:
    """Read a part; it must describe exactly the objects its process writes."""
    body = unframe(PART, data)
    fields = {"process", "commit", "objects", "packs", "files"}
    if not isinstance(body, dict) or cast(Any, body).keys() != fields:
        raise InvalidLayout("expected the part's fields, found others")
    found = cast("dict[str, Any]", body)
    if (found["process"], found["commit"]) != (process, manifest.commit):
        raise InvalidLayout(
            f"expected the part of process {process} of commit {manifest.commit}, "
            f"found {found['process']!r:.20} of {found['commit']!r:.40}"
        )
    expected = expected_objects(manifest, process)
    given = found["objects"]
    if not isinstance(given, list) or len(cast("list[Any]", given)) != len(expected):
        raise InvalidLayout(f"expected {len(expected)} objects, found others")
    objects = tuple(
        _parse_object(manifest, leaf, number, value)
        for (leaf, number), value in zip(
            expected, cast("list[Any]", given), strict=True
        )
    )
    rows = tuple(pack_rows(manifest.leaves, process))
    crcs = _parse_rows(rows, found["packs"])
    files = _parse_files(found["files"])
    return Part(process, manifest.commit, objects, rows, crcs, files)


def _parse_object(manifest: Manifest, leaf: int, number: int, value: Any) -> ObjectPart:
    keys = {"leaf", "object", "crc32c"} | ({"lengths"} if manifest.codec else set())
    if not isinstance(value, dict) or cast(Any, value).keys() != keys:
        raise InvalidLayout(f"expected an object of leaf {leaf}, found {value!r:.60}")
    fields = cast("dict[str, Any]", value)
    if (fields["leaf"], fields["object"]) != (leaf, number):
        raise InvalidLayout(
            f"expected object {number} of leaf {leaf}, "
            f"found {fields['object']!r:.20} of {fields['leaf']!r:.20}"
        )
    count = chunk_count(manifest, leaf, number)
    lengths = None
    if manifest.codec:
        size = chunk_bytes(manifest, leaf)
        given = fields["lengths"]
        if (
            not isinstance(given, list)
            or len(cast("list[Any]", given)) != count
            or any(
                type(n) is not int or not 0 < n <= 2 * size + (1 << 16)
                for n in cast("list[Any]", given)
            )
        ):
            raise InvalidLayout(f"expected {count} chunk lengths, found {given!r:.60}")
        lengths = np.array(given, np.int64)
    return ObjectPart(leaf, number, _unhex(fields["crc32c"], count), lengths)


def chunk_bytes(manifest: Manifest, leaf: int) -> int:
    """Return the bytes of a whole chunk of a Zarr array before any codec."""
    found = manifest.leaves[leaf]
    return math.prod(cast(Chunked, found.store).chunk) * found.itemsize


def _parse_rows(rows: Sequence[PackRow], value: Any) -> Crcs:
    keys = {*PackRow._fields, "crc32c"}
    if not isinstance(value, dict) or cast(Any, value).keys() != keys:
        raise InvalidLayout(f"expected the columns of the packs, found {value!r:.60}")
    columns = cast("dict[str, Any]", value)
    expected = [list(c) for c in zip(*rows, strict=True)] or [[]] * 5
    for name, column in zip(PackRow._fields, expected, strict=True):
        if columns[name] != column:
            raise InvalidLayout(f"expected other values in the packs' column {name!r}")
    return _unhex(columns["crc32c"], len(rows))


def _parse_files(value: Any) -> tuple[FileEntry, ...]:
    try:
        files = tuple(FileEntry(check_name(n), size, crc) for n, size, crc in value)
    except (TypeError, ValueError) as error:
        raise InvalidLayout(f"expected a list of files: {error!s:.120}") from None
    if any(type(f.bytes) is not int or type(f.crc) is not int for f in files):
        raise InvalidLayout("expected sizes and checksums of files")
    return files
