"""The parts of a job, merged: each cell in one part, in the one that was planned."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

import layouts
from layouts import CorruptLayout, InvalidLayout, Manifest, Packed, Part, Writers
from tests.layouts._documents import (
    change,
    example,
    make_part,
    manifests,
    name_data,
    name_parts,
    places,
    seal,
    unseal,
)

KIND = "ckpt-part"
PLAIN, PLAIN_PARTS = example()
CODED, CODED_PARTS = example("zstd")


def encode(parts: Iterable[Part]) -> list[tuple[int, bytes]]:
    return [(part.process, part.encode()) for part in parts]


def check(manifest: Manifest, bodies: dict[int, Any]) -> None:
    """Check parts with these bodies, named as if their processes had claimed them."""
    data = [seal(KIND, body) for body in bodies.values()]
    claimed = replace(manifest, parts=name_data(data))
    layouts.check_parts(claimed, zip(bodies, data, strict=True))


def bodies(manifest: Manifest) -> dict[int, Any]:
    parts = CODED_PARTS if manifest.codec else PLAIN_PARTS
    return {part.process: unseal(part.encode()) for part in parts}


@given(manifests(), st.randoms())
def test_the_parts_of_every_job_are_accepted_in_any_order(
    made: tuple[Manifest, list[Part]], random: Any
) -> None:
    manifest, parts = made
    data = encode(parts)
    random.shuffle(data)
    layouts.check_parts(manifest, iter(data))


@given(manifests(), st.data())
def test_what_is_accepted_is_what_every_reader_of_the_parts_accepts(
    made: tuple[Manifest, list[Part]], data: st.DataObject
) -> None:
    manifest, parts = made
    found = {part.process: unseal(part.encode()) for part in parts}
    process = data.draw(st.sampled_from(sorted(found)))
    at = data.draw(st.sampled_from(list(places(found[process]))[1:]))
    new = data.draw(st.integers(-2, 30) | st.sampled_from([None, True, [], "0", ...]))
    found[process] = change(found[process], at, new)
    try:
        layouts.parse_part(manifest, process, seal(KIND, found[process]))
    except layouts.LayoutError:
        with pytest.raises(layouts.LayoutError, match=f"parts/{process}.json"):
            check(manifest, found)
    else:
        names = [f[0].casefold() for body in found.values() for f in body["files"]]
        assume(len(set(names)) == len(names))
        check(manifest, found)


def test_a_part_that_is_not_the_one_that_was_claimed_is_corrupt() -> None:
    data = encode(PLAIN_PARTS)
    other = make_part(PLAIN, 1, seed=7).encode()
    with pytest.raises(CorruptLayout, match=r"parts/1.json with its SHA-256"):
        layouts.check_parts(PLAIN, [data[0], (1, other)])


@pytest.mark.parametrize(
    ("processes", "message"),
    [
        ([], r"parts of 2 processes, found none of \[0, 1\]"),
        ([1], r"parts of 2 processes, found none of \[0\]"),
        ([0, 1, 0], "parts/0.json once, found it twice"),
        ([0, 2], "a process with a part from 0 to under 2, found 2"),
        ([-1], "a process with a part from 0"),
    ],
)
def test_each_process_has_one_part(processes: list[int], message: str) -> None:
    data = dict(encode(PLAIN_PARTS))
    with pytest.raises(InvalidLayout, match=message):
        layouts.check_parts(PLAIN, [(p, data.get(p, b"")) for p in processes])


def move_object(found: dict[int, Any], source: int, target: int | None) -> None:
    """Move the last object of one part to the front or end of another."""
    given, crc = found[source]["objects"], ""
    cell = given["object"].pop(), given["leaf"].pop()
    given["crc32c"], crc = given["crc32c"][:-16], given["crc32c"][-16:]
    if target is not None:
        taken = found[target]["objects"]
        at = 0 if target > source else len(taken["leaf"])
        taken["object"].insert(at, cell[0])
        taken["leaf"].insert(at, cell[1])
        taken["crc32c"] = crc + taken["crc32c"] if at == 0 else taken["crc32c"] + crc


def test_an_object_in_no_part_is_named_with_the_process_that_should_have_it() -> None:
    found = bodies(PLAIN)
    move_object(found, 1, None)
    message = r"expected parts/1.json with object 3 of `W`, found it in no part"
    with pytest.raises(InvalidLayout, match=message):
        check(PLAIN, found)
    found = bodies(PLAIN)
    for column in ("leaf", "piece", "pack", "offset", "length"):
        found[0]["packs"][column] = found[0]["packs"][column][:1]
    found[0]["packs"]["crc32c"] = found[0]["packs"]["crc32c"][:8]
    message = r"expected parts/0.json with piece 0 of `key`, found it in no part"
    with pytest.raises(InvalidLayout, match=message):
        check(PLAIN, found)


@pytest.mark.parametrize(("source", "target", "cell"), [(0, 1, 1), (1, 0, 3)])
def test_an_object_in_the_part_of_another_process_is_refused(
    source: int, target: int, cell: int
) -> None:
    found = bodies(PLAIN)
    move_object(found, source, target)
    message = (
        f"expected parts/{source}.json alone with object {cell} of `W`, "
        f"found parts/{target}.json"
    )
    with pytest.raises(InvalidLayout, match=message):
        check(PLAIN, found)


def test_an_object_in_two_parts_is_refused() -> None:
    found = bodies(PLAIN)
    move_object(found, 0, 1)
    found[0] = bodies(PLAIN)[0]
    message = "object 1 of `W` in one part, found it in parts/0.json and parts/1.json"
    with pytest.raises(InvalidLayout, match=message):
        check(PLAIN, found)


OBJECTS, PACKS = ("objects",), ("packs",)
WRONG: list[tuple[tuple[Any, ...], Any, str]] = [
    ((*OBJECTS, "object"), [1, 0], "in order, each once, found object 0 in row 1"),
    ((*OBJECTS, "object"), [0, 0], "in order, each once, found object 0 in row 1"),
    ((*OBJECTS, "object"), [0, 4], "found object 4 in row 1 - at `W`"),
    ((*OBJECTS, "object"), [0], "columns of 2 objects, found 1 in 'object'"),
    ((*OBJECTS, "object"), [0, 1.0], "column 'object' from 0 to under"),
    ((*OBJECTS, "object"), [False, True], "column 'object' from 0 to under"),
    ((*OBJECTS, "object"), [0, -1], "column 'object' from 0 to under"),
    ((*OBJECTS, "object"), [0, 1 << 62], "column 'object' from 0 to under"),
    ((*OBJECTS, "object"), None, "a list of numbers in the objects' column"),
    ((*OBJECTS, "leaf"), [0, 4], "column 'leaf' from 0 to under 4"),
    ((*OBJECTS, "leaf"), [0, 1], "found object 1 in row 1 - at `b`"),
    ((*OBJECTS, "leaf"), [0, 3], "found object 1 in row 1 - at `n`"),
    ((*OBJECTS, "crc32c"), "0" * 24, "4 checksums"),
    ((*PACKS, "leaf"), [0, 2], "found piece 1 in row 0 - at `W`"),
    ((*PACKS, "leaf"), [1, 3], "found piece 0 in row 1 - at `n`"),
    ((*PACKS, "piece"), [2, 0], "found piece 2 in row 0 - at `b`"),
    ((*PACKS, "pack"), [0, 1], "0 in row 1 of the packs' column 'pack'"),
    ((*PACKS, "offset"), [0, 9], "8 in row 1 of the packs' column 'offset'"),
    ((*PACKS, "length"), [8, 9], "8 in row 1 of the packs' column 'length'"),
    ((*PACKS, "length"), [8], "a list of 2 rows in the packs' column 'length'"),
    ((*PACKS, "crc32c"), "", "2 checksums"),
    (("process",), 1, "the part to have process 0, found 1"),
    (("commit",), "0" * 16, "a part of commit 0123456789abcdef"),
    (("files",), {}, "a list of files"),
]


@pytest.mark.parametrize(("at", "new", "message"), WRONG, ids=str)
def test_a_wrong_part_is_named(at: tuple[Any, ...], new: Any, message: str) -> None:
    found = bodies(PLAIN)
    found[0] = change(found[0], at, new)
    with pytest.raises(InvalidLayout, match=message) as caught:
        check(PLAIN, found)
    assert str(caught.value).endswith("- in parts/0.json")


@pytest.mark.parametrize("lengths", [[], [24] * 3, [24, 24, 24, 0], [24, 24, True, 24]])
def test_lengths_that_no_codec_makes_are_refused(lengths: list[int]) -> None:
    found = bodies(CODED)
    check(CODED, found)
    found[1]["objects"]["lengths"] = lengths
    with pytest.raises(InvalidLayout, match=r"length.* - in parts/1.json"):
        check(CODED, found)


def test_a_file_in_two_parts_is_refused() -> None:
    found = bodies(PLAIN)
    found[1]["files"] = [["A/zarr.json", 1, 1]]
    with pytest.raises(InvalidLayout, match=r"a/zarr.json in one part, found it in"):
        check(PLAIN, found)


@pytest.mark.parametrize("runs", [((0, 2), (1, 1)), ((0, 2), (1, 3))])
def test_writers_of_more_or_fewer_cells_than_there_are_prove_nothing(
    runs: tuple[tuple[int, int], ...],
) -> None:
    first, *rest = PLAIN.leaves
    assert isinstance(first.store, layouts.Chunked)
    wrong = replace(first, store=replace(first.store, writers=Writers(runs)))
    manifest = replace(PLAIN, leaves=(wrong, *rest))
    with pytest.raises(InvalidLayout, match=r"writers of 4 cells, found .* at `W`"):
        layouts.check_parts(manifest, encode(PLAIN_PARTS))


@given(manifests(), st.integers(1, 60))
def test_the_sizes_of_all_packs_are_those_of_their_rows(
    made: tuple[Manifest, list[Part]], limit: int
) -> None:
    manifest, parts = made
    sizes: dict[str, int] = {}
    for process in range(len(parts)):
        for row in layouts.pack_rows(manifest.leaves, process, limit=limit):
            name = f"~packs/{process}-{row.pack}"
            sizes[name] = sizes.get(name, 0) + row.length
    assert layouts.pack_sizes(manifest.leaves, limit=limit) == sizes


def test_a_smaller_pack_is_what_the_manifest_says() -> None:
    manifest = replace(PLAIN, pack_bytes=15)
    parts = [make_part(manifest, process) for process in range(2)]
    assert [row.pack for row in parts[0].rows] == [0, 1]
    manifest = name_parts(manifest, parts)
    assert layouts.parse_manifest(manifest.encode()).pack_bytes == 15
    layouts.check_parts(manifest, encode(parts))
    assert layouts.parse_part(manifest, 0, parts[0].encode()).rows == parts[0].rows
    with pytest.raises(InvalidLayout, match=r"1 in row 1 of the packs' column 'pack'"):
        check(manifest, bodies(PLAIN))


def test_an_empty_tree_has_empty_parts() -> None:
    leaf = replace(PLAIN.leaves[1], shape=(0,), store=Packed((0,)))
    manifest = replace(PLAIN, leaves=(leaf,))
    parts = [make_part(manifest, process) for process in range(2)]
    layouts.check_parts(name_parts(manifest, parts), encode(parts))
