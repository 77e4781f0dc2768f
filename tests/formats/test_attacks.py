"""Files that cost more than they hold, opened as a user would."""

import io
import pickle
import struct
import zipfile
from pathlib import Path

import msgpack
import numpy as np
import pytest

import ckpt
from ckpt.formats._pickle import decode_pickle
from tests.formats import _dcp_files as dcp
from tests.formats._memory import HOSTILE_BYTES, measure_growth, refused

BATCH = 200_000
DENSE = {
    "dicts": b"}" * BATCH,
    "lists": b"]" * BATCH,
    "tuples": b"N\x85" * BATCH,
    "dicts of one": b"}NNs" * BATCH,
    "sets": b"\x8f" * BATCH,
    "records": b"cargparse\nNamespace\nq\0" + b"h\0)\x81" * BATCH,
}


def write_torch(folder: Path, text: bytes, storage: bytes = b"") -> Path:
    """Write an archive of a pickle and one storage."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", text)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/data/0", storage)
    (folder / "model.pt").write_bytes(made.getvalue())
    return folder


def view(size: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> dcp.Made:
    """Return a view of a storage of six numbers."""
    pid = ("storage", dcp.Name("torch", "FloatStorage"), "0", "cpu", 6)
    args = (dcp.Persistent(pid), offset, size, strides, False, None)
    return dcp.Made(dcp.Name("torch._utils", "_rebuild_tensor_v2"), args, reduced=True)


@pytest.mark.parametrize("name", DENSE)
def test_more_containers_than_a_writer_has_bytes_for_are_refused(
    name: str, tmp_path: Path
) -> None:
    text = b"\x80\4](" + DENSE[name] + b"e."
    with pytest.raises(ckpt.LimitExceeded, match="container in"):
        ckpt.open(write_torch(tmp_path, text))


def test_a_bomb_of_containers_is_refused_in_little_memory(tmp_path: Path) -> None:
    text = b"\x80\2]" + (b"(" + b"}" * BATCH + b"e") * 15 + b"."
    work = refused("LimitExceeded", "ckpt.open(sys.argv[1])")
    grown = measure_growth("import jax, ckpt", work, str(write_torch(tmp_path, text)))
    assert grown < HOSTILE_BYTES


def test_many_small_containers_of_a_writer_are_read() -> None:
    item = b"\x80\4](" + b"K\1K\2\x86\x94" * BATCH + b"e."
    value, _ = decode_pickle(item, globals={})
    assert value == [(1, 2)] * BATCH


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_small_dicts_of_a_writer_are_read(protocol: int) -> None:
    steps = {n: {"step": 1} for n in range(50_000)}
    many: list[object] = [{"k": 1} for _ in range(50_000)]
    for value in (steps, many):
        text = pickle.dumps(value, protocol=protocol)
        assert decode_pickle(text, globals={})[0] == value


def test_memo_entries_without_values_are_refused() -> None:
    with pytest.raises(ckpt.LimitExceeded, match="memo"):
        decode_pickle(b"\x80\4N" + b"\x94" * 50_000 + b".", globals={})
    puts = (b"r" + struct.pack("<I", 2 * n + 9) for n in range(20_000))
    with pytest.raises(ckpt.LimitExceeded, match="in order"):
        decode_pickle(b"\x80\4N" + b"".join(puts) + b".", globals={})


def test_memo_numbers_may_leave_gaps() -> None:
    text = b"](K\1q\5K\2q\0h\5h\0K\3q\1h\1e."
    assert decode_pickle(text, globals={})[0] == [1, 2, 1, 2, 3, 3]


def test_values_and_containers_weigh_more_than_tensors(tmp_path: Path) -> None:
    text = b"\x80\2]" + (b"(" + b"N" * BATCH + b"e") * 2 + b"."
    with pytest.raises(ckpt.LimitExceeded, match="large lists"):
        ckpt.open(write_torch(tmp_path, text))


@pytest.mark.parametrize("size", [(2**60, 2**60, 0), (2**60, 0)])
def test_shapes_that_no_array_has_are_refused_when_opened(
    size: tuple[int, ...], tmp_path: Path
) -> None:
    text = dcp.pickled({"a": view(size, (1,) * len(size))})
    with pytest.raises(ckpt.LimitExceeded, match="2\\*\\*62"):
        ckpt.open(write_torch(tmp_path, text, bytes(24)))


def test_an_array_of_numpy_without_items_has_a_shape_that_numpy_takes(
    tmp_path: Path,
) -> None:
    dtype = dcp.Made(dcp.Name("numpy", "dtype"), ("f8", False, True), reduced=True)
    kind = dcp.Name("numpy.core.multiarray", "_reconstruct")
    state = (1, (2**61, 2**61, 0), dtype, False, "")
    text = dcp.pickled(
        {"a": dcp.Made(kind, (dcp.Name("numpy", "ndarray"),), state, reduced=True)}
    ).replace(b"X\0\0\0\0", b"C\0")
    with pytest.raises(ckpt.Untrusted, match="bytes of an array"):
        ckpt.open(write_torch(tmp_path, text))


def test_views_of_few_bytes_do_not_become_many(tmp_path: Path) -> None:
    views = {f"v{n}": view((1 << 24,), (0,), n) for n in range(6)}
    with pytest.raises(ckpt.LimitExceeded, match="times the bytes"):
        ckpt.open(write_torch(tmp_path, dcp.pickled(views), bytes(24)))


def test_views_that_repeat_some_items_are_read(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    views = {"wide": view((3, 6), (0, 1)), "turned": view((2, 3), (1, 2))}
    found = ckpt.open(write_torch(tmp_path, dcp.pickled(views), values.tobytes()))
    expected = {"wide": np.tile(values, (3, 1)), "turned": values.reshape(3, 2).T}
    for name, array in expected.items():
        assert np.array_equal(np.asarray(found[name][...]), array)


@pytest.mark.parametrize("value", [[{}] * 100_000, [[[]]] * 50_000])
def test_a_document_of_containers_alone_is_refused(
    value: object, tmp_path: Path
) -> None:
    (tmp_path / "a.msgpack").write_bytes(msgpack.packb(value) or b"")
    with pytest.raises(ckpt.LimitExceeded, match="values"):
        ckpt.open(tmp_path)


def test_an_array_of_flax_without_items_has_a_shape_that_numpy_takes(
    tmp_path: Path,
) -> None:
    array = msgpack.ExtType(1, msgpack.packb(((2**60, 0), "float64", b"")))
    (tmp_path / "a.msgpack").write_bytes(msgpack.packb({"a": array}) or b"")
    with pytest.raises(ckpt.LimitExceeded, match="dimensions"):
        ckpt.open(tmp_path)


class Sizes(tuple[int, ...]):
    """Pickled as PyTorch's sizes are."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type, tuple[tuple[int, ...]]]:
        return Sizes, (tuple(self),)


class Place:
    """Pickled as DCP's boxes and places are: by attributes."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_metadata_of_many_boxes_have_room(protocol: int) -> None:
    boxes = [
        (
            Place(offsets=Sizes((n, 0)), sizes=Sizes((1, 4))),
            Place(fqn="w", offset=Sizes((n, 0)), index=n),
            Place(relative_path="__0_0.distcp", offset=n, length=5),
        )
        for n in range(20_000)
    ]
    text = pickle.dumps(boxes, protocol=protocol)
    value, _ = decode_pickle(text, globals={}, inert={"tests"})
    assert len(value) == len(boxes)
    assert value[-1][1].state["index"] == 19_999
