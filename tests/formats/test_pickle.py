import collections
import contextlib
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from ckpt import CkptError, Damaged, LimitExceeded, Unsupported, Untrusted
from ckpt.formats._pickle import Global, Limits, Record, decode_pickle
from ckpt.formats._plain import to_tree
from ckpt.formats._torch_globals import PLAIN

keys = st.one_of(
    st.text(max_size=8),
    st.integers(-(2**40), 2**40),
    st.tuples(st.integers(0, 9), st.text(max_size=2)),
    st.none(),
    st.booleans(),
    st.binary(max_size=4),
)
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(2**600), 2**600),
        st.floats(allow_nan=False),
        st.complex_numbers(allow_nan=False),
        st.text(),
        st.binary(),
        st.binary().map(bytearray),
        st.frozensets(st.integers(0, 9) | st.text(max_size=2), max_size=3),
        st.sets(st.integers(0, 9) | st.text(max_size=2), max_size=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(keys, inner, max_size=5),
    ),
    max_leaves=20,
)


def decode(data: bytes, **options: Any) -> Any:
    options = {"globals": PLAIN} | options
    value, end = decode_pickle(data, **options)
    assert end == len(data)
    return value


def kinds(value: Any) -> Any:
    """Return a value with the types of all that is in it; bytearrays may be bytes."""
    if isinstance(value, dict):
        return {key: kinds(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [kinds(item) for item in value]
    name = type(value).__name__
    return "bytes" if name == "bytearray" else name, value


@pytest.mark.parametrize("protocol", range(6))
@given(value=values)
@settings(max_examples=25, deadline=None)
def test_plain_values_of_each_protocol_are_those_of_pickle(
    protocol: int, value: Any
) -> None:
    data = pickle.dumps(value, protocol)
    assert kinds(decode(data)) == kinds(pickle.loads(data))
    small = pickletools.optimize(data)
    assert kinds(decode(small)) == kinds(value)


@pytest.mark.parametrize("protocol", range(6))
def test_objects_that_are_shared_and_cycles_stay_so(protocol: int) -> None:
    shared: list[Any] = [1]
    shared.append(shared)
    found = decode(pickle.dumps([shared, shared, {"a": shared}], protocol))
    assert found[0] is found[1] is found[2]["a"]
    assert found[0][1] is found[0]


@pytest.mark.parametrize("protocol", range(6))
def test_large_containers_and_many_memo_entries(protocol: int) -> None:
    value = [{f"k{n}": (n, float(n))} for n in range(1500)]
    assert decode(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"I01\n.", True),
        (b"I00\n.", False),
        (b"I-12\n.", -12),
        (b"L123L\n.", 123),
        (b"F2.5\n.", 2.5),
        (b"S'ab'\n.", "ab"),
        (b"T\2\0\0\0ab.", "ab"),
        (b"U\2ab.", "ab"),
        (b"V\\u00e9\n.", "é"),
        (b"\x80\5\x8d\2\0\0\0\0\0\0\0ab.", "ab"),
        (b"\x8e\2\0\0\0\0\0\0\0ab.", b"ab"),
        (b"\x8b\2\0\0\0\xff\x7f.", 32767),
        (b"\x8a\0.", 0),
        (b"K\1K\0020.", 1),
        (b"(K\1K\0021K\3.", 3),
        (b"K\0012\x86.", (1, 1)),
        (b"(K\1K\2l.", [1, 2]),
        (b"(K\1K\2d.", {1: 2}),
        (b"(K\1K\2t.", (1, 2)),
        (b"]p5\ng5\n\x86.", ([], [])),
        (b"]r\0\0\1\0j\0\0\1\0\x86.", ([], [])),
        (b"\x8f(K\1K\2\x90.", {1, 2}),
        (b"(K\1K\2\x91.", frozenset({1, 2})),
    ],
)
def test_each_rare_operation(data: bytes, value: Any) -> None:
    assert pickle.loads(data) == value
    assert decode(data) == value


def test_a_value_may_lie_within_other_bytes() -> None:
    data = b"xx" + pickle.dumps([1]) + b"rest"
    assert decode_pickle(data, at=2, globals={}) == ([1], len(data) - 4)
    assert decode_pickle(memoryview(data), at=2, globals={})[0] == [1]


class Thing:
    def __init__(self) -> None:
        self.a = 1


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_objects_become_records_where_their_module_is_inert(protocol: int) -> None:
    found = decode(pickle.dumps([Thing()], protocol), inert=[__name__.split(".")[0]])
    assert isinstance(found[0], Record)
    assert (found[0].module, found[0].name) == (__name__, "Thing")
    assert found[0].state == {"a": 1}


def test_objects_become_records_where_the_table_has_none() -> None:
    data = pickle.dumps({Thing(): 1, Thing: 2})
    (made, named) = decode(data, globals={(__name__, "Thing"): None})
    assert isinstance(made, Record)
    assert isinstance(named, Global)


def test_items_of_objects_that_are_lists_or_dicts_are_kept() -> None:
    data = b"\x80\2cm\nL\n)\x81K\1a(K\2K\3eK\4K\5s."
    found = decode(data, globals={("m", "L"): None})
    assert found.items == [1, 2, 3, (4, 5)]


def test_references_to_other_data_are_resolved_by_the_caller() -> None:
    data = b"\x80\2(X\1\0\0\0aK\1tQ."
    assert decode(data, persistent=lambda pid: [pid]) == [("a", 1)]
    assert decode(b"Pkey\n.", persistent=lambda pid: pid) == "key"
    with pytest.raises(Untrusted, match="references"):
        decode(data)


def test_functions_of_the_table_are_called_in_place_of_the_real_ones() -> None:
    data = pickle.dumps(collections.OrderedDict(a=1, b=[2]))
    assert decode(data) == {"a": 1, "b": [2]}


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        pickle.dumps(os.system),
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cbuiltins\ngetattr\n.",
        b"c__builtin__\n__import__\n.",
        b"ccopyreg\n_reconstructor\n.",
        b"\x80\4X\2\0\0\0osX\6\0\0\0system\x93.",
    ],
)
def test_what_the_table_lacks_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(CkptError, match=r"found '\w+\.\w+'"):
        decode(data)


def test_a_function_is_never_looked_up_on_what_is_there() -> None:
    with pytest.raises(Untrusted, match=r"posix\.system|nt\.system"):
        decode(pickle.dumps(os.system))
    # A text is no function, although Python could call what it names.
    with pytest.raises(Untrusted, match="class and its arguments"):
        decode(b"X\2\0\0\0os)R.")
    with pytest.raises(Untrusted, match="class and its arguments"):
        decode(b"ccollections\nOrderedDict\n]R.")


def eight(number: int) -> bytes:
    return struct.pack("<Q", number)


HOSTILE = {
    "bytearray of 8 GiB": (b"\x80\5\x96" + eight(2**33), Damaged),
    "bytes of 8 GiB": (b"\x8e" + eight(2**33) + b".", Damaged),
    "text of 8 GiB": (b"\x8d" + eight(2**33) + b".", Damaged),
    "text beyond 64 bits": (b"\x8d" + eight(2**64 - 1) + b".", Damaged),
    "bytes of 4 GiB": (b"B\xff\xff\xff\xff.", Damaged),
    "number of 2 GiB": (b"\x8b\xff\xff\xff\x7f.", LimitExceeded),
    "negative number size": (b"\x8b\xff\xff\xff\xff.", LimitExceeded),
    "number of many digits": (b"I" + b"9" * 60000 + b"\n.", LimitExceeded),
    "long of many digits": (b"L" + b"9" * 60000 + b"L\n.", LimitExceeded),
    "line without an end": (b"V" + b"9" * 100, Damaged),
    "long line": (b"c" + b"a" * 10**6 + b"\nb\n.", LimitExceeded),
    "frame beyond the end": (b"\x80\4\x95" + eight(2**40) + b"N.", Damaged),
    "protocol 6": (b"\x80\6N.", Unsupported),
    "marks": (b"(" * 10**5, LimitExceeded),
    "stack": (b"N" * 300_000, LimitExceeded),
    "extension": (b"\x82\1.", Untrusted),
    "extension of 2": (b"\x83\1\1.", Untrusted),
    "extension of 4": (b"\x84\1\1\1\1.", Untrusted),
    "buffer": (b"\x97.", Untrusted),
    "read-only buffer": (b"N\x98.", Untrusted),
    "instance": (b"(ios\nsystem\n.", Untrusted),
    "object": (b"(cos\nsystem\no.", Untrusted),
    "nothing": (b"", Damaged),
    "no end": (b"\x80\2N", Damaged),
    "no value": (b".", Untrusted),
    "two values": (b"NN.", Untrusted),
    "open mark": (b"(N.", Untrusted),
    "no mark": (b"Nt.", Untrusted),
    "below a mark": (b"](a.", Untrusted),
    "empty stack": (b"a.", Untrusted),
    "no memo entry": (b"h\0.", Untrusted),
    "memo of nothing": (b"q\0.", Untrusted),
    "append to a number": (b"K\1Na.", Untrusted),
    "items of a list": (b"]K\1K\2s.", Untrusted),
    "odd items": (b"}(K\1u.", Untrusted),
    "list as a key": (b"}]Ns.", Untrusted),
    "state of a number": (b"K\1Nb.", Untrusted),
    "state twice": (b"cm\nA\n)\x81NbK\1bK\1b.", Untrusted),
    "no utf-8": (b"X\1\0\0\0\xff.", Untrusted),
    "half a surrogate pair": (b"V\\ud800\n.", Untrusted),
    "no number": (b"Ix\n.", Untrusted),
    "escapes": (b"S'\\x41'\n.", Unsupported),
    "no quotes": (b"Sab\n.", Untrusted),
    "names that are numbers": (b"K\1K\2\x93.", Untrusted),
    "arguments of no function": (b"c_codecs\nencode\nK\1\x85R.", Untrusted),
    "another encoding": (
        b"c_codecs\nencode\nX\1\0\0\0aX\3\0\0\0rot\x86R.",
        Untrusted,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_refused_in_little_time_and_memory(name: str) -> None:
    data, error = HOSTILE[name]
    tracemalloc.start()
    try:
        with pytest.raises(error) as raised:
            decode(data, globals=PLAIN | {("m", "A"): None}, where="the file")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert "the file" in str(raised.value)


def test_a_large_memo_number_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        assert decode(b"\x80\2Nr\0\0\0\x08.") is None
        assert decode(b"\x80\2Nr\xff\xff\xff\xff.") is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_memo_entries_operations_and_text_are_counted() -> None:
    many = b"\x80\4]" + b"\x94" * 5000 + b"."
    with pytest.raises(LimitExceeded, match="memo"):
        decode(many, limits=Limits(memo=4000))
    with pytest.raises(LimitExceeded, match="operations"):
        decode(many, limits=Limits(operations=4000))
    with pytest.raises(LimitExceeded, match="text"):
        decode(b"C\4aaaa.", limits=Limits(text=3))


def test_work_of_functions_is_counted() -> None:
    text = b"X" + struct.pack("<I", 10**6) + b"a" * 10**6 + b"q\0"
    call = b"c_codecs\nencode\nh\0X\6\0\0\0latin1\x86R"
    with pytest.raises(LimitExceeded, match="operations"):
        decode(b"\x80\2(" + text + call * 1000 + b"l.")


def nested_key(levels: int) -> bytes:
    return b"}N" + b"2\x86" * levels + b"Ns."


def test_a_key_whose_hash_takes_for_ever_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="keys"):
        decode(nested_key(40))
    with pytest.raises(LimitExceeded, match="keys"):
        decode(b"}N" + b"\x85" * 10**4 + b"Ns.")


def test_numbers_of_one_hash_are_no_keys() -> None:
    prime = 2**61 - 1
    many = {n * prime: None for n in range(100, 200)}
    with pytest.raises(LimitExceeded, match="64 bits"):
        decode(pickle.dumps(many | {2**70: None}))


def test_a_deep_value_is_decoded_and_refused_as_a_tree() -> None:
    value = decode(b"\x80\2N" + b"\x85" * 10**4 + b".")
    with pytest.raises(LimitExceeded, match="levels"):
        to_tree(value, where="a file")


def test_a_value_that_shares_grows_no_tree_without_end() -> None:
    value = decode(b"\x80\2N" + b"2\x86" * 60 + b".")
    with pytest.raises(LimitExceeded, match="items"):
        to_tree(value, where="a file")


def test_a_cycle_is_no_tree() -> None:
    with pytest.raises(Untrusted, match="within itself"):
        to_tree(decode(b"]q\0h\0a."), where="a file")


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(CkptError):
        value, _ = decode_pickle(data, globals=PLAIN, persistent=lambda pid: pid)
        to_tree(value, where="bytes")


@given(st.data(), values)
@settings(max_examples=100, deadline=None)
def test_changed_pickles_decode_or_are_refused(draw: st.DataObject, value: Any) -> None:
    data = bytearray(pickle.dumps(value, draw.draw(st.integers(0, 5))))
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    begin = time.process_time()
    with contextlib.suppress(CkptError):
        to_tree(decode_pickle(bytes(data), globals=PLAIN)[0], where="bytes")
    assert time.process_time() - begin < 5


def test_a_text_of_the_oldest_protocol_imports_no_codec() -> None:
    code = (
        "import sys\nfrom ckpt.formats._pickle import decode_pickle\n"
        "before = set(sys.modules)\n"
        "value, _ = decode_pickle(b'V\\\\u00e4b\\n.', globals={})\n"
        "assert value == '\\u00e4b', value\n"
        "assert not set(sys.modules) - before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
