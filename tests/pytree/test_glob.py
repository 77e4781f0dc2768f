"""Globs match as a naive reading of them does; renaming follows the rules."""

import pytest
from hypothesis import example, given, strategies as st

from pytree import compile_globs, match, rename_path, rename_paths

CASES = [
    ("params/**", "params", True),
    ("params/**", "params/a/b", True),
    ("params/**", "params2/a", False),
    ("**", "", True),
    ("**", "a/b", True),
    ("", "", True),
    ("", "a", False),
    ("*", "", False),
    ("*", "a", True),
    ("*", "a/b", False),
    ("**/w", "w", True),
    ("**/w", "a/b/w", True),
    ("**/w", "a/bw", False),
    ("a/**/w", "a/w", True),
    ("a/**/w", "a/b/c/w", True),
    ("a/**/**", "a", True),
    ("a/**/**/w", "a/w", True),
    ("l*r_?", "layer_0", True),
    ("l*r_?", "layer_10", False),
    ("[ab]/[0-9]", "a/3", True),
    ("[!ab]", "a", False),
    ("[!ab]", "c", True),
    ("[+-9]x", "/x", False),
    ("[a-]", "-", True),
    ("[&~|]b", "~b", True),
    ("[a&&b]", "&", True),
    ("[[]", "[", True),
    ("[!]", "!", True),
    ("a.c", "abc", False),
    ("(a|b)", "a", False),
    ("%2A", "%2A", True),
    ("A", "a", False),
]


@pytest.mark.parametrize(("glob", "path", "expected"), CASES)
def test_globs_match_what_they_say(glob: str, path: str, expected: bool) -> None:
    assert match(glob, path) is expected


def match_naively(glob: list[str], path: list[str]) -> bool:
    if not glob:
        return not path
    if glob[0] == "**":
        return any(match_naively(glob[1:], path[i:]) for i in range(len(path) + 1))
    return (
        bool(path)
        and match_text(glob[0], path[0])
        and match_naively(glob[1:], path[1:])
    )


def match_text(glob: str, text: str) -> bool:
    if not glob:
        return not text
    if glob[0] == "*":
        return any(match_text(glob[1:], text[i:]) for i in range(len(text) + 1))
    if glob.startswith("[ab]"):
        return text[:1] in ("a", "b") and match_text(glob[4:], text[1:])
    if glob.startswith("[!a]"):
        return text[:1] not in ("", "a") and match_text(glob[4:], text[1:])
    return text[:1] not in ("",) and (
        glob[0] in ("?", text[0]) and match_text(glob[1:], text[1:])
    )


pieces = st.lists(
    st.sampled_from(["a", "b", "*", "?", "[ab]", "[!a]"]), min_size=1, max_size=3
).map("".join)
globs = st.lists(pieces | st.just("**"), max_size=5)
paths = st.lists(st.text("abc", min_size=1, max_size=3), max_size=5)


@given(globs, paths)
@example(["a", "**", "**"], ["a"])
@example(["**", "**"], [])
def test_globs_match_like_the_naive_matcher(glob: list[str], path: list[str]) -> None:
    assert match("/".join(glob), "/".join(path)) is match_naively(glob, path)


@given(st.lists(globs, max_size=3), paths)
def test_many_globs_match_what_any_of_them_does(
    many: list[list[str]], path: list[str]
) -> None:
    matches = compile_globs(["/".join(glob) for glob in many])
    assert matches("/".join(path)) is any(match_naively(glob, path) for glob in many)


@pytest.mark.parametrize("glob", ["[a", "[]", "a//b", "a/", "/a", "[b-a]"])
def test_a_glob_that_means_nothing_is_refused(glob: str) -> None:
    with pytest.raises(ValueError, match="Expected a glob, found"):
        match(glob, "a")


@pytest.mark.parametrize(
    ("rules", "path", "expected"),
    [
        ({"old/**": "new/**"}, "old/a/b", "new/a/b"),
        ({"old/**": "new/**"}, "old", "new"),
        ({"old/**": "new/**"}, "older/a", "older/a"),
        ({"old/**": "**"}, "old/a/b", "a/b"),
        ({"old/**": "**"}, "old", ""),
        ({"**": "model/**"}, "a/b", "model/a/b"),
        ({"**": "model/**"}, "", "model"),
        ({"**/w": "**/kernel"}, "w", "kernel"),
        ({"a/**/w": "b/**/c"}, "a/w", "b/c"),
        ({"layers/*/w": "blocks/*/kernel"}, "layers/3/w", "blocks/3/kernel"),
        ({"h_*/*": "h/*/*"}, "h_12/w", "h/12/w"),
        ({"**/a_*/?": "x/**/b_*/*"}, "p/q/a_1/w", "x/p/q/b_1/w"),
        ({"[ab]/w": "*_w"}, "a/w", "a_w"),
        ({"a/*": "first/*", "a/b": "second"}, "a/b", "first/b"),
        ({"a": "b", "b": "c"}, "a", "b"),
        ({"%2A": "star"}, "%2A", "star"),
        ({}, "a", "a"),
    ],
)
def test_the_first_rule_that_matches_names_the_path(
    rules: dict[str, str], path: str, expected: str
) -> None:
    assert rename_path(path, rules) == expected


@pytest.mark.parametrize(
    "rules",
    [
        {"a/*": "b"},
        {"a": "*"},
        {"a/**": "b/*"},
        {"a/*": "b/**"},
        {"a/?": "b/?"},
        {"c/*": "d/*?"},
    ],
)
def test_rules_with_different_wildcards_are_refused(rules: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="Expected as many wildcards in"):
        rename_path("a/x", {"nothing": "else", **rules})


@pytest.mark.parametrize("new", ["a b", "é", "a//b", "%2f", "'x'"])
def test_a_new_name_that_is_no_path_is_refused(new: str) -> None:
    with pytest.raises(ValueError, match="Expected a rule that makes a path"):
        rename_path("x", {"x": new})


def test_renaming_lists_the_paths_that_share_a_name() -> None:
    with pytest.raises(ValueError, match="share one") as error:
        rename_paths(["a/w", "b/w", "c", "w"], {"*/w": "w*", "wa": "c", "c": "wb"})
    assert str(error.value).splitlines()[1:] == ["  b/w -> wb", "  c -> wb"]


def test_renaming_lists_twenty_of_many_paths() -> None:
    with pytest.raises(ValueError, match="share one") as error:
        rename_paths([f"a/{i}" for i in range(30)], {f"a/{i}": "b" for i in range(30)})
    lines = str(error.value).splitlines()[1:]
    assert lines == [*(f"  a/{i} -> b" for i in range(20)), "  ... and 10 more"]


@given(st.lists(paths, unique_by=tuple, max_size=6))
def test_moving_a_subtree_and_back_changes_nothing(many: list[list[str]]) -> None:
    names = ["/".join(["old", *path]) for path in many]
    moved = rename_paths(names, {"old/**": "x/new/**"})
    assert list(moved) == names
    assert [n.replace("x/new", "old", 1) for n in moved.values()] == names
    back = rename_paths(moved.values(), {"x/new/**": "old/**"})
    assert list(back.values()) == names
