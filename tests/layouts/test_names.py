"""Names under which leaves are stored: safe, short, and apart on every file system."""

import re
from itertools import pairwise

import pytest
from hypothesis import example, given, strategies as st

import layouts
import pytree
from layouts import InvalidLayout

HOSTILE = [
    "",
    ".",
    "..",
    "...",
    "a",
    "A",
    "a/b",
    "a.b",
    "zarr.json",
    "ZARR.json",
    "Zarr.Json",
    "parts",
    "Parts",
    "manifest.json",
    "~packs",
    "~root",
    "0",
    "007",
    "c",
    "\u00e9",
    "e\u0301",
    "\u00df",
    "SS",
    "\u0130",
    "\x00",
    "\n",
    "'",
    "'0'",
    "%27",
    "~",
    "a~b",
    "\\",
    "x" * 99,
    "x" * 100,
    "x" * 101,
    "X" * 101,
    "x" * 300,
    "\u00e9" * 60,
    "W" * 61 + "~",
]
KEYS = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.text("aA./~", max_size=4),
    st.integers(-2, 12),
    st.booleans(),
    st.none(),
    st.floats(),
)
TREES = st.recursive(
    st.just(0),
    lambda inner: (
        st.dictionaries(KEYS, inner, max_size=5) | st.lists(inner, max_size=3)
    ),
    max_leaves=25,
)


def names_of(tree: object) -> list[str]:
    _, structure = pytree.flatten(tree)
    names = layouts.assign_names(structure.paths)
    assert list(names) == list(structure.paths)
    return list(names.values())


def check_apart(names: list[str]) -> None:
    """Names differ also where case does not count, and none is below another."""
    folded = sorted(name.casefold().split("/") for name in names)
    for one, other in pairwise(folded):
        assert other[: len(one)] != one


def check_safe(names: list[str]) -> None:
    for name in names:
        assert layouts.check_name(name) == name
        assert len(name) <= 800
        for segment in name.split("/"):
            assert re.fullmatch("[A-Za-z0-9._~%-]+", segment)
            assert segment.strip("."), "made of dots alone"
            assert segment.casefold() != "zarr.json"
            assert len(segment) <= 255
        assert name.split("/")[0].casefold() not in ("~packs", "parts", "manifest.json")


@given(TREES)
@example({"a": {"x": 0}, "A": {"x": 0}})
@example({"a": 0, "A": {"b": 0}})
@example({"A": {"b": 0}, "a": 0})
@example({"x" * 101: 0, "X" * 101: 0})
@example({"e" * 90: {"e" * 90: {"e" * 90: {"e" * 90: {"e" * 90: [0, 0]}}}}})
@example({"ZARR.json": 0, "a": {"Zarr.Json": {"b": 0}}, "PARTS": 0})
@example({"...": {"....": 0}, "a": 0})
@example({"x" * 100 + "a": 0, "x" * 100 + "b": 0})
def test_names_of_any_tree_are_safe_and_apart(tree: object) -> None:
    names = names_of(tree)
    check_safe(names)
    check_apart(names)


@given(st.lists(st.sampled_from(["aa", "aA", "Aa", "AA", "b"]), max_size=60))
def test_names_that_differ_only_by_case_are_kept_apart_at_every_depth(
    keys: list[str],
) -> None:
    tree: dict[str, object] = {}
    for one, other in zip(keys, keys[1:] + keys[:1], strict=True):
        held = tree.setdefault(one, {})
        assert isinstance(held, dict)
        held[other] = 0
    names = names_of(tree)
    check_safe(names)
    check_apart(names)


@given(st.lists(st.text("xX", min_size=90, max_size=130), min_size=1, max_size=12))
def test_very_long_paths_are_kept_apart(keys: list[str]) -> None:
    paths: dict[str, None] = {}
    for n, key in enumerate(keys):
        paths["/".join([key] * 9) + f"/{n}"] = None
    names = list(layouts.assign_names(paths).values())
    check_safe(names)
    check_apart(names)


@given(TREES)
def test_plain_paths_are_their_own_names(tree: object) -> None:
    _, structure = pytree.flatten(tree)
    taken: set[str] = set()
    for path, name in layouts.assign_names(structure.paths).items():
        plain = re.fullmatch(r"[a-z0-9_-]{1,20}(/[a-z0-9_-]{1,20})*", path)
        known = {"zarr.json", "manifest.json", "parts"} & set(path.split("/"))
        prefixes = {path[:n] for n in range(1, len(path) + 1)}
        if plain and not known and not prefixes & taken:
            assert name == path
        taken |= {p.casefold() for p in prefixes}


def test_a_name_does_not_depend_on_other_leaves_unless_they_collide() -> None:
    alone = layouts.assign_names(["params/w"])["params/w"]
    among = layouts.assign_names(["a", "params/b", "params/w", "z"])["params/w"]
    assert alone == among == "params/w"


def test_a_leaf_that_is_the_tree_has_a_name() -> None:
    assert layouts.assign_names([""]) == {"": "~root"}


@pytest.mark.parametrize(
    "name", ["a", "a/b", "a.b/c-d", "%2E%2E", "a~0123", "...", "0", "a..b", "..a", "-"]
)
def test_safe_names_are_returned(name: str) -> None:
    assert layouts.check_name(name) is name


UNSAFE = ["", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a b", "a\n"]
OTHERS = ["a\x00", "\\a", "a:b", "\u00e9", "a" * 1025, None, 5, b"a", ["a"]]


@pytest.mark.parametrize("name", [*UNSAFE, *OTHERS])
def test_unsafe_names_are_refused(name: object) -> None:
    with pytest.raises(InvalidLayout, match="expected a safe object name, found"):
        layouts.check_name(name)


def test_packs_and_parts_have_names_that_no_leaf_has() -> None:
    assert layouts.pack_name(3, 0) == "~packs/3-0"
    assert layouts.part_name(3) == "parts/3.json"
    check = ["~packs", "~packs/3-0", "parts", "parts/3.json", "manifest.json"]
    assert not set(names_of({"~packs": {"3-0": 0}, "parts": {"3.json": 0}})) & set(
        check
    )
    assert not set(names_of({"manifest.json": 0, "parts": 0})) & set(check)
