"""A part: what one process wrote, byte for byte, with the checksum of each chunk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ._box import Grid, Shape
from ._errors import InvalidLayout, show, show_path
from ._expect import expect_fields, expect_int, expect_list
from ._json import BODY_BYTES, frame, open_frame
from ._leaf import Chunked, Leaf
from ._manifest import Manifest
from ._name import check_name
from ._pack import PackRow, pack_rows, written_cells
from ._reused import REUSE, Reused, parse_hashes, parse_sources

PART = "ckpt-part"
_FIELDS = {"process", "commit", "objects", "packs", "files"}
OBJECT_FIELDS = {"leaf", "object", "crc32c", "lengths"}
PACK_FIELDS = {*PackRow._fields, "crc32c"}
CHECKSUM_BYTES = 4
"""Each chunk of a Zarr array is followed by its CRC-32C, little-endian."""

Crcs = NDArray[np.uint32]
Lengths = NDArray[np.int64]
Columns = dict[str, list[int]]
_OBJECT = ("leaf", "object")


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """One object of a Zarr array: its chunks in C order, those inside the array.

    `crcs` are the CRC-32C of the chunks' stored bytes; `lengths` their sizes without
    the checksum, None when no codec makes them differ. `hash` is of its values, where
    hashes are kept; `source` the directory of the run it lies in, "" for its own.
    """

    leaf: int
    object: int
    crcs: Crcs
    lengths: Lengths | None = None
    hash: bytes = b""
    source: str = ""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A small file written beside the data (Zarr metadata)."""

    name: str
    bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one process wrote; `hashed` if its objects have hashes."""

    process: int
    commit: str
    objects: tuple[ObjectPart, ...]
    rows: tuple[PackRow, ...]
    row_crcs: Crcs
    files: tuple[FileEntry, ...] = ()
    hashed: bool = False

    @property
    def sources(self) -> list[str]:
        """The other directories that hold objects of this part, in order."""
        return sorted({o.source for o in self.objects} - {""})

    @property
    def reused(self) -> Reused:
        """What of this process lies in other directories."""
        leaves = [o.leaf for o in self.objects if o.source]
        return Reused(tuple(self.sources), tuple(sorted(set(leaves))), (len(leaves),))

    def encode(self) -> bytes:
        """Return the part as its file."""
        columns = list(zip(*self.rows, strict=True)) or [()] * 5
        lengths = [o.lengths for o in self.objects if o.lengths is not None]
        body: dict[str, Any] = {
            "process": self.process,
            "commit": self.commit,
            "objects": {
                "leaf": [o.leaf for o in self.objects],
                "object": [o.object for o in self.objects],
                "crc32c": "".join([_hex(o.crcs) for o in self.objects]),
                "lengths": np.concatenate(lengths).tolist() if lengths else [],
            },
            "packs": {
                **dict(zip(PackRow._fields, columns, strict=True)),
                "crc32c": _hex(self.row_crcs),
            },
            "files": [[f.name, f.bytes, f.crc] for f in self.files],
        }
        if not self.hashed:
            return frame(PART, body)
        sources = self.sources
        numbers = {name: n for n, name in enumerate(["", *sources])}
        body["sources"] = sources
        body["objects"] |= {
            "hash": b"".join([o.hash for o in self.objects]).hex(),
            "source": [numbers[o.source] for o in self.objects],
        }
        return frame(PART, body, requires=(REUSE,))


def _hex(crcs: Crcs) -> str:
    return crcs.astype(">u4").tobytes().hex()


def parse_crcs(text: Any, count: int) -> Crcs:
    """Read checksums from text, eight hexadecimal digits each."""
    if not isinstance(text, str) or len(text) != 8 * count:
        raise InvalidLayout(f"expected {count} checksums, found {show(text)}")
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if data.hex() != text:
        raise InvalidLayout(f"expected checksums in hexadecimal, found {show(text)}")
    return np.frombuffer(data, ">u4").astype(np.uint32)


def chunk_counts(leaf: Leaf) -> NDArray[np.int64]:
    """Return the number of chunks of every object of a Zarr array, in C order."""
    store = cast(Chunked, leaf.store)
    return _count_chunks(leaf.shape, store.object, store.chunk)


@lru_cache(maxsize=1024)
def _count_chunks(shape: Shape, cell: Shape, chunk: Shape) -> NDArray[np.int64]:
    whole = tuple([o // c for o, c in zip(cell, chunk, strict=True)])
    return Grid(Grid(shape, chunk).counts, whole).sizes()


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
    body = parse_body(manifest, process, data)
    expected = expected_objects(manifest, process)
    columns = parse_columns(manifest, body)
    compare_columns(manifest, "objects", columns, _columns(expected, _OBJECT))
    leaves = manifest.leaves
    counts = [int(chunk_counts(leaves[leaf])[cell]) for leaf, cell in expected]
    crcs = parse_crcs(columns["crc32c"], sum(counts))
    numbers = [leaf for leaf, _ in expected]
    lengths = parse_lengths(manifest, numbers, counts, columns["lengths"])
    rows = tuple(pack_rows(manifest.leaves, process, limit=manifest.pack_bytes))
    packs = expect_fields(body["packs"], PACK_FIELDS, "the packs")
    compare_columns(manifest, "packs", packs, _columns(rows, PackRow._fields))
    hashes, sources = parse_references(manifest, body, columns, len(expected))
    objects: list[ObjectPart] = []
    stop = 0
    for n, ((leaf, cell), count) in enumerate(zip(expected, counts, strict=True)):
        start, stop = stop, stop + count
        sizes = None if lengths is None else lengths[start:stop]
        found = ObjectPart(leaf, cell, crcs[start:stop], sizes, hashes[n], sources[n])
        objects.append(found)
    row_crcs = parse_crcs(packs["crc32c"], len(rows))
    return Part(
        process,
        manifest.commit,
        tuple(objects),
        rows,
        row_crcs,
        parse_files(body["files"]),
        manifest.reused is not None,
    )


def _columns(rows: Sequence[tuple[int, ...]], names: Iterable[str]) -> Columns:
    found = list(map(list, zip(*rows, strict=True)))
    return {name: found[i] if found else [] for i, name in enumerate(names)}


def parse_body(manifest: Manifest, process: int, data: bytes) -> dict[str, Any]:
    """Return the fields of a part, which must be the one of this process."""
    known, names = (
        ((REUSE,), _FIELDS | {"sources"}) if manifest.reused else ((), _FIELDS)
    )
    value, features = open_frame(PART, data, known=known)
    if features != known:
        raise InvalidLayout(
            f"expected a part that requires {show(known)}, as its manifest does, found "
            f"{show(features)}"
        )
    body = expect_fields(value, names, "the part")
    found = body["process"]
    if type(found) is not int or found != process:
        raise InvalidLayout(
            f"expected the part to have process {process}, found {show(found)}"
        )
    if body["commit"] != manifest.commit:
        raise InvalidLayout(
            f"expected a part of commit {manifest.commit}, "
            f"found one of {show(body['commit'])}"
        )
    return body


def parse_columns(manifest: Manifest, body: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of the objects in a part."""
    names = OBJECT_FIELDS | {"hash", "source"} if manifest.reused else OBJECT_FIELDS
    return expect_fields(body["objects"], names, "the objects")


def parse_references(
    manifest: Manifest, body: dict[str, Any], columns: dict[str, Any], count: int
) -> tuple[list[bytes], list[str]]:
    """Return hash and directory of each object; empty where hashes are not kept."""
    reused = manifest.reused
    if reused is None:
        return [b""] * count, [""] * count
    numbers = columns["source"]
    sources = parse_sources(
        body["sources"], numbers, reused, own=manifest.directory, count=count
    )
    return parse_hashes(columns["hash"], count), sources


def compare_columns(
    manifest: Manifest, what: str, given: dict[str, Any], expected: Columns
) -> None:
    """Refuse columns that are not as expected, naming the leaf of the first row."""
    for name, column in expected.items():
        where = f"the {what}' column {name!r}"
        found = expect_list(given[name], f"rows in {where}", length=len(column))
        if set(map(type, found)) <= {int} and found == column:
            continue
        for row, (value, wanted) in enumerate(zip(found, column, strict=True)):
            if type(value) is not int or value != wanted:
                path = manifest.leaves[expected["leaf"][row]].path
                raise InvalidLayout(
                    f"expected {wanted} in row {row} of {where}, found {show(value)} "
                    f"- at `{show_path(path)}`"
                )


def parse_lengths(
    manifest: Manifest, leaves: Sequence[int], counts: Sequence[int], value: Any
) -> Lengths | None:
    """Read the lengths of the chunks of objects, given the leaf and count of each.

    None without a codec: then the column is empty, all chunks are whole.
    """
    count = sum(counts) if manifest.codec else 0
    given = expect_list(value, "lengths of chunks", length=count)
    if not manifest.codec:
        return None
    most = {leaf: 2 * chunk_bytes(manifest, leaf) + (1 << 16) for leaf in set(leaves)}
    sound = set(map(type, given)) <= {int} and min(given, default=1) >= 1
    if not sound or max(given, default=0) >= min(most.values(), default=1):
        limits = np.repeat([most[leaf] for leaf in leaves], counts).tolist()
        for number, limit in zip(given, limits, strict=True):
            expect_int(number, "the length of a chunk", least=1, below=limit)
    return np.array(given, np.int64)


def chunk_bytes(manifest: Manifest, leaf: int) -> int:
    """Return the bytes of a whole chunk of a Zarr array before any codec."""
    found = manifest.leaves[leaf]
    return math.prod(cast(Chunked, found.store).chunk) * found.itemsize


def chunks_a_request(manifest: Manifest, leaf: int, request_bytes: int) -> int:
    """Return how many adjacent chunks of an object one request reads at most."""
    stride = chunk_bytes(manifest, leaf) + CHECKSUM_BYTES
    return max(1, request_bytes // stride)


def parse_files(value: Any) -> tuple[FileEntry, ...]:
    """Read the names, sizes and checksums of small files, each named once."""
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
