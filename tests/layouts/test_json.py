"""Strict JSON and the frame of documents."""

import hashlib
import json
import resource
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, strategies as st

import layouts
from layouts import CorruptLayout, InvalidLayout, TooLarge, UnknownFeature
from tests.layouts._documents import TEXT, dump, seal

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON)
def test_what_is_dumped_is_parsed_as_it_was(value: Any) -> None:
    text = layouts.dump_json(value)
    assert text.isascii()
    assert b"\n" not in text
    assert repr(layouts.parse_json(text)) == repr(value) == repr(json.loads(text))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_lacks_are_not_dumped(value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        layouts.dump_json({"a": [value]})


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (b"", InvalidLayout, "strict JSON"),
        (b"{", InvalidLayout, "strict JSON"),
        (b"[1] 2", InvalidLayout, "Extra data"),
        (b"\xff", InvalidLayout, "utf-8"),
        (b'"\xed\xa0\x80"', InvalidLayout, "utf-8"),
        ('"\ud83d"'.encode("utf-16", "surrogatepass"), InvalidLayout, "utf-8"),
        (b'{"a":1,"b":2,"a":1}', InvalidLayout, "unique JSON keys"),
        (b'[{"\\u0061":1,"a":1}]', InvalidLayout, "unique JSON keys"),
        (b"NaN", InvalidLayout, "finite JSON number, found NaN"),
        (b"[Infinity]", InvalidLayout, "finite JSON number, found Infinity"),
        (b"[-Infinity]", InvalidLayout, "finite JSON number, found -Infinity"),
        (b"1e999", InvalidLayout, "finite JSON number, found 1e999"),
        (b"-1e999", InvalidLayout, "finite JSON number, found -1e999"),
        (b'"\\ud800"', InvalidLayout, "surrogates not allowed"),
        (b'{"\\uDFFF":1}', InvalidLayout, "surrogates not allowed"),
        (b'"\\ude00\\ud83d"', InvalidLayout, "surrogates not allowed"),
        (b"9" * 5000, InvalidLayout, "limit"),
        (b"9" * 10_000_000, InvalidLayout, "limit"),
        (b"1" * 10_000_000 + b".0", InvalidLayout, "finite"),
        (b"[" * 100_000, TooLarge, "depth"),
        (b'{"a":' * 100_000, TooLarge, "depth"),
        (b"[" * 100_000 + b"]" * 100_000, TooLarge, "depth"),
        (b"[" + b"0," * (2 << 20) + b"0]", TooLarge, "JSON values"),
        (b"[" + b"[]," * (1 << 20) + b"0]", TooLarge, "JSON values"),
        (b" " * ((64 << 20) + 1), TooLarge, "bytes of JSON"),
    ],
)
def test_json_that_is_not_strict_or_not_small_is_refused(
    text: bytes, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        layouts.parse_json(text)
    assert caught.type is error
    assert len(str(caught.value)) < 400


def test_pairs_of_surrogates_and_escaped_backslashes_are_text() -> None:
    assert layouts.parse_json(b'"\\ud83d\\ude00"') == "\U0001f600"
    assert layouts.parse_json(b'"\\\\ud800"') == "\\ud800"


def test_a_limit_of_its_own_is_kept() -> None:
    assert layouts.parse_json(b"[1]", limit=3) == [1]
    with pytest.raises(TooLarge, match="at most 3 bytes of JSON, found 4"):
        layouts.parse_json(memoryview(b"[12]"), limit=3)


@given(JSON)
def test_a_frame_is_a_header_line_and_a_body_line_under_one_digest(value: Any) -> None:
    data = layouts.frame("ckpt-test", value)
    assert data == seal("ckpt-test", value)
    assert layouts.unframe("ckpt-test", data) == value
    assert data.count(b"\n") == 2


@given(JSON, st.data())
def test_every_change_of_a_byte_of_a_frame_is_found(
    value: Any, data: st.DataObject
) -> None:
    document = layouts.frame("ckpt-test", value)
    at = data.draw(st.integers(0, len(document) - 1))
    byte = data.draw(st.integers(0, 255).map(lambda n: bytes([n])))
    kind = data.draw(st.sampled_from(["replace", "insert", "remove", "truncate"]))
    changed = {
        "replace": document[:at] + byte + document[at + 1 :],
        "insert": document[:at] + byte + document[at:],
        "remove": document[:at] + document[at + 1 :],
        "truncate": document[:at],
    }[kind]
    if changed != document:
        with pytest.raises(CorruptLayout):
            layouts.unframe("ckpt-test", changed)


def test_a_header_is_written_in_one_way_only() -> None:
    document = seal("ckpt-test", {"a": 1})
    for at in range(document.index(b"\n")):
        with pytest.raises(CorruptLayout):
            layouts.unframe("ckpt-test", document[:at] + b" " + document[at:])


@pytest.mark.parametrize("depth", [3, 300, 900])
def test_a_nested_header_is_corrupt(depth: int) -> None:
    document = seal("ckpt-test", {}, requires=nest(depth))
    with pytest.raises(CorruptLayout, match="header line"):
        layouts.unframe("ckpt-test", document)


def nest(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("header", [b"", b"[]", b"{}", b"1", b'"x"', b"null", b"[[[["])
def test_a_header_that_is_none_is_corrupt(header: bytes) -> None:
    for data in (header, header + b"\n", header + b"\n{}\n"):
        with pytest.raises(CorruptLayout):
            layouts.unframe("ckpt-test", data)


def test_a_header_line_that_does_not_end_is_corrupt() -> None:
    long = seal("ckpt-test", {}, requires=["x" * 5000])
    with pytest.raises(CorruptLayout, match="header line"):
        layouts.unframe("ckpt-test", long)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"format": "ckpt-other"}, InvalidLayout, "expected ckpt-test, found"),
        ({"format": None}, InvalidLayout, "expected ckpt-test, found None"),
        ({"version": 2}, UnknownFeature, "version 1, found 2: install a newer"),
        ({"version": 2, "more": 1}, UnknownFeature, "version 1, found 2"),
        ({"version": True}, InvalidLayout, "version 1, found True"),
        ({"version": 1.0}, InvalidLayout, r"version 1, found 1\.0"),
        ({"version": 0}, InvalidLayout, "version 1, found 0"),
        ({"version": -1}, InvalidLayout, "version 1, found -1"),
        ({"version": "1"}, InvalidLayout, "version 1, found '1'"),
        ({"version": None}, InvalidLayout, "five header fields"),
        ({"more": 1}, InvalidLayout, "five header fields"),
        ({"requires": None}, InvalidLayout, "five header fields"),
        ({"requires": {}}, InvalidLayout, "a list of features"),
        ({"requires": "reuse"}, InvalidLayout, "a list of features"),
        ({"requires": ["reuse"]}, UnknownFeature, "found 'reuse': install a newer"),
        ({"requires": [1, "reuse"]}, UnknownFeature, "found 1, 'reuse'"),
        ({"requires": [[]]}, UnknownFeature, r"found \[\]"),
        ({"length": 3}, CorruptLayout, "body of 3 bytes, found 2"),
        ({"length": 1 << 80}, CorruptLayout, "found 2"),
        ({"length": -2}, CorruptLayout, "body of -2 bytes, found 2"),
        ({"length": 2.0}, CorruptLayout, "found 2"),
        ({"length": None}, CorruptLayout, "found 2"),
    ],
    ids=str,
)
def test_a_header_that_says_something_else_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        layouts.unframe("ckpt-test", seal("ckpt-test", {}, **changes))
    assert caught.type is error


def test_a_length_that_is_a_bool_is_corrupt() -> None:
    with pytest.raises(CorruptLayout, match="body of True bytes, found 1"):
        layouts.unframe("ckpt-test", seal("ckpt-test", b"1", length=True))


def test_a_digest_of_another_document_is_corrupt() -> None:
    one, other = seal("ckpt-test", {"a": 1}), seal("ckpt-test", {"a": 2})
    swapped = one.partition(b"\n")[0] + b"\n" + other.partition(b"\n")[2]
    with pytest.raises(CorruptLayout, match="SHA-256"):
        layouts.unframe("ckpt-test", swapped)


def test_a_document_that_nobody_could_read_is_not_framed() -> None:
    with pytest.raises(TooLarge, match="bytes of JSON"):
        layouts.frame("ckpt-test", "x" * (64 << 20))
    with pytest.raises(TooLarge, match="JSON values"):
        layouts.frame("ckpt-test", [0] * (2 << 20) + [0])


def test_a_digest_is_the_sha256_in_hexadecimal() -> None:
    # The first test vector of FIPS 180-2.
    assert layouts.digest(b"abc") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    assert layouts.digest(memoryview(b"abc")) == hashlib.sha256(b"abc").hexdigest()
    assert dump({"a": [1, "\u00e9"]}) == layouts.dump_json({"a": [1, "\u00e9"]})


def test_hostile_json_costs_little_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        for text in (b"[" * 1_000_000, b"9" * 1_000_000, b"{}," * 1_000_000):
            with pytest.raises(layouts.LayoutError):
                layouts.parse_json(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert peak < 20 << 20
    assert grown < (64 << 10) * (1 if sys.platform == "linux" else 1024)
