"""Shapes, counts and lengths that are huge, that overlap, or that lie."""

from typing import Any

import numcodecs
import numpy as np
import pytest
from crc32c import crc32c

from tests.attacks._forge import Forgery
from tests.attacks._sandbox import Sandbox


@pytest.mark.parametrize(
    "shape",
    [
        [1 << 62],
        [1 << 48],
        [1 << 47, 1 << 47],
        [(1 << 48) - 1] * 32,
        [1] * 33,
        [1] * 100_000,
        [10**400],
        [0, 1 << 60],
        [-1],
        [-1, -6],
        [6.0],
        [True],
        ["6"],
        [None],
        [[6]],
        6,
        {},
    ],
    ids=lambda shape: str(shape)[:20],
)
@pytest.mark.parametrize("path", ["small", "w"])
def test_a_shape_that_no_array_has_is_refused(
    forgery: Forgery, sandbox: Sandbox, path: str, shape: Any
) -> None:
    forgery.leaf(path)["shape"] = shape
    forgery.write()
    ends = sandbox.expose(forgery)["ends"]
    assert ends["restore"]["error"] in ("LimitExceeded", "Untrusted"), ends["restore"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chunk", [0, 512]),
        ("chunk", [1, 1]),
        ("chunk", [512]),
        ("chunk", [3, 512]),
        ("chunk", [1 << 40, 512]),
        ("chunk", [-512, 512]),
        ("chunk", [512, True]),
        ("object", [0, 512]),
        ("object", [1, 1]),
        ("object", [2048, 512]),
        ("object", [1 << 47, 512]),
        ("object", [512, 512, 1]),
        ("object", "512"),
    ],
    ids=str,
)
def test_a_grid_that_does_not_tile_the_array_is_refused(
    forgery: Forgery, sandbox: Sandbox, field: str, value: Any
) -> None:
    forgery.leaf("w")[field] = value
    forgery.write()
    ends = sandbox.expose(forgery)["ends"]
    assert ends["restore"]["error"] in ("LimitExceeded", "Untrusted"), ends["restore"]


@pytest.mark.parametrize("rows", [1 << 24, 1 << 28, 1 << 34])
def test_an_array_that_claims_to_be_one_huge_chunk_takes_no_memory(
    forgery: Forgery, sandbox: Sandbox, rows: int
) -> None:
    forgery.drop_objects("w")
    leaf = forgery.leaf("w")
    leaf["shape"] = leaf["object"] = leaf["chunk"] = [rows, 16]
    # It is the first of the three arrays.
    forgery.objects["leaf"].insert(0, forgery.number("w"))
    forgery.objects["object"].insert(0, 0)
    forgery.objects["crc32c"] = "00000000" + forgery.objects["crc32c"]
    forgery.write()
    ends = sandbox.expose(forgery)["ends"]
    assert ends["restore"]["error"] in ("Damaged", "LimitExceeded")
    assert ends["restore on a mesh"]["error"] in ("Damaged", "LimitExceeded")


@pytest.mark.parametrize("count", [1 << 20, 1 << 40])
def test_more_chunks_than_the_part_describes_are_refused(
    forgery: Forgery, sandbox: Sandbox, count: int
) -> None:
    leaf = forgery.leaf("w")
    leaf["shape"], leaf["object"], leaf["chunk"] = [count, 512], [1, 512], [1, 512]
    forgery.write()
    sandbox.refuse(forgery, "LimitExceeded")


@pytest.mark.parametrize(
    "runs",
    [
        [1, 2],
        [0, 1, 0, 2],
        [0, 1],
        [0, 0, 0, 2],
        [0, -1, 0, 3],
        [-1, 2],
        [0, 1 << 62],
        [0, 10**400],
        [True, 2],
        [0],
        [],
        "00",
        [[0, 2]],
        [0, 1] * 100_000,
    ],
    ids=lambda value: str(value)[:20],
)
def test_writers_out_of_range_are_refused(
    forgery: Forgery, sandbox: Sandbox, runs: Any
) -> None:
    forgery.manifest["writers"] = [runs]
    forgery.leaf("w")["writers"] = 0
    forgery.write()
    sandbox.refuse(forgery, "Untrusted")


@pytest.mark.parametrize(
    "number", [1, -1, 10**400, True, None, "0", 0.0, [0], [[0, 2]]]
)
def test_writers_that_are_in_no_table_are_refused(
    forgery: Forgery, sandbox: Sandbox, number: Any
) -> None:
    forgery.manifest["writers"] = [[0, 2]]
    forgery.leaf("w")["writers"] = number
    forgery.write()
    sandbox.refuse(forgery, "Untrusted")


@pytest.mark.parametrize("size", [0, -1, 1, 1 << 40, 10**400, True, None, "1"])
def test_packs_of_another_size_are_refused(
    forgery: Forgery, sandbox: Sandbox, size: Any
) -> None:
    forgery.manifest["pack_bytes"] = size
    forgery.write()
    sandbox.refuse(forgery, "Untrusted")


@pytest.mark.parametrize("column", ["leaf", "piece", "pack", "offset", "length"])
@pytest.mark.parametrize("value", [0, 1, -1, 1 << 40, 10**400, True, None, "0"])
def test_a_row_that_does_not_follow_from_the_manifest_is_refused(
    forgery: Forgery, sandbox: Sandbox, column: str, value: Any
) -> None:
    rows = forgery.part["packs"][column]
    if type(value) is int and rows[-1] == value:
        value += 2
    rows[-1] = value
    forgery.write()
    sandbox.refuse(forgery, "Untrusted", "parts/0.json")


@pytest.mark.parametrize(
    "change", ["short", "less", "long", "letters", "list", "object", "number"]
)
def test_checksums_that_are_no_checksums_are_refused(
    forgery: Forgery, sandbox: Sandbox, change: str
) -> None:
    # None much smaller than it was: the part must have room for all the chunks.
    crcs = forgery.objects["crc32c"]
    forgery.objects["crc32c"] = {
        "short": crcs[:-1],
        "less": crcs[:-8],
        "long": crcs + "0" * 80_000,
        "letters": "g" * len(crcs),
        "list": [crcs],
        "object": {crcs: 0},
        "number": int("1" + crcs[1:], 16),
    }[change]
    forgery.write()
    sandbox.refuse(forgery, "Untrusted", "parts/0.json")


@pytest.mark.parametrize("change", ["repeat", "drop", "reverse", "none", "huge"])
def test_objects_other_than_those_of_the_manifest_are_refused(
    forgery: Forgery, sandbox: Sandbox, change: str
) -> None:
    columns = forgery.objects
    rows = list(zip(columns["leaf"], columns["object"], strict=True))
    changed = {
        "repeat": [*rows, rows[0]],
        "drop": rows[1:],
        "reverse": rows[::-1],
        "none": [],
        "huge": [(rows[0][0], 1 << 62), *rows[1:]],
    }[change]
    columns["leaf"] = [leaf for leaf, _ in changed]
    columns["object"] = [cell for _, cell in changed]
    forgery.write()
    sandbox.refuse(forgery, "Untrusted", "parts/0.json")


@pytest.mark.parametrize("column", ["leaf", "object", "lengths"])
@pytest.mark.parametrize("value", [None, 0, "", {}, [[]], ["0"]])
def test_a_column_of_objects_that_is_none_is_refused(
    forgery: Forgery, sandbox: Sandbox, column: str, value: Any
) -> None:
    forgery.objects[column] = value
    forgery.write()
    sandbox.refuse(forgery, "Untrusted", "parts/0.json")


@pytest.mark.parametrize("length", [0, -1, 1 << 40, 10**400, 1.5, True, None, "9"])
def test_a_chunk_length_that_lies_is_refused(
    coded: Forgery, sandbox: Sandbox, length: Any
) -> None:
    coded.objects["lengths"][coded.chunks("w").start] = length
    coded.write()
    sandbox.refuse(coded, "Untrusted", "parts/0.json")


def test_chunk_lengths_that_add_up_but_lie_are_damaged(
    coded: Forgery, sandbox: Sandbox
) -> None:
    lengths, at = coded.objects["lengths"], coded.chunks("w").start
    lengths[at], lengths[at + 1] = lengths[at] + 8, lengths[at + 1] - 8
    coded.write()
    sandbox.refuse(coded, "Damaged", "`w`")


def test_lengths_without_a_codec_are_refused(
    forgery: Forgery, sandbox: Sandbox
) -> None:
    forgery.objects["lengths"] = [1] * (len(forgery.objects["crc32c"]) // 8)
    forgery.write()
    sandbox.refuse(forgery, "Untrusted")


def _replace_chunk(forgery: Forgery, path: str, data: bytes) -> None:
    """Put other compressed bytes in place of an object's first chunk."""
    columns, at = forgery.objects, forgery.chunks(path).start
    target = forgery.folder / f"{path}/c/0/0"
    old = target.read_bytes()[columns["lengths"][at] + 4 :]
    crc = crc32c(data)
    target.write_bytes(data + crc.to_bytes(4, "little") + old)
    columns["lengths"][at] = len(data)
    crcs = columns["crc32c"]
    columns["crc32c"] = crcs[: 8 * at] + f"{crc:08x}" + crcs[8 * (at + 1) :]
    forgery.write()


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 30])
def test_a_chunk_that_decompresses_to_another_size_is_damaged(
    coded: Forgery, sandbox: Sandbox, size: int
) -> None:
    data = numcodecs.Zstd(1).encode(np.zeros(size, np.uint8))
    _replace_chunk(coded, "w", bytes(data))
    sandbox.refuse(coded, "Damaged", "`w`", "w/c/0/0")


@pytest.mark.parametrize("data", [b"\0", b"\x28\xb5\x2f\xfd", b"x" * 100_000])
def test_a_chunk_that_does_not_decompress_is_damaged(
    coded: Forgery, sandbox: Sandbox, data: bytes
) -> None:
    _replace_chunk(coded, "w", data)
    sandbox.refuse(coded, "Damaged", "`w`", "w/c/0/0")


def test_many_tied_leaves_below_a_long_key_take_no_memory(
    forgery: Forgery, sandbox: Sandbox
) -> None:
    structure = forgery.manifest["structure"]
    ties = {"kind": "list", "children": [0] * 200_000}
    structure["keys"].append("k" * 1_000_000)
    structure["children"].append(ties)
    forgery.write()
    sandbox.refuse(forgery, "Untrusted", "characters together")


def test_many_containers_below_a_long_key_take_no_time(
    forgery: Forgery, sandbox: Sandbox
) -> None:
    structure = forgery.manifest["structure"]
    empty = [{"kind": "list", "children": []}] * 100_000
    structure["keys"].append("k" * 2_000_000)
    structure["children"].append({"kind": "list", "children": empty})
    forgery.write()
    sandbox.refuse(forgery, "Untrusted", "characters together")


@pytest.mark.parametrize("size", [1 << 20, 1 << 62, 0, -1, True, 2.0])
def test_a_mesh_that_no_job_has_is_refused(
    forgery: Forgery, sandbox: Sandbox, size: Any
) -> None:
    forgery.manifest["placements"][0]["mesh"]["axes"] = [["data", size]]
    forgery.write()
    sandbox.refuse(forgery, "Untrusted")


def test_a_mesh_of_many_axes_is_refused(forgery: Forgery, sandbox: Sandbox) -> None:
    mesh = forgery.manifest["placements"][0]["mesh"]
    mesh["axes"] = [["data", 2], *([f"a{n}", 2] for n in range(40))]
    mesh["types"] = ["Auto"] * 41
    forgery.write()
    sandbox.refuse(forgery, "LimitExceeded")


@pytest.mark.parametrize(
    "spec", [[["other"], []], [["data"], ["data"]], [["data"]], [[1], []], ["data", []]]
)
def test_a_spec_that_does_not_fit_its_mesh_is_refused(
    forgery: Forgery, sandbox: Sandbox, spec: Any
) -> None:
    forgery.manifest["placements"][forgery.leaf("w")["placement"]]["spec"] = spec
    forgery.write()
    sandbox.refuse(forgery, "Untrusted")
