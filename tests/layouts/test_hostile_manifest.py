"""Manifests with hostile names, hostile sizes, and values nested beyond use."""

import time
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

import layouts
import pytree
from layouts import InvalidLayout, Leaf, Manifest, TooLarge
from tests.layouts._documents import change, example, seal, unseal

KIND = "ckpt-manifest"
W, B, KEY, N = (("leaves", i) for i in range(4))
BODY = unseal(example()[0].encode())
SHA = "ab" * 32


def parse(body: Any) -> Manifest:
    return layouts.parse_manifest(seal(KIND, body))


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
        ("writers",),
        ("writers", 0),
        ("writers", 0, 1),
        ("pack_bytes",),
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
    {"shape": [1 << 47], "piece": [1], "writers": 2},
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
    body = change(body, ("writers", 2), [0, 1 << 47])
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


@pytest.mark.parametrize("store", [{}, {"object": [1] * 3, "chunk": [1] * 3}])
def test_an_empty_array_that_numpy_could_not_make_is_too_large(
    store: dict[str, Any],
) -> None:
    # numpy.zeros((0, 2**47, 2**47)) is a ValueError: the array is too big.
    leaf = {
        "path": "b",
        "kind": "jax",
        "dtype": "uint8",
        "shape": [0, 1 << 47, 1 << 47],
    }
    if store:
        leaf |= {"array": "b", **store}
    with pytest.raises(TooLarge, match=r"under 2\*\*63 bytes, found shape"):
        parse(change(BODY, B, leaf))


def test_cells_and_chunks_are_bounded_by_what_the_parts_can_describe() -> None:
    def claim(cells: int, nbytes: int) -> Any:
        leaf = {"path": "b", "kind": "jax", "dtype": "uint8", "shape": [cells]}
        body = change(BODY, B, {**leaf, "piece": [1]})
        return change(body, ("parts",), [[nbytes, SHA], [nbytes, SHA]])

    # W has four objects of two chunks, the key is one piece: with b's, 10 bytes a
    # piece, 4 an object, and 8 a chunk of two parts.
    needed = 10 * (1 + 100) + 4 * 4 + 8 * (8 + 1 + 100)
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
