import contextlib
import datetime
import fractions
import functools
import hashlib
import io
import json
import pickle
import shutil
import struct
import tracemalloc
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ckpt import CkptError, Damaged, LimitExceeded, Unsupported, Untrusted
from ckpt._store import open_store
from ckpt.formats._entry import Blob, Check, Folder, Tensor
from ckpt.formats._torch import read_torch, read_torch_bytes
from ckpt.formats._torch_files import find_torch, read_files

from ._naive import gather, tensors

PEERS = Path(__file__).parent.parent / "data" / "peers"
ZIP = PEERS / "torch_zip" / "model.pt"
LEGACY = PEERS / "torch_legacy" / "model.pt"


def read(path: Path, checks: list[Check] | None = None) -> Any:
    size = path.stat().st_size
    return read_torch(open_store(path.parent), Blob(path.name, 0, size), checks=checks)


def read_bytes(data: bytes) -> Any:
    return read_torch_bytes(data, Blob("a.pt", 0, len(data)), where="a.pt")


def compare(root: Path, found: dict[str, Tensor], expected: Path) -> None:
    wanted = json.loads(expected.read_text())["tensors"]
    for path, want in wanted.items():
        array = gather(root, found[path])
        assert (array.dtype.name, list(array.shape)) == (want["dtype"], want["shape"])
        assert hashlib.sha256(array.tobytes()).hexdigest() == want["sha256"], path


@pytest.mark.parametrize("name", ["torch_zip", "torch_legacy", "torch_nocrc"])
def test_tensors_have_the_values_that_were_saved(name: str) -> None:
    found = tensors(read(PEERS / name / "model.pt"))
    compare(PEERS / name, found, PEERS / f"{name}.expected.json")


@pytest.mark.parametrize("path", [ZIP, LEGACY])
def test_plain_values_are_as_they_were(path: Path) -> None:
    plain = read(path)["plain"]
    assert plain == {
        "int": 3,
        "float": 0.5,
        "none": None,
        "true": True,
        "text": "é",
        "bytes": b"\x00\xff",
        "list": [1, [2]],
        "tuple": (1, "a"),
        "set": (1, 2),
        "complex": 1 + 2j,
        "big": 2**80,
        "odict": {"a": 1},
        "size": (2, 3),
        "dtype": "bfloat16",
        "device": "cuda:1",
        "keys": {0: "zero", "a": 1},
        "ddict": {"x": [1]},
    }


@pytest.mark.parametrize("path", [ZIP, LEGACY])
def test_views_share_bytes_and_equal_views_are_tied(path: Path) -> None:
    model = read(path)["model"]
    assert model["weight"] is model["tied"]
    (whole,), (turned,), (part,) = (
        model[key].data for key in ("weight", "transposed", "slice")
    )
    assert whole.strides is None
    assert turned.offset == whole.offset
    assert turned.strides == (4, 24)
    assert part.offset == whole.offset + 4 * (6 + 2)
    assert part.strides == (24, 4)
    assert model["expanded"].data[0].strides == (0, 4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sparse", "sparse"),
        ("quantised", "quantised"),
        ("complex32", r"torch\.complex32"),
        ("meta", "meta device"),
        ("conjugate", "conjugate"),
        ("nested", "nested"),
    ],
)
def test_tensors_that_cannot_be_read_are_named(name: str, message: str) -> None:
    with pytest.raises(Unsupported, match=rf"{message}.*model/{name}"):
        read(PEERS / "torch_refused" / f"{name}.pt")


def test_a_pickled_module_is_refused_by_its_class() -> None:
    with pytest.raises(Untrusted, match=r"torch\.nn\.modules\.linear\.Linear"):
        read(PEERS / "torch_refused" / "module.pt")


def test_a_part_of_an_object_is_read_in_one_request(tmp_path: Path) -> None:
    item = (ZIP).read_bytes()
    (tmp_path / "parts").write_bytes(b"x" * 1001 + item + b"y" * 99)
    store = open_store(tmp_path)
    requests: list[int] = []

    with store.open("parts") as opened:

        class Counted:
            size = opened.size

            def read_into(self, offset: int, buffer: Any) -> None:
                requests.append(offset)
                opened.read_into(offset, buffer)

        blob = Blob("parts", 1001, len(item))
        tree = read_torch(store, blob, reader=Counted())  # pyright: ignore
    assert requests == [1001]
    compare(tmp_path, tensors(tree), PEERS / "torch_zip.expected.json")


def test_bytes_in_memory_give_blocks_in_the_blob_they_came_from() -> None:
    data = (ZIP).read_bytes()
    blob = Blob("packed", 7, 12, "zstd")
    tree = read_torch_bytes(data, blob, where="packed")
    (block,) = tree["model"]["weight"].data
    assert block.blob == blob
    (same,) = read(ZIP)["model"]["weight"].data
    assert block.offset == same.offset


def test_a_large_file_is_read_by_range(tmp_path: Path) -> None:
    data = np.arange(1 << 20, dtype=np.float32)
    state = make_pickle(1 << 20, (1 << 20,), (1,))
    (tmp_path / "a.pt").write_bytes(make_zip(state, data.tobytes()))
    tracemalloc.start()
    tree = read(tmp_path / "a.pt")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    (block,) = tree.data
    whole = (tmp_path / "a.pt").read_bytes()[block.offset :][: data.nbytes]
    assert np.array_equal(np.frombuffer(whole, np.float32), data)


class Remote:
    """A store that says of itself that its requests take long."""

    is_remote, parallel = True, 8

    def __init__(self, store: Any) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def test_a_remote_store_is_asked_for_many_storages_at_once() -> None:
    store: Any = Remote(open_store("memory://formats-torch"))
    padding = {f"a/data/{n}": bytes(5000) for n in range(1, 20)}
    data = make_zip(make_pickle(4, (4,), (1,)), bytes(16), padding)
    with store.write("a.pt", size=len(data)) as writer:
        writer.write([data])
    tree = read_torch(store, Blob("a.pt", 0, len(data)))
    (block,) = tree.data
    assert block.offset == data.index(b"a/data/0") + len("a/data/0")

    names = [f"{n}.pt" for n in range(5)]
    for name in names:
        with store.write(name, size=len(data)) as writer:
            writer.write([data])
    files = read_files(store, names)
    assert list(files.trees) == names
    assert all(files.trees[n].data[0].blob.name == n for n in names)


def make_pickle(
    count: Any,
    size: Any,
    stride: Any,
    offset: Any = 0,
    key: str = "0",
    kind: bytes = b"FloatStorage",
) -> bytes:
    """Return the pickle of one tensor over a storage."""
    head = b"\x80\2ctorch._utils\n_rebuild_tensor_v2\n("
    storage = (
        b"(X\7\0\0\0storagectorch\n" + kind + b"\n" + put(key) + put("cpu") + put(count)
    )
    rest = put(offset) + put(size) + put(stride) + put(False)
    return head + storage + b"tQ" + rest + b"ccollections\nOrderedDict\n)RtR."


def put(value: Any) -> bytes:
    return pickle.dumps(value, 2)[2:-1].replace(b"q\0", b"")


def make_zip(
    state: bytes, storage: bytes = b"", more: dict[str, bytes] | None = None
) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a/data.pkl", state)
        archive.writestr("a/data/0", storage)
        for name, data in (more or {}).items():
            archive.writestr(name, data)
    return out.getvalue()


def test_archives_of_other_writers_are_read() -> None:
    tree = read_bytes(make_zip(make_pickle(6, (2, 3), (3, 1)), bytes(24)))
    assert (tree.dtype, tree.shape) == ("float32", (2, 3))


BAD_TENSORS = {
    "beyond": (4, (5,), (1,), 0, Untrusted),
    "offset beyond": (4, (4,), (1,), 1, Untrusted),
    "stride beyond": (4, (2, 2), (3, 1), 0, Untrusted),
    "huge stride": (4, (2,), (2**61,), 0, Untrusted),
    "huge size": (4, (2**61,), (1,), 0, Untrusted),
    "huge product": (4, (2**60,) * 5, (0,) * 5, 0, LimitExceeded),
    "repeated for ever": (4, (2**40,), (0,), 0, LimitExceeded),
    "negative stride": (4, (2,), (-1,), 1, Untrusted),
    "negative size": (4, (-2,), (1,), 0, Untrusted),
    "negative offset": (4, (2,), (1,), -1, Untrusted),
    "two ranks": (4, (2, 2), (1,), 0, Untrusted),
    "many dimensions": (4, (1,) * 65, (1,) * 65, 0, LimitExceeded),
    "sizes of no number": (4, ("a",), (1,), 0, Untrusted),
    "sizes that are a list": (4, [2], (1,), 0, Untrusted),
    "offset of no number": (4, (2,), (1,), 1.5, Untrusted),
    "another count": (5, (2,), (1,), 0, Damaged),
    "negative count": (-1, (2,), (1,), 0, Untrusted),
    "huge count": (2**62, (2,), (1,), 0, Untrusted),
    "count of no number": ("a", (2,), (1,), 0, Untrusted),
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_tensors_outside_their_storage_are_refused(name: str) -> None:
    count, size, stride, offset, error = BAD_TENSORS[name]
    with pytest.raises(error, match=r"a\.pt"):
        read_bytes(make_zip(make_pickle(count, size, stride, offset), bytes(16)))


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"a/byteorder": b"big"}, Unsupported, "little-endian"),
        ({"a/byteorder": b"b" * 1000}, Untrusted, "byte order"),
        ({"b/data.pkl": b"N."}, Untrusted, "one data.pkl"),
        ({"a/constants.pkl": b"N."}, Unsupported, "TorchScript"),
    ],
)
def test_other_archives_are_refused(
    more: dict[str, bytes], error: type[CkptError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_bytes(make_zip(make_pickle(4, (4,), (1,)), bytes(16), more))


def test_a_storage_that_is_missing_is_damage() -> None:
    with pytest.raises(Damaged, match="a/data/1"):
        read_bytes(make_zip(make_pickle(4, (4,), (1,), key="1"), bytes(16)))
    with pytest.raises(Damaged, match="a/data/"):
        read_bytes(make_zip(make_pickle(4, (4,), (1,), key="../x"), bytes(16)))


def test_compressed_members_are_unsupported() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(1 << 20))
    with pytest.raises(Unsupported, match="compressed"):
        read_bytes(out.getvalue())


def test_members_that_overlap_are_refused() -> None:
    good = make_zip(make_pickle(4, (4,), (1,)), bytes(16))
    at = good.index(b"PK\3\4", 4)
    member = good[at : good.index(b"PK\1\2")]
    # The storage's header and bytes lie behind the pickle's end, within its member.
    data = bytearray(make_zip(make_pickle(4, (4,), (1,)) + member, bytes(16)))
    struct.pack_into("<L", data, data.rindex(b"PK\1\2") + 42, data.index(member))
    with pytest.raises(Untrusted, match="apart"):
        read_bytes(bytes(data))


def test_a_directory_of_wrong_numbers_is_refused() -> None:
    good = make_zip(make_pickle(4, (4,), (1,)), bytes(16))
    end = good.rindex(b"PK\5\6")
    for at, form, value in [
        (8, "<H", 60000),
        (12, "<L", 2**32 - 2),
        (16, "<L", 2**32 - 2),
        (4, "<H", 3),
        (10, "<H", 0xFFFF),
    ]:
        data = bytearray(good)
        struct.pack_into(form, data, end + at, value)
        with pytest.raises(CkptError):
            read_bytes(bytes(data))


def test_zip64_numbers_are_read_from_where_they_are_kept() -> None:
    good = make_zip(make_pickle(4, (4,), (1,)), bytes(16))
    end = good.rindex(b"PK\5\6")
    _, _, _, _, count, size, start, _ = struct.unpack("<4s4H2LH", good[end:])
    record = struct.pack(
        "<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start
    )
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, end, 1)
    last = struct.pack(
        "<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 2**32 - 1, 2**32 - 1, 0
    )
    assert read_bytes(good[:end] + record + locator + last).shape == (4,)
    beyond = struct.pack("<4sLQL", b"PK\6\7", 0, 2**63, 1)
    with pytest.raises(Untrusted, match="zip64"):
        read_bytes(good[:end] + record + beyond + last)


def test_a_changed_pickle_is_damage_and_a_changed_storage_is_found_by_a_check(
    tmp_path: Path,
) -> None:
    good = (ZIP).read_bytes()
    path = tmp_path / "zip.pt"
    path.write_bytes(good)
    checks: list[Check] = []
    (block,) = read(path, checks)["model"]["weight"].data
    (check,) = checks
    check.work()
    assert (check.name, check.size) == ("zip.pt", len(good))

    data = bytearray(good)
    data[block.offset] ^= 1
    path.write_bytes(data)
    read(path)
    with pytest.raises(Damaged, match=r"checksum.*zip\.pt"):
        check.work()

    data = bytearray(good)
    data[good.index(b"plain")] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged, match="checksum"):
        read(path)


@pytest.mark.parametrize("path", [ZIP, LEGACY])
def test_a_file_that_was_cut_short_is_damaged(path: Path) -> None:
    data = (path).read_bytes()
    for length in [0, 3, 20, 64, 500, len(data) // 2, len(data) - 1]:
        with pytest.raises(Damaged, match=r"a\.pt"):
            read_bytes(data[:length])


def test_a_legacy_file_of_another_machine_is_unsupported() -> None:
    system = {"protocol_version": 1001, "little_endian": False, "type_sizes": {}}
    parts = [0x1950A86A20F9469CFC6C, 1001, system, {}, []]
    data = b"".join(pickle.dumps(part, 2) for part in parts)
    with pytest.raises(Unsupported, match="little-endian"):
        read_bytes(data)


def test_a_legacy_file_of_other_keys_is_refused() -> None:
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
    head = [0x1950A86A20F9469CFC6C, 1001, system]
    start = b"".join(pickle.dumps(part, 2) for part in head)
    tensor = make_pickle(4, (4,), (1,))
    good = start + tensor + pickle.dumps(["0"], 2) + struct.pack("<q", 4) + bytes(16)
    assert read_bytes(good).shape == (4,)
    for keys in (["1"], [], ["0", "0"], [0], {}):
        with pytest.raises(Untrusted, match="keys"):
            read_bytes(start + tensor + pickle.dumps(keys, 2) + bytes(24))
    with pytest.raises(Damaged, match="storage '0'"):
        read_bytes(good.replace(struct.pack("<q", 4), struct.pack("<q", 5)))


def folder(path: Path, file: str = "") -> Folder:
    store = open_store(path)
    return Folder(store, tuple(store.list("")), file=file)


def test_a_folder_of_one_file_opens_as_its_tree(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes((ZIP).read_bytes())
    (tmp_path / "README.md").write_text("none")
    found = find_torch(folder(tmp_path))
    assert found is not None
    assert (found.format, found.objects) == ("torch", ("model.pt",))
    assert found.tree["plain"]["int"] == 3
    assert len(found.checks) == 1


def test_a_file_opens_by_its_name() -> None:
    found = find_torch(folder(LEGACY.parent, "model.pt"))
    assert found is not None
    assert found.tree["plain"]["int"] == 3
    assert find_torch(folder(PEERS / "torch_refused")) is None
    assert find_torch(folder(PEERS, "torch_zip.expected.json")) is None


def test_shards_open_as_one_tree(tmp_path: Path) -> None:
    root = PEERS / "torch_sharded"
    found = find_torch(folder(root))
    assert found is not None
    compare(root, tensors(found.tree), PEERS / "torch_sharded.expected.json")
    assert len(found.objects) == 3
    assert len(found.checks) == 2

    for path in root.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(Damaged, match=r"00002-of-00002\.bin, found none"):
        find_torch(folder(tmp_path))


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"[]",
        b"{}",
        b'{"weight_map": []}',
        b'{"weight_map": {"a": 1}}',
        b'{"weight_map": {"a": "../a.bin"}}',
        b'{"weight_map": {"a": "/etc/passwd"}}',
        b'{"weight_map": {"a": "b/c.bin"}}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_an_index_of_other_things_is_refused(tmp_path: Path, index: bytes) -> None:
    (tmp_path / "pytorch_model.bin.index.json").write_bytes(index)
    with pytest.raises(Untrusted):
        find_torch(folder(tmp_path))


def test_the_model_comes_before_other_files(tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "training_args.bin"):
        (tmp_path / name).write_bytes((ZIP).read_bytes())
    found = find_torch(folder(tmp_path))
    assert found is not None
    assert found.objects == ("pytorch_model.bin",)
    assert "training_args.bin" in found.notes[0]


@pytest.mark.parametrize("path", [ZIP, LEGACY])
@given(draw=st.data())
@settings(max_examples=40, deadline=None)
def test_changed_files_are_read_or_refused(path: Path, draw: st.DataObject) -> None:
    data = bytearray((path).read_bytes())
    # Changes of the directory and the pickle's checksum are what others hide behind.
    crc = data.find(b"PK\1\2") + 16
    if path == ZIP:
        data[crc : crc + 4] = bytes(4)
    areas = st.one_of(
        st.integers(0, len(data) - 1),
        st.integers(0, 3000),
        st.integers(len(data) - 4000, len(data) - 1),
    )
    for _ in range(draw.draw(st.integers(1, 4))):
        value = draw.draw(st.sampled_from([0, 1, 0x2E, 0x7F, 0x80, 0xFF]))
        data[draw.draw(areas)] = value
    with contextlib.suppress(CkptError):
        for tensor in tensors(read_bytes(bytes(data))).values():
            if isinstance(tensor.data, tuple):
                (block,) = tensor.data
                assert block.offset + block.box.size >= 0
                assert block.offset <= len(data)


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_legacy_files_of_each_protocol_are_read(tmp_path: Path, protocol: int) -> None:
    whole = LEGACY.read_bytes()
    number = pickle.loads(whole)
    old, new = pickle.dumps(number, 2), pickle.dumps(number, protocol)
    assert whole.startswith(old)
    (tmp_path / "model.pt").write_bytes(new + whole[len(old) :])
    opened = find_torch(folder(tmp_path, "model.pt"))
    assert opened is not None
    compare(tmp_path, tensors(opened.tree), PEERS / "torch_legacy.expected.json")


def copy_shards(tmp_path: Path, *, index: str) -> Path:
    root = tmp_path / "model"
    shutil.copytree(PEERS / "torch_sharded", root)
    (named,) = root.glob("*.index.json")
    if index:
        named.rename(root / index)
    else:
        named.unlink()
    return root


@pytest.mark.parametrize("index", ["", "pytorch_model.bin.index.fp16.json"])
def test_shards_are_read_without_an_index_and_by_that_of_a_variant(
    tmp_path: Path, index: str
) -> None:
    root = copy_shards(tmp_path, index=index)
    for name in ("training_args.bin", "optimizer.pt"):
        (root / name).write_bytes(b"not read")
    opened = find_torch(folder(root))
    assert opened is not None
    compare(root, tensors(opened.tree), PEERS / "torch_sharded.expected.json")


def test_shards_without_an_index_of_which_one_is_missing_are_refused(
    tmp_path: Path,
) -> None:
    root = copy_shards(tmp_path, index="")
    min(root.glob("*.bin")).unlink()
    with pytest.raises(Damaged, match="bring all shards together"):
        find_torch(folder(root))


@pytest.mark.parametrize("name", ["diffusion_pytorch_model", "adapter_model", "a"])
def test_what_trainers_write_beside_a_model_does_not_count(
    tmp_path: Path, name: str
) -> None:
    shutil.copy(ZIP, tmp_path / f"{name}.bin")
    for other in ("training_args.bin", "optimizer.pt", "rng_state_0.pth"):
        (tmp_path / other).write_bytes(b"not read")
    opened = find_torch(folder(tmp_path))
    assert opened is not None
    assert opened.objects == (f"{name}.bin",)
    assert "training_args.bin" in opened.notes[-1]


def test_a_model_is_not_taken_for_what_its_name_begins_with(tmp_path: Path) -> None:
    shutil.copy(ZIP, tmp_path / "optimizer.pt.ckpt")
    (tmp_path / "scheduler.pt").write_bytes(b"not read")
    opened = find_torch(folder(tmp_path))
    assert opened is not None
    assert opened.objects == ("optimizer.pt.ckpt",)


def write_pickle(path: Path, value: Any) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(value, 2))


def test_objects_beside_tensors_are_passed_over_with_a_note(tmp_path: Path) -> None:
    odd = {
        "when": datetime.datetime(2024, 1, 2),
        "part": slice(1, 2),
        "counts": range(3),
        "names": np.array(["a", "b"]),
        "half": fractions.Fraction(1, 2),
        "call": functools.partial(int, base=2),
        "free": types.SimpleNamespace(a=1),
        "kind": int,
    }
    write_pickle(tmp_path / "a.ckpt", {"step": 3, "odd": odd})
    opened = find_torch(folder(tmp_path, "a.ckpt"))
    assert opened is not None
    assert opened.tree == {"step": 3, "odd": dict.fromkeys(odd)}
    assert all(any(f"`odd/{key}`" in note for note in opened.notes) for key in odd)


def test_a_file_of_nothing_but_an_object_is_refused(tmp_path: Path) -> None:
    write_pickle(tmp_path / "a.pt", datetime.datetime(2024, 1, 2))
    with pytest.raises(Unsupported, match=r"datetime\.datetime"):
        find_torch(folder(tmp_path, "a.pt"))
