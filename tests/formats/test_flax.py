"""Files of flax, against what flax and msgpack themselves make and read."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import ckpt
from ckpt import CkptError, Damaged, LimitExceeded, NotFound, Unsupported, Untrusted
from ckpt._store import open_store
from ckpt.formats._entry import Tensor
from ckpt.formats._flax import _read_any, _read_array, find_flax, read_flax
from ckpt.formats._msgpack import decode_msgpack
from ckpt.formats._skim import Skim

from ._gather import PEERS, describe, expected_tensors, leaves, look_in, materialise

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=60)
    | st.binary(max_size=60),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=9), inner, max_size=5)
    ),
    max_leaves=12,
)


def pack(value: Any, **options: Any) -> bytes:
    data = msgpack.packb(value, **options)
    assert isinstance(data, bytes)
    return data


def skim(data: bytes) -> Skim:
    return Skim(data, where="memory://x/y")


def read(data: bytes) -> Any:
    """Read a document, and replace each Tensor by its values."""
    store = open_store("memory://flax-read")
    store.remove("file")
    store.create("file", data)
    with store.open("file") as reader:
        tree = read_flax(Skim(reader, where="memory://x/y"), name="file")

    def fill(value: Any) -> Any:
        if isinstance(value, Tensor):
            return materialise(store, value)
        if isinstance(value, dict):
            return {key: fill(child) for key, child in value.items()}
        return [fill(x) for x in value] if isinstance(value, list) else value

    return fill(tree)


@pytest.mark.parametrize("name", ["flax_msgpack", "flax_legacy_checkpoint"])
def test_files_of_flax_hold_what_flax_wrote(name: str) -> None:
    folder = look_in(PEERS / name)
    found = find_flax(folder)
    assert found is not None
    tensors = {"/".join(path): leaf for path, leaf in leaves(found.tree)}
    expected = {
        path: {key: entry[key] for key in ("shape", "dtype", "sha256")}
        for path, entry in expected_tensors(name).items()
    }
    assert {p: describe(folder.store, t) for p, t in tensors.items()} == expected
    assert found.step == (5 if name == "flax_legacy_checkpoint" else 0)
    assert found.objects == folder.names


@settings(max_examples=40, deadline=None)
@given(plain)
def test_plain_values_are_what_msgpack_packed(value: Any) -> None:
    data = pack(value)
    assert decode_msgpack(skim(data)) == (value, len(data))


@pytest.mark.parametrize("size", [15, 16, 31, 32, 255, 256, 65_536])
def test_every_width_of_a_length_is_read(size: int) -> None:
    values = ["x" * size, b"x" * size, [1] * size, {f"{n}": n for n in range(size)}]
    for value in values:
        assert decode_msgpack(skim(pack(value)))[0] == value
    old = pack({"a": "x" * size}, use_bin_type=False)
    assert decode_msgpack(skim(old))[0] == {"a": "x" * size}
    single = pack(1.5, use_single_float=True)
    assert decode_msgpack(skim(single))[0] == 1.5


def test_arrays_scalars_and_complex_numbers_are_what_flax_packed() -> None:
    tree = {
        "a": np.arange(24, dtype=ml_dtypes.bfloat16).reshape(2, 3, 4),
        "b": {"0": np.zeros((0, 3), np.int8), "1": np.float64(2.5), "2": 1 + 2j},
        "c": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "d": np.ones((2, 2), ml_dtypes.float8_e4m3fn),
        "e": np.array([1, -3], ml_dtypes.int4),
        "f": [1, None, "text", b"bytes"],
        "g": np.array(True),
    }
    found = read(flax.serialization.msgpack_serialize(tree))
    assert {p: str(getattr(x, "dtype", "")) for p, x in leaves(found)} == {
        p: str(getattr(x, "dtype", "")) for p, x in leaves(tree)
    }
    for (path, value), (_, wanted) in zip(leaves(found), leaves(tree), strict=True):
        assert np.array_equal(value, wanted), path


@pytest.mark.parametrize("shape", [(7, 3, 5), (105,), (1, 105, 1), (3, 35)])
def test_arrays_that_flax_cut_into_chunks_are_one(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 32)
    array = np.arange(105, dtype=np.float32).reshape(shape)
    data = flax.serialization.msgpack_serialize({"a": {"b": array}, "c": array[:0]})
    assert b"__msgpack_chunked_array__" in data
    found = read(data)
    assert np.array_equal(found["a"]["b"], array)
    sorted_keys = jax.tree.map(
        lambda leaf: leaf, msgpack.unpackb(data, strict_map_key=False)
    )
    assert np.array_equal(read(pack(sorted_keys))["a"]["b"], array)
    whole = read(flax.serialization.msgpack_serialize(array))
    assert np.array_equal(whole, array)


def test_only_what_lies_between_large_arrays_is_fetched(tmp_path: Path) -> None:
    class Counting:
        size, fetched = 0, 0

        def read_into(self, offset: int, buffer: bytearray) -> None:
            buffer[:] = data[offset : offset + len(buffer)]
            self.fetched += len(buffer)

    data = flax.serialization.msgpack_serialize(
        {f"{n}": np.zeros(1 << 20, np.uint8) for n in range(9)}
    )
    reader: Any = Counting()
    reader.size = len(data)
    tree = read_flax(Skim(reader, where="x"), name="file")
    assert len(tree) == 9
    assert reader.fetched < 9 * 20_000


def make_steps(path: Path, *names: str) -> None:
    for name in names:
        data = flax.serialization.msgpack_serialize({"name": name})
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def test_the_newest_step_or_the_wanted_one_is_read(tmp_path: Path) -> None:
    make_steps(tmp_path, "checkpoint_9", "checkpoint_10", "checkpoint_tmp", "other")
    newest = find_flax(look_in(tmp_path))
    wanted = find_flax(look_in(tmp_path, step=9))
    assert newest is not None
    assert wanted is not None
    assert (newest.tree, newest.step) == ({"name": "checkpoint_10"}, 10)
    assert (wanted.tree, wanted.step) == ({"name": "checkpoint_9"}, 9)
    with pytest.raises(NotFound, match="found steps 9, 10"):
        find_flax(look_in(tmp_path, step=11))


def test_a_file_that_the_caller_names_is_read_whatever_its_name(tmp_path: Path) -> None:
    make_steps(tmp_path, "best", "sub/flax_model.msgpack")
    assert find_flax(look_in(tmp_path)) is None
    found = find_flax(look_in(tmp_path, file="best"))
    assert found is not None
    assert found.tree == {"name": "best"}
    (tmp_path / "text").write_text("some words")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "zip").write_bytes(b"PK\3\4")
    for name in ("text", "empty", "zip"):
        assert find_flax(look_in(tmp_path, file=name)) is None


def test_the_model_of_a_hub_repository_is_read(tmp_path: Path) -> None:
    make_steps(tmp_path, "flax_model.msgpack", "other.msgpack")
    (tmp_path / "config.json").write_text("{}")
    found = find_flax(look_in(tmp_path))
    assert found is not None
    assert found.objects == ("flax_model.msgpack",)


def test_folders_of_newer_steps_are_left_to_others(tmp_path: Path) -> None:
    make_steps(tmp_path, "checkpoint_3", "checkpoint_4/checkpoint")
    assert find_flax(look_in(tmp_path)) is None
    assert find_flax(look_in(tmp_path, step=3)) is not None


def packed(shape: Any, dtype: str, data: bytes, code: int = 1) -> Any:
    return msgpack.ExtType(code, pack((shape, dtype, data)))


@pytest.mark.parametrize(
    ("value", "error", "reason"),
    [
        (packed((2,), "float32", b"1234567"), Damaged, "expected 8 bytes"),
        (packed((2**40, 0, 2**40), "float32", b""), LimitExceeded, "2\\*\\*58"),
        (packed((-1,), "float32", b""), Damaged, "expected a shape"),
        (packed((1.0,), "float32", b"1234"), Damaged, "expected a shape"),
        (packed((1,) * 65, "float32", b"1234"), LimitExceeded, "64 dimensions"),
        (packed("", "float32", b"1234"), Damaged, "expected a shape"),
        (packed((), "object", b"1234"), Unsupported, "dtype that JAX has"),
        (packed((), "float32", b"1234", code=4), Unsupported, "extension types"),
        (msgpack.ExtType(1, b"\x93\x90\xa1"), Damaged, "end of the document"),
        (msgpack.ExtType(2, pack((1.0,))), Damaged, "complex"),
        ("//GDAPlaceholder:a", Unsupported, "at `a`"),
        (
            {"__msgpack_chunked_array__": True, "shape": {"0": 4}, "chunks": {}},
            Damaged,
            "no chunk",
        ),
        (
            {
                "__msgpack_chunked_array__": True,
                "shape": {"0": 9},
                "chunks": {"0": packed((2,), "int8", b"ab")},
            },
            Damaged,
            "chunks of an array",
        ),
    ],
)
def test_what_flax_never_writes_is_refused(
    value: Any, error: type[CkptError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        read_flax(skim(pack({"a": value})), name="y")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", Damaged),
        (b"\xc1", Damaged),
        (b"\x81\xa1a", Damaged),
        (b"\x81\x01\x02", Damaged),
        (b"\x82\xa1a\x01\xa1a\x01", Untrusted),
        (b"\xdd\xff\xff\xff\xff" + bytes(100), Damaged),
        (b"\xdf\xff\xff\xff\xff" + bytes(100), Damaged),
        (b"\xdb\xff\xff\xff\xff" + bytes(100), Damaged),
        (b"\xc6\xff\xff\xff\xff" + bytes(100), Damaged),
        (b"\xc9\xff\xff\xff\xff\x01" + bytes(100), Damaged),
        (b"\x91" * 100_000 + b"\x01", LimitExceeded),
        (b"\xdd\x00\x0f\x42\x40" + bytes(1_000_000), LimitExceeded),
        (b"\xa1\xff", Damaged),
        (b"\x01\x01", Damaged),
    ],
)
def test_hostile_documents_are_refused(data: bytes, error: type[CkptError]) -> None:
    with pytest.raises(error, match="memory://x/y"):
        read_flax(skim(data), name="y")


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_nothing_but_our_errors_leaves(data: st.DataObject) -> None:
    text = bytearray((PEERS / "flax_msgpack" / "state.msgpack").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(text)) | st.just(len(text)))
    with contextlib.suppress(CkptError):
        read_flax(skim(bytes(text[:cut])), name="y")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 2, 127, 128, 255, 256]), max_size=16),
    st.sampled_from(["int8", "bool", "float32", "int4", "key<fry>", "", "x" * 40]),
    st.integers(-2, 2),
    st.data(),
)
def test_most_arrays_are_read_as_all_of_msgpack_is(
    shape: list[int], dtype: str, more: int, data: st.DataObject
) -> None:
    size = min(math.prod(shape), 1 << 14) * (4 if dtype == "float32" else 1)
    text = bytearray(pack((shape, dtype, bytes(max(0, size + more)))))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, min(len(text), 90) - 1))
        text[at] = data.draw(st.integers(0, 255))
    found = [
        _outcome(lambda read=read: read(skim(bytes(text)), "y", 0, len(text)))
        for read in (_read_array, _read_any)
    ]
    assert found[0] == found[1]


def _outcome(read: Callable[[], Tensor]) -> Any:
    try:
        tensor = read()
    except CkptError as error:
        return type(error)
    return tensor.dtype, tensor.shape, tensor.data


def test_a_long_shape_does_not_hide_how_long_an_array_is() -> None:
    """Of the length 65,536 the first two bytes, which end at byte 80, say 1."""
    head = b"\x93\x9e" + 14 * b"\xce\0\0\0\1" + b"\xa4int8"
    assert len(head) == 77
    array = msgpack.ExtType(1, head + b"\xc6\0\1\0\0" + b"a")
    with pytest.raises(Damaged):
        read_flax(skim(pack({"a": array})), name="y")


def test_files_of_another_prefix_are_the_steps_of_a_run(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        data = flax.serialization.to_bytes({"step": step})
        (tmp_path / f"run_{step}").write_bytes(data)
    assert ckpt.restore(tmp_path) == {"step": 10}
    assert ckpt.restore(tmp_path, step=9) == {"step": 9}
    (tmp_path / "notes_1").write_bytes(b"")
    with pytest.raises(NotFound):
        ckpt.open(tmp_path)


def test_a_file_may_begin_with_a_name_of_any_alphabet(tmp_path: Path) -> None:
    for name in ("ü", "日本語で書かれた名前"):
        (tmp_path / "file").write_bytes(flax.serialization.to_bytes({name: 1}))
        assert ckpt.restore(tmp_path / "file") == {name: 1}
