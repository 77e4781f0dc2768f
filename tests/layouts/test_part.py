"""Parts: they come back equal, and describe exactly what their process wrote."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given

import layouts
from layouts import CorruptLayout, InvalidLayout, Manifest, Part
from tests.layouts._documents import (
    change,
    example,
    make_part,
    manifests,
    name_parts,
    seal,
    unseal,
)

KIND = "ckpt-part"
PLAIN, PLAIN_PARTS = example()
CODED, CODED_PARTS = example("zstd")
BODY = unseal(PLAIN_PARTS[0].encode())
CODED_BODY = unseal(CODED_PARTS[0].encode())


def show(part: Part) -> list[Any]:
    """Return a part as values that compare."""
    objects = [
        (
            o.leaf,
            o.object,
            o.crcs.tolist(),
            None if o.lengths is None else o.lengths.tolist(),
        )
        for o in part.objects
    ]
    crcs = part.row_crcs.tolist()
    return [part.process, part.commit, objects, part.rows, crcs, part.files]


@given(manifests())
def test_a_part_is_parsed_as_it_was_encoded(made: tuple[Manifest, list[Part]]) -> None:
    manifest, parts = made
    for process, part in enumerate(parts):
        data = part.encode()
        layouts.check_part_bytes(manifest, process, data)
        found = layouts.parse_part(manifest, process, data)
        assert show(found) == show(part)
        assert found.encode() == data
        assert found.row_crcs.dtype == np.uint32
        assert {o.crcs.dtype for o in found.objects} <= {np.dtype(np.uint32)}


def test_the_body_is_plain_json_that_others_can_read() -> None:
    first, second = CODED_PARTS[0].objects
    assert first.lengths is not None
    assert second.lengths is not None
    crcs = [format(n, "08x") for n in [*first.crcs, *second.crcs]]
    assert CODED_BODY["objects"] == {
        "leaf": [0, 0],
        "object": [0, 1],
        "crc32c": "".join(crcs),
        "lengths": [*first.lengths.tolist(), *second.lengths.tolist()],
    }
    assert BODY["objects"]["lengths"] == []
    # Process 0 packs the second piece of `b`, four bfloat16, then the key.
    rows = {k: v for k, v in BODY["packs"].items() if k != "crc32c"}
    assert rows == {
        "leaf": [1, 2],
        "piece": [1, 0],
        "pack": [0, 0],
        "offset": [0, 8],
        "length": [8, 8],
    }
    assert BODY["files"] == [["zarr.json", 17, 1 << 31], ["a/zarr.json", 0, 0]]


OBJECTS, PACKS, FILE = ("objects",), ("packs",), ("files", 0)
OBJECT = "row {} of the objects' column '{}'".format
PACK = "row {} of the packs' column '{}'".format
TAMPERED: list[tuple[tuple[Any, ...], Any, str]] = [
    ((), [], "the part with the fields"),
    (("more",), 1, "the part with the fields"),
    (("files",), ..., "the part with the fields"),
    (("process",), 1, "the part to have process 0, found 1"),
    (("process",), False, "the part to have process 0, found False"),
    (("process",), 0.0, "the part to have process 0"),
    (("commit",), "fedcba9876543210", "a part of commit 0123456789abcdef"),
    (("commit",), None, "a part of commit 0123456789abcdef, found one of None"),
    (OBJECTS, [], "the objects with the fields"),
    (OBJECTS, {}, "the objects with the fields"),
    ((*OBJECTS, "more"), 1, "the objects with the fields"),
    ((*OBJECTS, "lengths"), ..., "the objects with the fields"),
    ((*OBJECTS, "lengths"), [1, 1, 1, 1], "a list of 0 lengths of chunks"),
    ((*OBJECTS, "lengths"), None, "a list of 0 lengths of chunks"),
    ((*OBJECTS, "leaf"), {}, "a list of 2 rows in the objects' column 'leaf'"),
    ((*OBJECTS, "leaf"), [], "a list of 2 rows in the objects' column 'leaf'"),
    ((*OBJECTS, "leaf"), [0], "a list of 2 rows in the objects' column 'leaf'"),
    ((*OBJECTS, "leaf"), [0, 0, 0], "a list of 2 rows in the objects' column 'leaf'"),
    ((*OBJECTS, "leaf", 0), 1, f"0 in {OBJECT(0, 'leaf')}, found 1 - at `W`"),
    ((*OBJECTS, "leaf", 0), False, f"0 in {OBJECT(0, 'leaf')}, found False"),
    ((*OBJECTS, "leaf", 1), 0.0, f"0 in {OBJECT(1, 'leaf')}, found 0.0"),
    ((*OBJECTS, "object", 0), 1, f"0 in {OBJECT(0, 'object')}, found 1 - at `W`"),
    ((*OBJECTS, "object", 1), True, f"1 in {OBJECT(1, 'object')}, found True"),
    ((*OBJECTS, "object"), [1, 0], f"0 in {OBJECT(0, 'object')}, found 1"),
    ((*OBJECTS, "object"), [0], "a list of 2 rows in the objects' column 'object'"),
    ((*OBJECTS, "crc32c"), None, "4 checksums"),
    ((*OBJECTS, "crc32c"), "0" * 31, "4 checksums"),
    ((*OBJECTS, "crc32c"), "0" * 40, "4 checksums"),
    ((*OBJECTS, "crc32c"), ["0"] * 32, "4 checksums"),
    ((*OBJECTS, "crc32c"), "0" * 24 + " " * 8, "checksums in hexadecimal"),
    ((*OBJECTS, "crc32c"), "0 0 0 0 0 0 0 0 " * 2, "checksums in hexadecimal"),
    ((*OBJECTS, "crc32c"), "ABCDEF01" * 4, "checksums in hexadecimal"),
    ((*OBJECTS, "crc32c"), "0x0x0x0x" * 4, "checksums in hexadecimal"),
    ((*OBJECTS, "crc32c"), "\u0661" * 32, "checksums in hexadecimal"),
    (PACKS, [], "the packs with the fields"),
    ((*PACKS, "more"), [], "the packs with the fields"),
    ((*PACKS, "leaf"), [1], "a list of 2 rows in the packs' column 'leaf'"),
    ((*PACKS, "leaf"), None, "a list of 2 rows in the packs' column 'leaf'"),
    ((*PACKS, "leaf"), [2, 1], f"1 in {PACK(0, 'leaf')}, found 2 - at `b`"),
    ((*PACKS, "piece"), [True, False], f"1 in {PACK(0, 'piece')}, found True"),
    ((*PACKS, "pack"), [0, 1], f"0 in {PACK(1, 'pack')}, found 1 - at `key`"),
    ((*PACKS, "offset"), [0, 0], f"8 in {PACK(1, 'offset')}, found 0"),
    ((*PACKS, "offset"), [0, 8.0], f"8 in {PACK(1, 'offset')}, found 8.0"),
    ((*PACKS, "length"), [8, 1 << 60], f"8 in {PACK(1, 'length')}"),
    ((*PACKS, "length"), [8, -8], f"8 in {PACK(1, 'length')}, found -8"),
    ((*PACKS, "crc32c"), "0" * 8, "2 checksums"),
    (("files",), None, "a list of files"),
    (FILE, "abc", "a name, size and checksum"),
    (FILE, ["zarr.json", 1], "a name, size and checksum"),
    ((*FILE, 0), "../zarr.json", "a safe object name"),
    ((*FILE, 0), "/etc/zarr.json", "a safe object name"),
    ((*FILE, 0), 5, "a safe object name"),
    ((*FILE, 0), "manifest.json", "a file of Zarr metadata"),
    ((*FILE, 0), "W/c/0/0", "a file of Zarr metadata"),
    ((*FILE, 0), "a/zarr.json", "distinct files"),
    ((*FILE, 0), "A/zarr.json", "distinct files"),
    ((*FILE, 1), -1, "the bytes of zarr.json from 0"),
    ((*FILE, 1), True, "the bytes of zarr.json from 0"),
    ((*FILE, 1), 1 << 40, "the bytes of zarr.json from 0"),
    ((*FILE, 2), -1, "the CRC of zarr.json from 0"),
    ((*FILE, 2), 1 << 32, "the CRC of zarr.json from 0"),
    ((*FILE, 2), "0", "the CRC of zarr.json from 0"),
]


@pytest.mark.parametrize(("at", "new", "message"), TAMPERED, ids=str)
def test_a_tampered_part_is_refused(
    at: tuple[Any, ...], new: Any, message: str
) -> None:
    data = seal(KIND, change(BODY, at, new))
    with pytest.raises(InvalidLayout, match=message) as caught:
        layouts.parse_part(PLAIN, 0, data)
    assert caught.type is InvalidLayout
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (..., "the objects with the fields"),
        (None, "a list of 4 lengths of chunks"),
        ([], "a list of 4 lengths of chunks"),
        ([24] * 3, "a list of 4 lengths of chunks"),
        ([24, 24, 24, 0], "the length of a chunk from 1"),
        ([24, -1, 24, 24], "the length of a chunk from 1"),
        ([24, 24, True, 24], "the length of a chunk from 1"),
        ([24, 24, 24, 24.0], "the length of a chunk from 1"),
        # A chunk is 2 x 3 float32; a codec may double it and add 64 KiB.
        ([24, 24, 24, 2 * 24 + 65537], "the length of a chunk from 1"),
        ([24, 24, 24, 1 << 60], "the length of a chunk from 1"),
        ([24, 24, 24, 1 << 100], "the length of a chunk from 1"),
    ],
)
def test_lengths_that_no_codec_makes_are_refused(new: Any, message: str) -> None:
    data = seal(KIND, change(CODED_BODY, (*OBJECTS, "lengths"), new))
    with pytest.raises(InvalidLayout, match=message):
        layouts.parse_part(CODED, 0, data)


def test_the_part_of_another_process_is_refused() -> None:
    with pytest.raises(InvalidLayout, match="to have process 1, found 0"):
        layouts.parse_part(PLAIN, 1, PLAIN_PARTS[0].encode())


def test_the_part_of_another_layout_is_refused() -> None:
    with pytest.raises(InvalidLayout, match="a list of 0 lengths of chunks"):
        layouts.parse_part(PLAIN, 0, CODED_PARTS[0].encode())


def test_a_truncated_part_is_corrupt() -> None:
    data = PLAIN_PARTS[0].encode()
    for length in (0, 1, data.index(b"\n"), data.index(b"\n") + 1, len(data) - 1):
        with pytest.raises(CorruptLayout):
            layouts.parse_part(PLAIN, 0, data[:length])


def test_a_process_that_writes_nothing_has_an_empty_part() -> None:
    manifest, parts = example()
    manifest = name_parts(manifest, [*parts, make_part(manifest, 2)])
    part = layouts.parse_part(manifest, 2, make_part(manifest, 2).encode())
    assert (part.objects, part.rows, part.row_crcs.size) == ((), (), 0)


def test_objects_are_named_as_zarr_names_its_chunks() -> None:
    names = [layouts.object_name(PLAIN, 0, n) for n in range(4)]
    assert names == ["W/c/0/0", "W/c/0/1", "W/c/1/0", "W/c/1/1"]
    assert layouts.expected_objects(PLAIN, 0) == [(0, 0), (0, 1)]
    assert layouts.expected_objects(PLAIN, 1) == [(0, 2), (0, 3)]
    assert layouts.object_chunks(PLAIN, 0, 3).counts == (2, 1)
    assert layouts.chunk_bytes(PLAIN, 0) == 2 * 3 * 4
