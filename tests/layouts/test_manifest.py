"""Manifests: they come back equal, and no rule of the format can be broken quietly."""

import json
from typing import Any

import pytest
from hypothesis import given

import layouts
from layouts import CorruptLayout, InvalidLayout, Manifest, Part, TooLarge
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
RUNS = ("writers", 0)
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
        "pack_bytes",
        "placements",
        "writers",
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
            "writers": 0,
        },
        {
            "path": "b",
            "kind": "jax",
            "dtype": "bfloat16",
            "shape": [8],
            "piece": [4],
            "writers": 1,
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
    assert body["writers"] == [[0, 2, 1, 2], [1, 1, 0, 1]]
    assert body["pack_bytes"] == 64 << 20
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
    (
        W,
        BODY["leaves"][0] | {"object": [9, 3], "chunk": [9, 3]},
        InvalidLayout,
        "inside",
    ),
    ((*W, "object"), [1 << 47, 3], InvalidLayout, "objects inside"),
    ((*W, "object"), [8, 3], InvalidLayout, "writers of 2 cells"),
    ((*W, "chunk"), ..., InvalidLayout, "list of 2 lengths"),
    ((*W, "chunk"), [0, 3], InvalidLayout, "lengths under"),
    ((*W, "chunk"), [3, 3], InvalidLayout, "objects of whole chunks"),
    ((*B, "piece"), [0], InvalidLayout, "expected pieces of"),
    ((*B, "piece"), [9], InvalidLayout, "expected pieces of"),
    ((*B, "piece"), [4, 1], InvalidLayout, "list of 1 lengths"),
    ((*B, "piece"), [3], InvalidLayout, "writers of 3 cells"),
    ((*W, "writers"), 2, InvalidLayout, "writers from 0 to under 2, found 2 - at `W`"),
    ((*W, "writers"), -1, InvalidLayout, "writers from 0"),
    ((*W, "writers"), True, InvalidLayout, "writers from 0"),
    ((*W, "writers"), [[0, 4]], InvalidLayout, "writers from 0"),
    ((*W, "writers"), None, InvalidLayout, "writers from 0"),
    ((*W, "writers"), 1, InvalidLayout, "writers of 4 cells, found those of 2"),
    (("writers",), {}, InvalidLayout, "a list of writers"),
    (("writers",), [], InvalidLayout, "writers from 0 to under 0"),
    (RUNS, 5, InvalidLayout, "list of runs of writers"),
    (RUNS, {"0": 4}, InvalidLayout, "list of runs of writers"),
    (RUNS, [], InvalidLayout, "writers of 4 cells, found those of 0"),
    (RUNS, [0, 3], InvalidLayout, "writers of 4 cells, found those of 3"),
    (RUNS, [0, 2, 1, 3], InvalidLayout, "writers of 4 cells, found those of 5"),
    (RUNS, [0, 4, 0], InvalidLayout, "a count for each writer"),
    (RUNS, [2, 4], InvalidLayout, "a writer from 0 to under 2"),
    (RUNS, [-1, 4], InvalidLayout, "a writer from 0"),
    (RUNS, [False, 4], InvalidLayout, "a writer from 0"),
    (RUNS, [0, 4, 1, 0], InvalidLayout, "a count of cells from 1"),
    (RUNS, [0, 5, 1, -1], InvalidLayout, "a count of cells from 1"),
    (RUNS, [0, 4.0], InvalidLayout, "a count of cells from 1"),
    (RUNS, [0, 1 << 63], InvalidLayout, "a count of cells from 1"),
    (RUNS, [[0, 4]], InvalidLayout, "a count for each writer"),
    (RUNS, ["0", 4], InvalidLayout, "a writer from 0"),
    (("pack_bytes",), 0, InvalidLayout, "the bytes of a pack from 1"),
    (("pack_bytes",), (64 << 20) + 1, InvalidLayout, "the bytes of a pack from 1"),
    (("pack_bytes",), True, InvalidLayout, "the bytes of a pack from 1"),
    (("pack_bytes",), None, InvalidLayout, "the bytes of a pack from 1"),
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


def test_a_manifest_of_another_kind_or_version_is_refused() -> None:
    with pytest.raises(layouts.UnknownFeature, match="version 1, found 2"):
        parse(BODY, version=2)
    with pytest.raises(layouts.UnknownFeature, match="found 'other'"):
        parse(BODY, requires=["other"])
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


def test_a_part_must_have_the_bytes_that_the_manifest_names() -> None:
    manifest, parts = example()
    data = parts[0].encode()
    layouts.check_part_bytes(manifest, 0, data)
    for process, wrong in [(0, data[:-1]), (0, data + b"\n"), (1, data)]:
        with pytest.raises(CorruptLayout, match=f"expected parts/{process}.json with"):
            layouts.check_part_bytes(manifest, process, wrong)
