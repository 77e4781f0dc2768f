"""A part: what one process wrote, byte for byte, with the checksum of each chunk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ._box import Grid
from ._errors import InvalidLayout, show
from ._expect import expect_fields, expect_int, expect_list
from ._json import BODY_BYTES, frame, unframe
from ._leaf import Chunked
from ._manifest import Manifest
from ._name import check_name
from ._pack import PackRow, pack_rows, written_cells

PART = "ckpt-part"
_FIELDS = {"process", "commit", "objects", "packs", "files"}
_OBJECT_FIELDS = {"leaf", "object", "crc32c"}
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
    found: dict[str, Any] = {
        "leaf": part.leaf,
        "object": part.object,
        "crc32c": _hex(part.crcs),
    }
    if part.lengths is not None:
        found["lengths"] = part.lengths.tolist()
    return found


def _hex(crcs: Crcs) -> str:
    return crcs.astype(">u4").tobytes().hex()


def _unhex(text: Any, count: int) -> Crcs:
    if not isinstance(text, str) or len(text) != 8 * count:
        raise InvalidLayout(f"expected {count} checksums, found {show(text)}")
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if data.hex() != text:
        raise InvalidLayout(f"expected checksums in hexadecimal, found {show(text)}")
    return np.frombuffer(data, ">u4").astype(np.uint32)


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
    body = expect_fields(unframe(PART, data), _FIELDS, "the part")
    _check_numbers(body, {"process": process}, "the part")
    if body["commit"] != manifest.commit:
        raise InvalidLayout(
            f"expected a part of commit {manifest.commit}, "
            f"found one of {show(body['commit'])}"
        )
    expected = expected_objects(manifest, process)
    given = expect_list(body["objects"], "objects", length=len(expected))
    objects = tuple(
        [
            _parse_object(manifest, leaf, number, value)
            for (leaf, number), value in zip(expected, given, strict=True)
        ]
    )
    rows = tuple(pack_rows(manifest.leaves, process))
    crcs = _parse_rows(rows, body["packs"])
    return Part(
        process, manifest.commit, objects, rows, crcs, _parse_files(body["files"])
    )


def _parse_object(manifest: Manifest, leaf: int, number: int, value: Any) -> ObjectPart:
    what = f"object {number} of leaf {leaf}"
    names = _OBJECT_FIELDS | ({"lengths"} if manifest.codec else set[str]())
    fields = expect_fields(value, names, what)
    _check_numbers(fields, {"leaf": leaf, "object": number}, what)
    count = chunk_count(manifest, leaf, number)
    lengths = None
    if manifest.codec:
        given = expect_list(fields["lengths"], "chunk lengths", length=count)
        most = 2 * chunk_bytes(manifest, leaf) + (1 << 16)
        lengths = np.array(
            [
                expect_int(n, "the length of a chunk", least=1, below=most)
                for n in given
            ],
            np.int64,
        )
    return ObjectPart(leaf, number, _unhex(fields["crc32c"], count), lengths)


def _check_numbers(fields: dict[str, Any], expected: dict[str, int], what: str) -> None:
    for name, number in expected.items():
        found = fields[name]
        if type(found) is not int or found != number:
            raise InvalidLayout(
                f"expected {what} to have {name} {number}, found {show(found)}"
            )


def chunk_bytes(manifest: Manifest, leaf: int) -> int:
    """Return the bytes of a whole chunk of a Zarr array before any codec."""
    found = manifest.leaves[leaf]
    return math.prod(cast(Chunked, found.store).chunk) * found.itemsize


def _parse_rows(rows: Sequence[PackRow], value: Any) -> Crcs:
    columns = expect_fields(value, {*PackRow._fields, "crc32c"}, "the packs")
    expected = [list(c) for c in zip(*rows, strict=True)] or [[]] * 5
    for name, column in zip(PackRow._fields, expected, strict=True):
        given = expect_list(columns[name], f"rows of {name!r}", length=len(rows))
        if not set(map(type, given)) <= {int} or given != column:
            raise InvalidLayout(f"expected other values in the packs' column {name!r}")
    return _unhex(columns["crc32c"], len(rows))


def _parse_files(value: Any) -> tuple[FileEntry, ...]:
    files = tuple([_parse_file(file) for file in expect_list(value, "files")])
    if len({file.name.casefold() for file in files}) != len(files):
        raise InvalidLayout("expected distinct files, found one twice")
    return files


def _parse_file(value: Any) -> FileEntry:
    name, size, crc = expect_list(value, "a name, size and checksum", length=3)
    if check_name(name).rpartition("/")[2] != "zarr.json":
        raise InvalidLayout(f"expected a file of Zarr metadata, found {show(name)}")
    size = expect_int(size, f"the bytes of {name}", below=BODY_BYTES + 1)
    return FileEntry(name, size, expect_int(crc, f"the CRC of {name}", below=1 << 32))
