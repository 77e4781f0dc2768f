"""The text of a path says exactly which keys it stands for."""

import math
import re

import pytest
from hypothesis import example, given, strategies as st

from pytree import format_path, parse_path
from tests.pytree._trees import identify, keys

paths = st.lists(keys, max_size=4)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ((), ""),
        (("",), "''"),
        (("", ""), "''/''"),
        (("params", "layers", 0, "w"), "params/layers/0/w"),
        ((-3, 10**30), f"-3/{10**30}"),
        (("0", "-3", "007", "1_0", "+1"), "'0'/'-3'/'007'/'1_0'/'%2B1'"),
        (("\u0661",), "'%D9%A1'"),
        ((0.5, -0.0, 1e30, 1e-7), "0.5/-0.0/1e%2B30/1e-07"),
        ((math.inf, -math.inf, math.nan), "inf/-inf/nan"),
        (("inf", "-Infinity", "nan", "0.5"), "'inf'/'-Infinity'/'nan'/'0.5'"),
        ((True, False, None), "True/False/None"),
        (("True", "False", "None", "true"), "'True'/'False'/'None'/true"),
        ((".", "..", "...", "a.b"), "%2E/%2E%2E/.../a.b"),
        (("a/b", "a b", "a:b", "~"), "a%2Fb/a%20b/a%3Ab/%7E"),
        (("*", "?", "[a]", "%", "'x'"), "%2A/%3F/%5Ba%5D/%25/%27x%27"),
        (("é", "\n", "\x00"), "%C3%A9/%0A/%00"),
        (("w_0", "W-0", "_", "x9"), "w_0/W-0/_/x9"),
    ],
)
def test_each_kind_of_key_has_its_text(keys: tuple[object, ...], text: str) -> None:
    assert format_path(keys) == text  # pyright: ignore[reportArgumentType]
    assert identify(parse_path(text)) == identify(keys)


@given(paths)
def test_parsing_gives_the_keys_back(path: list[str]) -> None:
    assert identify(parse_path(format_path(path))) == identify(path)


@given(paths, paths)
@example(["0"], [0])
@example(["a", "b"], ["a/b"])
@example([""], [])
@example([1], [True])
@example([1], [1.0])
@example([0.0], [-0.0])
@example(["A"], ["a"])
@example(["é"], ["e\u0301"])
def test_different_keys_have_different_texts(
    first: list[object], second: list[object]
) -> None:
    same_text = format_path(first) == format_path(second)  # pyright: ignore[reportArgumentType]
    assert same_text == (identify(first) == identify(second))


@given(paths)
def test_texts_hold_only_characters_that_are_safe_everywhere(path: list[str]) -> None:
    segments = format_path(path).split("/")
    assert all(re.fullmatch(r"'?[A-Za-z0-9_.%-]*'?", s) for s in segments)
    assert "." not in segments
    assert ".." not in segments


@given(st.text(max_size=12) | st.text("aA0-+._e%2F1'/ nifTrue", max_size=8))
@example("/")
@example("a/")
@example("'a'")
@example("'")
@example("%2f")
@example("%61")
@example("-0")
@example("01")
@example("1.50")
@example("1e5")
@example("NaN")
@example("''x")
@example("%FF")
@example("\ud800")
@example("9" * 5000)
@example("%")
def test_a_text_is_the_text_of_its_keys_or_refused(text: str) -> None:
    try:
        found = parse_path(text)
    except ValueError:
        return
    assert format_path(found) == text


@pytest.mark.parametrize(
    "text", ["/", "a/", "a//b", "'a'", "'", "%2f", "%61", "-0", "01", "NaN", "1e5", "é"]
)
def test_texts_that_no_path_has_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Make paths with format_path"):
        parse_path(text)


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"valid Unicode, found 'a\\ud800'"):
        format_path(["a\ud800"])


@pytest.mark.parametrize("key", [(1,), b"a", 1j, frozenset()])
def test_other_types_of_key_are_refused(key: object) -> None:
    with pytest.raises(TypeError, match="Expected a key of type str, int, float"):
        format_path([key])  # pyright: ignore[reportArgumentType]
