import pickle
from collections import Counter, defaultdict, deque
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ckpt import CkptError, Unsupported, Untrusted
from ckpt.formats._entry import Tensor
from ckpt.formats._pickle import Record, decode_pickle
from ckpt.formats._plain import to_tree
from ckpt.formats._torch_globals import TORCH


def tree_of(value: Any, protocol: int = 2) -> Any:
    decoded, _ = decode_pickle(pickle.dumps(value, protocol), globals=TORCH)
    return to_tree(decoded, where="a file")


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
        np.arange(3, dtype=">i4"),
        np.zeros((0, 2), bool),
        np.array(1 + 2j),
        np.float64(2.5),
        np.int8(-3),
        np.bool_(1),
    ],
)
def test_arrays_of_numpy_become_tensors(value: Any, protocol: int) -> None:
    (found,) = tree_of([value], protocol)
    assert isinstance(found, Tensor)
    assert isinstance(found.data, np.ndarray)
    native = np.asarray(value).astype(np.asarray(value).dtype.newbyteorder("="))
    assert (found.dtype, found.shape) == (native.dtype.name, native.shape)
    assert (found.data.dtype, found.data.shape) == (native.dtype, native.shape)
    assert np.array_equal(found.data, native)


def test_kinds_of_dicts_and_lists_become_dicts_and_lists() -> None:
    value = {
        "counter": Counter("aab"),
        "default": defaultdict(list, {"x": [1]}),
        "queue": deque([1, 2], maxlen=5),
        "path": PurePosixPath("/a/b"),
        "set": {"b", "a"},
        "frozen": frozenset({2, 1}),
    }
    assert tree_of(value) == {
        "counter": {"a": 2, "b": 1},
        "default": {"x": [1]},
        "queue": [1, 2],
        "path": "/a/b",
        "set": ("a", "b"),
        "frozen": (1, 2),
    }


@pytest.mark.parametrize(
    "value",
    [
        np.array(["a"]),
        np.array([None]),
        np.array("2026-01-01", "M8[s]"),
        np.zeros(2, [("a", "f4")]),
        {(1, 2): 3},
        {None: 1},
    ],
)
def test_what_has_no_place_in_a_tree_is_named_by_its_path(value: Any) -> None:
    with pytest.raises(Unsupported, match=r"at `a/b"):
        tree_of({"a": {"b": value}})


def test_what_has_no_place_may_be_noted_and_passed_over() -> None:
    notes: list[tuple[str, str]] = []
    data = pickle.dumps({"a": [SimpleNamespace(x=1), 2], (1, 2): 3}, 2)
    value, _ = decode_pickle(data, globals=TORCH, inert=["types", "sys"])
    tree = to_tree(value, where="a file", unknown=lambda *note: notes.append(note))
    assert tree == {"a": [None, 2]}
    assert [path for path, _ in notes] == ["a/0", ""]
    assert "SimpleNamespace" in notes[0][1]


def numpy_record(name: str, *args: Any, state: Any = None) -> Record:
    return Record("numpy.core.multiarray", name, args, state)


F4 = Record(
    "numpy", "dtype", ("f4", False, True), (3, "<", None, None, None, -1, -1, 0)
)


@pytest.mark.parametrize(
    "record",
    [
        numpy_record("scalar", F4, b"123"),
        numpy_record("scalar", "f4", b"1234"),
        numpy_record("scalar", F4),
        numpy_record("_reconstruct"),
        numpy_record("_reconstruct", state=(1, (2**40,), F4, False, b"1234")),
        numpy_record("_reconstruct", state=(1, (-1,), F4, False, b"1234")),
        numpy_record("_reconstruct", state=(1, ("a",), F4, False, b"1234")),
        numpy_record("_reconstruct", state=(1, (1,) * 65, F4, False, b"1234")),
        numpy_record("_reconstruct", state=(1, (1,), F4, False, [1])),
        numpy_record("_frombuffer", b"1234", F4, (1,), "X"),
        numpy_record("other"),
        Record("numpy", "dtype"),
        Record("numpy", "ndarray"),
    ],
)
def test_arrays_that_numpy_would_not_write_are_refused(record: Record) -> None:
    with pytest.raises(Untrusted):
        to_tree([record], where="a file")


@pytest.mark.parametrize(
    "text", ["O", "V8", "U4", "f4,f4", "(2,)f4", "M8", "f3", "b16", "c2", "x" * 1000, 5]
)
def test_dtypes_that_are_no_plain_numbers_are_unsupported(text: Any) -> None:
    dtype = Record("numpy", "dtype", (text, False, True))
    with pytest.raises(CkptError):
        to_tree([numpy_record("scalar", dtype, b"12345678")], where="a file")
