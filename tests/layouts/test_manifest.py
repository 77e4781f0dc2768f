"""Manifests: they come back equal, and no rule of the format can be broken quietly."""

import json
import time
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

import layouts
import pytree
from layouts import CorruptLayout, InvalidLayout, Leaf, Manifest, Part, TooLarge
from tests.layouts._documents import (
    COMMIT,
    change,
    example,
    manifests,
    seal,
    unseal,
)

KIND = "ckpt-manifest"
W, B, KEY, N = (("leaves", i) for i in range(4))
BODY = unseal(example()[0].encode())
SHA = "ab" * 32


def parse(body: Any, **header: Any) -> Manifest:
    return layouts.parse_manifest(seal(KIND, body, **header))


@given(manifests())
def test_a_manifest_is_parsed_as_it_was_encoded(
    made: tuple[Manifest, list[Part]],
) -> None:
    manifest, _ = made
    data = manifest.encode()
    found = layouts.parse_manifest(data)
    assert found == manifest
    assert found.encode() == data
    assert found.processes == len(manifest.parts)
    assert repr(found.leaves) == repr(manifest.leaves)


def test_the_body_is_plain_json_that_others_can_read() -> None:
    manifest, _ = example("zstd")
    body = json.loads(manifest.encode().splitlines()[1])
    assert list(body) == [
        "step",
        "commit",
        "processes",
        "codec",
        "metrics",
        "structure",
        "placements",
        "leaves",
        "parts",
        "meta",
    ]
    assert body["leaves"] == [
        {
            "path": "W",
            "kind": "jax",
            "dtype": "float32",
            "shape": [8, 6],
            "placement": 0,
            "array": "W",
            "object": [4, 3],
            "chunk": [2, 3],
            "writers": [[0, 2], [1, 2]],
        },
        {
            "path": "b",
            "kind": "jax",
            "dtype": "bfloat16",
            "shape": [8],
            "piece": [4],
            "writers": [[1, 1], [0, 1]],
        },
        {"path": "key", "kind": "key", "dtype": "uint32", "shape": [2], "impl": "fry"},
        {"path": "n", "kind": "int", "value": "0x5"},
    ]
    assert body["placements"] == [
        {
            "mesh": {"axes": [["x", 2], ["y", 2]], "types": ["Auto", "Auto"]},
            "spec": [["x"], ["y"]],
            "memory": "pinned_host",
        }
    ]
    # 48 float32, 8 bfloat16 and 2 uint32; the int is in the manifest.
    assert manifest.nbytes == 192 + 16 + 8


TAMPERED: list[tuple[tuple[Any, ...], Any, type[Exception], str]] = [
    ((), [], InvalidLayout, "a manifest with the fields"),
    ((), None, InvalidLayout, "a manifest with the fields"),
    (("more",), 1, InvalidLayout, "a manifest with the fields"),
    (("meta",), ..., InvalidLayout, "a manifest with the fields"),
    (("step",), -1, InvalidLayout, "a step from 0"),
    (("step",), True, InvalidLayout, "a step from 0"),
    (("step",), 7.0, InvalidLayout, "a step from 0"),
    (("step",), 1 << 63, InvalidLayout, "a step from 0"),
    (("step",), "7", InvalidLayout, "a step from 0"),
    (("commit",), 12345678, InvalidLayout, "a commit id"),
    (("commit",), "../../etc", InvalidLayout, "a commit id"),
    (("commit",), "ABCDEF0123456789", InvalidLayout, "a commit id"),
    (("commit",), "abcdef0", InvalidLayout, "a commit id"),
    (("commit",), "a" * 65, InvalidLayout, "a commit id"),
    (("commit",), COMMIT + "\n", InvalidLayout, "a commit id"),
    (("codec",), "lzma", InvalidLayout, "one of the codecs"),
    (("codec",), [], InvalidLayout, "one of the codecs"),
    (("codec",), False, InvalidLayout, "one of the codecs"),
    (("metrics",), [], InvalidLayout, "metrics to be an object"),
    (("meta",), None, InvalidLayout, "meta to be an object"),
    (("processes",), 1, InvalidLayout, "a part for each process, found 2 for 1"),
    (("processes",), 2.0, InvalidLayout, "a part for each process"),
    (("parts",), [], InvalidLayout, "a part for each process, found 0"),
    (("parts",), {}, InvalidLayout, "a list of parts"),
    (("parts", 0), [1], InvalidLayout, "bytes and SHA-256 of parts/0.json"),
    (("parts", 1), "ab", InvalidLayout, "bytes and SHA-256 of parts/1.json"),
    (("parts", 0, 0), 0, InvalidLayout, "the bytes of parts/0.json from 1"),
    (("parts", 0, 0), -5, InvalidLayout, "the bytes of parts/0.json from 1"),
    (("parts", 0, 0), True, InvalidLayout, "the bytes of parts/0.json from 1"),
    (("parts", 0, 0), 1 << 40, InvalidLayout, "the bytes of parts/0.json from 1"),
    (("parts", 0, 1), SHA.upper(), InvalidLayout, "the SHA-256 of parts/0.json"),
    (("parts", 0, 1), SHA[:-1], InvalidLayout, "the SHA-256 of parts/0.json"),
    (("parts", 0, 1), None, InvalidLayout, "the SHA-256 of parts/0.json"),
    (("structure",), 1, InvalidLayout, "leaf number"),
    (("structure",), {"kind": "object", "type": "os.system"}, InvalidLayout, "kind"),
    (("structure", "children"), [0, 1, 3, 2], InvalidLayout, "leaf number"),
    (("structure", "keys"), ["b", "W", "key", "n"], InvalidLayout, "in order"),
    (("leaves",), {}, InvalidLayout, "a list of leaves"),
    (("leaves", 3), ..., InvalidLayout, "the leaves that the structure names"),
    (W, [], InvalidLayout, "a leaf's path and kind"),
    (W, 5, InvalidLayout, "a leaf's path and kind"),
    ((*W, "path"), ..., InvalidLayout, "a leaf's path and kind"),
    ((*W, "path"), 5, InvalidLayout, "a leaf's path and kind"),
    ((*W, "path"), "X", InvalidLayout, "the leaves that the structure names"),
    ((*W, "kind"), ["jax"], InvalidLayout, "a leaf's path and kind"),
    ((*W, "kind"), "pickle", InvalidLayout, "stored array, found kind 'pickle'"),
    ((*W, "kind"), "int", InvalidLayout, "stored array, found kind 'int'"),
    ((*W, "more"), 1, InvalidLayout, "a stored array"),
    ((*W, "piece"), [8, 6], InvalidLayout, "a stored array"),
    ((*W, "value"), 1, InvalidLayout, "a small value"),
    ((*B, "array"), "b", InvalidLayout, "a stored array"),
    ((*B, "object"), [8], InvalidLayout, "a stored array"),
    ((*W, "dtype"), ..., InvalidLayout, "known dtypes"),
    ((*W, "dtype"), "object", InvalidLayout, "known dtypes, found 'object'"),
    ((*W, "dtype"), ["float32"], InvalidLayout, "known dtypes"),
    ((*W, "dtype"), "<f4", InvalidLayout, "known dtypes"),
    ((*W, "shape"), ..., InvalidLayout, "list of lengths"),
    ((*W, "shape"), 48, InvalidLayout, "list of lengths"),
    ((*W, "shape"), "86", InvalidLayout, "list of lengths"),
    ((*W, "shape"), {"8": 6}, InvalidLayout, "list of lengths"),
    ((*W, "shape"), [8, -6], InvalidLayout, "lengths under"),
    ((*W, "shape"), [8, 6.0], InvalidLayout, "lengths under"),
    ((*W, "shape"), [True, 6], InvalidLayout, "lengths under"),
    ((*W, "shape"), [1 << 48, 6], InvalidLayout, "lengths under"),
    ((*W, "shape"), [8, 6, 1], InvalidLayout, "spec of rank 3, found 2"),
    ((*W, "shape"), [8], InvalidLayout, "spec of rank 1, found 2"),
    ((*W, "shape"), [9, 6], InvalidLayout, "writers of 6 cells"),
    ((*W, "shape"), [2, 6], InvalidLayout, "objects inside"),
    ((*W, "shape"), [1] * 33, TooLarge, "rank of at most 32"),
    ((*W, "placement"), 1, InvalidLayout, "a placement from 0 to under 1"),
    ((*W, "placement"), -1, InvalidLayout, "a placement from 0"),
    ((*W, "placement"), False, InvalidLayout, "a placement from 0"),
    ((*W, "weak"), 1, InvalidLayout, "weak to be a bool"),
    ((*W, "weak"), None, InvalidLayout, "weak to be a bool"),
    ((*W, "impl"), "fry", InvalidLayout, "impl on keys alone"),
    ((*W, "impl"), None, InvalidLayout, "impl on keys alone"),
    ((*KEY, "impl"), ..., InvalidLayout, "a key of uint32 with its impl"),
    ((*KEY, "impl"), 5, InvalidLayout, "a key of uint32 with its impl"),
    ((*KEY, "dtype"), "float32", InvalidLayout, "a key of uint32 with its impl"),
    ((*W, "object"), ..., InvalidLayout, "list of 2 lengths"),
    ((*W, "object"), [4], InvalidLayout, "list of 2 lengths"),
    ((*W, "object"), [4, 0], InvalidLayout, "lengths under"),
    ((*W, "object"), [3, 3], InvalidLayout, "objects of whole chunks"),
    ((*W, "object"), [10, 3], InvalidLayout, "objects inside"),
    ((*W, "object"), [1 << 47, 3], InvalidLayout, "objects inside"),
    ((*W, "object"), [8, 3], InvalidLayout, "writers of 2 cells"),
    ((*W, "chunk"), ..., InvalidLayout, "list of 2 lengths"),
    ((*W, "chunk"), [0, 3], InvalidLayout, "lengths under"),
    ((*W, "chunk"), [3, 3], InvalidLayout, "objects of whole chunks"),
    ((*B, "piece"), [0], InvalidLayout, "expected pieces of"),
    ((*B, "piece"), [9], InvalidLayout, "expected pieces of"),
    ((*B, "piece"), [4, 1], InvalidLayout, "list of 1 lengths"),
    ((*B, "piece"), [3], InvalidLayout, "writers of 3 cells"),
    ((*W, "writers"), 5, InvalidLayout, "list of runs of writers"),
    ((*W, "writers"), {"0": 4}, InvalidLayout, "list of runs of writers"),
    ((*W, "writers"), [], InvalidLayout, "writers of 4 cells"),
    ((*W, "writers"), [[0, 3]], InvalidLayout, "writers of 4 cells"),
    ((*W, "writers"), [[0, 2], [1, 3]], InvalidLayout, "writers of 4 cells"),
    ((*W, "writers"), [[0, 4, 0]], InvalidLayout, "a writer and its count"),
    ((*W, "writers"), [[2, 4]], InvalidLayout, "a writer from 0 to under 2"),
    ((*W, "writers"), [[-1, 4]], InvalidLayout, "a writer from 0"),
    ((*W, "writers"), [[False, 4]], InvalidLayout, "a writer from 0"),
    ((*W, "writers"), [[0, 4], [1, 0]], InvalidLayout, "a count of cells from 1"),
    ((*W, "writers"), [[0, 5], [1, -1]], InvalidLayout, "a count of cells from 1"),
    ((*W, "writers"), [[0, 4.0]], InvalidLayout, "a count of cells from 1"),
    ((*W, "writers"), ["04"], InvalidLayout, "a writer and its count"),
    ((*N, "value"), [["0x5"]], TooLarge, "fewer nested values"),
    ((*N, "kind"), "jax", InvalidLayout, "a small value"),
    ((*N, "kind"), "tuple", InvalidLayout, "a small value"),
    ((*N, "value"), ..., InvalidLayout, "a stored array"),
    ((*N, "dtype"), "int8", InvalidLayout, "a small value"),
    (("placements",), None, InvalidLayout, "a list of placements"),
    (("placements", 0), [], InvalidLayout, "a placement with the fields"),
    (("placements", 0, "more"), 1, InvalidLayout, "a placement with the fields"),
    (("placements", 0, "memory"), ["a"], InvalidLayout, "a memory kind"),
    (("placements", 0, "mesh"), None, InvalidLayout, r"axes of \[\]"),
    (("placements", 0, "mesh"), [], InvalidLayout, "a mesh with the fields"),
    (("placements", 0, "mesh", "types"), "AA", InvalidLayout, "a list of names"),
    (("placements", 0, "mesh", "types"), ["Auto"], InvalidLayout, "axes with types"),
    (("placements", 0, "mesh", "types", 0), "Any", InvalidLayout, "types of axes"),
    (("placements", 0, "mesh", "types", 0), [], InvalidLayout, "a list of names"),
    (("placements", 0, "mesh", "axes"), {}, InvalidLayout, "a list of axes"),
    (("placements", 0, "mesh", "axes", 0), "x2", InvalidLayout, "name and size"),
    (("placements", 0, "mesh", "axes", 0), {"x": 2}, InvalidLayout, "name and size"),
    (("placements", 0, "mesh", "axes", 0, 0), 5, InvalidLayout, "the name of an axis"),
    (("placements", 0, "mesh", "axes", 0, 0), "y", InvalidLayout, "distinct axes"),
    (("placements", 0, "mesh", "axes", 0, 1), 0, InvalidLayout, "the size of an axis"),
    (("placements", 0, "mesh", "axes", 0, 1), True, InvalidLayout, "size of an axis"),
    (
        ("placements", 0, "mesh", "axes", 0, 1),
        1 << 40,
        InvalidLayout,
        "size of an axis",
    ),
    (("placements", 0, "mesh", "axes", 0, 1), (1 << 20) - 1, TooLarge, "positions"),
    (("placements", 0, "spec"), "xy", InvalidLayout, "a list of axes"),
    (("placements", 0, "spec"), ["x", "y"], InvalidLayout, "a list of names"),
    (("placements", 0, "spec"), [{"x": 1}, []], InvalidLayout, "a list of names"),
    (("placements", 0, "spec"), [["x"], ["x"]], InvalidLayout, "each once"),
    (("placements", 0, "spec"), [["z"], []], InvalidLayout, "found \\['z'\\]"),
    (("placements", 0, "spec"), [[["x"]], []], InvalidLayout, "a list of names"),
    (("placements", 0, "spec"), [["x"]], InvalidLayout, "a spec of rank 2, found 1"),
]


@pytest.mark.parametrize(("at", "new", "error", "message"), TAMPERED, ids=str)
def test_a_tampered_manifest_is_refused(
    at: tuple[Any, ...], new: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        parse(change(BODY, at, new))
    assert caught.type is error
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../W",
        "a/../../W",
        ".",
        "./W",
        "a/./W",
        "/W",
        "/",
        "",
        "a//b",
        "a/",
        "C:\\W",
        "a\\b",
        "a\x00b",
        "W\n",
        "a b",
        "\u00e9",
        "file://W",
        "s3://bucket/W",
        "a?b",
        "a" * 1025,
        5,
        None,
        ["W"],
    ],
)
def test_a_name_that_could_leave_the_checkpoint_is_refused(name: Any) -> None:
    with pytest.raises(InvalidLayout, match=r"safe object name, found .* - at `W`"):
        parse(change(BODY, (*W, "array"), name))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("~packs/0-0", "the name of an array"),
        ("~Packs", "the name of an array"),
        ("parts/0.json", "the name of an array"),
        ("manifest.json", "the name of an array"),
        ("Manifest.json/x", "the name of an array"),
        ("zarr.json", "the name of an array"),
        ("a/ZARR.json/x", "the name of an array"),
    ],
)
def test_a_name_of_something_else_is_refused(name: str, message: str) -> None:
    with pytest.raises(InvalidLayout, match=message):
        parse(change(BODY, (*W, "array"), name))


def two_arrays(one: str, other: str) -> Any:
    """Return the body of a manifest with two Zarr arrays of these names."""
    first = BODY["leaves"][0]
    second = {**first, "path": "b", "array": other}
    leaves = [{**first, "array": one}, second, *BODY["leaves"][2:]]
    return change(BODY, ("leaves",), leaves)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("W", "W"),
        ("W", "w"),
        ("a/W", "A/w"),
        ("W", "W/c"),
        ("W/c/0/0", "W"),
        ("a", "A/b/c"),
        ("a/b", "a/b/c"),
    ],
)
def test_names_equal_but_for_case_or_one_inside_another_are_refused(
    one: str, other: str
) -> None:
    with pytest.raises(InvalidLayout, match="distinct array names, none inside"):
        parse(two_arrays(one, other))


@pytest.mark.parametrize(("one", "other"), [("a", "b"), ("a/x", "a.x"), ("a-b", "a/b")])
def test_names_side_by_side_are_fine(one: str, other: str) -> None:
    leaves = parse(two_arrays(one, other)).leaves
    assert [leaf.store.name for leaf in leaves[:2]] == [one, other]  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]


def test_a_manifest_of_another_kind_or_version_is_refused() -> None:
    with pytest.raises(layouts.UnknownFeature, match="version 1, found 2"):
        parse(BODY, version=2)
    with pytest.raises(layouts.UnknownFeature, match="found 'reuse'"):
        parse(BODY, requires=["reuse"])
    with pytest.raises(
        InvalidLayout, match="expected ckpt-manifest, found 'ckpt-part'"
    ):
        layouts.parse_manifest(seal("ckpt-part", BODY))


def test_a_truncated_manifest_is_corrupt() -> None:
    data = example()[0].encode()
    for length in (0, 1, data.index(b"\n"), data.index(b"\n") + 1, len(data) - 1):
        with pytest.raises(CorruptLayout):
            layouts.parse_manifest(data[:length])


def test_a_refusal_is_short_and_printable_whatever_the_document_says() -> None:
    long, escape = "x" * 5000, "\x1b[2J"
    axes = ("placements", 0, "mesh", "axes", 0, 0)
    for at in [(*W, "path"), (*W, "kind"), (*W, "dtype"), (*W, long), axes, ("codec",)]:
        for text in (long, escape):
            with pytest.raises(InvalidLayout) as caught:
                parse(change(change(BODY, (*W, "weak"), 1), at, text))
            assert len(str(caught.value)) < 600
            assert str(caught.value).isprintable()


def test_unknown_keys_are_kept_under_meta_and_metrics() -> None:
    found = parse(change(BODY, ("meta",), {"began": 1, "more": {"a": [1]}}))
    assert found.meta == {"began": 1, "more": {"a": [1]}}


def nest(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("depth", [17, 300, 800])
@pytest.mark.parametrize("field", ["metrics", "meta"])
def test_metrics_and_meta_nested_beyond_use_are_too_large(
    field: str, depth: int
) -> None:
    with pytest.raises(TooLarge, match="fewer nested values"):
        parse(change(BODY, (field,), nest(depth)))


@pytest.mark.parametrize("depth", [120, 300, 600, 900])
@pytest.mark.parametrize(
    "at",
    [
        ("step",),
        ("commit",),
        ("codec",),
        ("structure",),
        ("structure", "keys", 0),
        ("structure", "children", 0),
        ("placements", 0),
        ("placements", 0, "spec", 0),
        ("parts", 0),
        W,
        (*W, "path"),
        (*W, "dtype"),
        (*W, "shape"),
        (*W, "array"),
        (*W, "writers"),
        (*N, "value"),
    ],
    ids=str,
)
def test_values_nested_beyond_use_are_refused_wherever_they_stand(
    at: tuple[Any, ...], depth: int
) -> None:
    with pytest.raises(layouts.LayoutError):
        parse(change(BODY, at, nest(depth)))


HUGE: list[dict[str, Any]] = [
    {"shape": [1 << 47], "piece": [1], "writers": [[0, 1 << 47]]},
    {"shape": [1 << 47], "piece": [1]},
    {"shape": [1 << 47]},
    {"shape": [1 << 47] * 32, "piece": [1] * 32},
    {"shape": [0, 1 << 47], "piece": [1, 1 << 47]},
    {"shape": [1 << 47], "array": "a", "object": [1], "chunk": [1]},
    {"shape": [1 << 30], "array": "a", "object": [1 << 30], "chunk": [1]},
    {"shape": [1 << 47], "array": "a", "object": [1 << 47], "chunk": [1 << 47]},
    {"shape": [1 << 20] * 3, "array": "a", "object": [1] * 3, "chunk": [1] * 3},
    {"shape": [1 << 22], "array": "a", "object": [1], "chunk": [1]},
]


@pytest.mark.parametrize("fields", HUGE, ids=str)
def test_nothing_of_a_size_that_a_manifest_claims_is_made(
    fields: dict[str, Any],
) -> None:
    placement = {"mesh": None, "spec": None, "memory": None}
    body = change(BODY, ("placements", 0), placement)
    body = change(body, B, {"path": "b", "kind": "jax", "dtype": "uint8"} | fields)
    data = seal(KIND, body)
    began = time.process_time()
    tracemalloc.start()
    try:
        try:
            manifest = layouts.parse_manifest(data)
        except TooLarge:
            pass
        else:
            # An array without elements, whatever its other lengths: nothing to plan.
            assert 0 in fields["shape"]
            layouts.plan_write(manifest.leaves, 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert time.process_time() - began < 5


def test_cells_and_chunks_are_bounded_by_what_the_parts_can_describe() -> None:
    def claim(cells: int, nbytes: int) -> Any:
        leaf = {"path": "b", "kind": "jax", "dtype": "uint8", "shape": [cells]}
        body = change(BODY, B, {**leaf, "piece": [1]})
        return change(body, ("parts",), [[nbytes, SHA], [nbytes, SHA]])

    # W has four cells of two chunks, the key is one of one: with b's, 10 bytes a cell
    # and 8 a chunk of two parts.
    needed = 10 * (4 + 1 + 100) + 8 * (8 + 1 + 100)
    parse(claim(100, needed // 2))
    with pytest.raises(TooLarge, match="parts describe, found 105 and 109"):
        parse(claim(100, needed // 2 - 1))
    with pytest.raises(TooLarge, match="parts describe"):
        parse(claim(2 << 20, 64 << 20))


def test_zero_size_leaves_need_no_room() -> None:
    paths = tuple(str(i) for i in range(1000))
    _, structure = pytree.flatten([0] * 1000)
    leaves = tuple(
        Leaf(p, "jax", "float32", (0, 5), store=layouts.Packed((0, 5))) for p in paths
    )
    manifest, _ = example()
    made = replace(manifest, structure=structure, leaves=leaves)
    assert layouts.parse_manifest(made.encode()) == made


def test_a_part_must_have_the_bytes_that_the_manifest_names() -> None:
    manifest, parts = example()
    data = parts[0].encode()
    layouts.check_part_bytes(manifest, 0, data)
    for process, wrong in [(0, data[:-1]), (0, data + b"\n"), (1, data)]:
        with pytest.raises(CorruptLayout, match=f"expected parts/{process}.json with"):
            layouts.check_part_bytes(manifest, process, wrong)
