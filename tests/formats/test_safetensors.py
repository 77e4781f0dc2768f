"""What safetensors files, indexes and folders of them say is found, or refused."""

import json
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import ckpt
from ckpt._store import open_store
from ckpt.formats._entry import Catalogue, Folder, Lazy
from ckpt.formats._safetensors import find_safetensors
from layouts import Box
from tests.formats._files import make_file, put_set, with_header
from tests.formats._read_files import (
    PEERS,
    check_values,
    expected_of,
    folder_of,
    materialise,
)

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(4, dtype=np.int32)
C = np.float64(2.5).reshape(())


def find(path: Path, file: str = "") -> Catalogue:
    found = find_safetensors(folder_of(path, file))
    assert found is not None
    return found


def values_of(path: Path, file: str = "") -> dict[str, np.ndarray]:
    folder = folder_of(path, file)
    found = find_safetensors(folder)
    assert found is not None
    return {name: materialise(folder, x) for name, x in found.tree.items()}


def refuse(error: type[Exception], text: str, path: Path, file: str = "") -> None:
    with pytest.raises(error) as raised:
        find_safetensors(folder_of(path, file))
    assert text in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "notes"),
    [
        ("st_torch_all", ()),
        ("st_flax", ()),
        ("dcp_hf_mesh4_consolidated", ()),
    ],
)
def test_a_set_of_a_peer_has_the_values_it_was_made_with(
    name: str, notes: tuple[str, ...]
) -> None:
    folder = folder_of(PEERS / name)
    found = find(PEERS / name)
    check_values(folder, found, expected_of(name)["tensors"])
    assert (found.format, found.notes) == ("safetensors", notes)


def test_a_sharded_set_has_its_ties_and_metadata() -> None:
    folder = folder_of(PEERS / "st_hub_sharded")
    found = find(PEERS / "st_hub_sharded")
    assert found.tree.pop("head") is found.tree["embed"]
    check_values(folder, found, expected_of("st_hub_sharded")["tensors"])
    assert found.meta["metadata"]["mykey"] == "myvalue"
    assert found.objects[0] == "model.safetensors.index.json"
    assert len(found.objects) == 5
    assert find(PEERS / "st_hub_sharded", "model.safetensors.index.json").tree


@pytest.mark.parametrize("below", [False, True])
def test_parts_of_many_processes_are_joined(tmp_path: Path, below: bool) -> None:
    name = "dcp_hf_mesh4_consolidated"
    sharded = PEERS / name / "sharded"
    if below:
        files = {f"sharded/{p.name}": p.read_bytes() for p in sharded.iterdir()}
        sharded = put_set(tmp_path, files)
    found = find(sharded)
    check_values(folder_of(sharded), found, expected_of(name)["tensors"])
    assert bool(found.notes) == below
    assert "DCP_SHARDING_INFO" not in found.meta["metadata"]


def test_names_keep_their_dots_and_their_order(tmp_path: Path) -> None:
    path = put_set(tmp_path, {"x.safetensors": make_file({"b.1": B, "a/c": A, "": C})})
    assert list(values_of(path)) == ["b.1", "a/c", ""]
    assert find(path, "x.safetensors").objects == ("x.safetensors",)


def test_other_folders_are_not_ours(tmp_path: Path) -> None:
    put_set(tmp_path, {"model.bin": b"", "unet/x.safetensors": make_file({"a": A})})
    assert find_safetensors(folder_of(tmp_path)) is None
    assert find_safetensors(folder_of(tmp_path, "model.bin")) is None
    assert find_safetensors(Folder(open_store("memory://nothing-here"), ())) is None


def test_every_dtype_of_safetensors_is_read_as_its_own(tmp_path: Path) -> None:
    dtypes = {
        **{name: name for name in ("bool", "uint8", "int8", "int16", "uint16")},
        **{name: name for name in ("float16", "int32", "uint32", "float32")},
        **{name: name for name in ("complex64", "float64", "int64", "uint64")},
    }
    tensors = {name: np.ones((2, 3), name) for name in dtypes}
    # What safetensors' numpy side has no name for is written by hand.
    bits = {
        "F8_E5M2": "float8_e5m2",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E8M0": "float8_e8m0fnu",
        "F8_E4M3FNUZ": "float8_e4m3fnuz",
        "F8_E5M2FNUZ": "float8_e5m2fnuz",
        "BF16": "bfloat16",
    }
    save_file(tensors, tmp_path / "a.safetensors")
    header, data = {}, b""
    for told, name in bits.items():
        raw = np.ones(4, getattr(ml_dtypes, name)).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": told, "shape": [4], "data_offsets": offsets}
        data += raw
    file = with_header(json.dumps(header).encode(), data)
    (tmp_path / "b.safetensors").write_bytes(file)
    found = values_of(tmp_path)
    assert {n: x.dtype.name for n, x in found.items()} == {
        name: name for name in [*dtypes, *bits.values()]
    }
    assert all((x.astype(complex) == 1).all() for x in found.values())


def test_float4_lies_two_a_byte_the_first_in_the_low_half(tmp_path: Path) -> None:
    entry = {"dtype": "F4", "shape": [3, 4], "data_offsets": [0, 6]}
    data = bytes([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA])
    file = with_header(json.dumps({"a": entry}).encode(), data)
    path = put_set(tmp_path, {"a.safetensors": file})
    tensor = find(path).tree["a"]
    whole = values_of(path)["a"]
    assert whole.view(np.uint8).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert isinstance(tensor.data, Lazy)
    for box in [Box((1, 1), (2, 2)), Box((0, 3), (3, 1)), Box((2, 0), (1, 4))]:
        part = tensor.data.read(box)
        assert part.view(np.uint8).tolist() == whole.view(np.uint8)[box.slices].tolist()


def test_the_index_decides_which_file_has_a_tensor(tmp_path: Path) -> None:
    files = {
        "one.safetensors": make_file({"a": A, "b": B + 1}),
        "two.safetensors": make_file({"b": B, "old": C}),
        "model.safetensors": make_file({"a": A + 1}),
    }
    weights = {"b": "two.safetensors", "a": "one.safetensors"}
    index = {"metadata": {"total_size": "wrong"}, "weight_map": weights}
    path = put_set(tmp_path, files, index)
    found = values_of(path)
    assert list(found) == ["b", "a"]
    np.testing.assert_array_equal(found["a"], A)
    np.testing.assert_array_equal(found["b"], B)
    told = "\n".join(find(path).notes)
    assert "model.safetensors" in told
    assert "`old` in two.safetensors" in told
    assert "`b` in one.safetensors" in told


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors.index.fp16.json",
        "diffusion_pytorch_model.safetensors.index.json",
        "consolidated.safetensors.index.json",
    ],
)
def test_an_index_may_have_another_name(tmp_path: Path, name: str) -> None:
    file = name.split(".")[0] + ".fp16-00001-of-00001.safetensors"
    put_set(tmp_path, {file: make_file({"a": A})})
    (tmp_path / name).write_text(json.dumps({"weight_map": {"a": file}}))
    np.testing.assert_array_equal(values_of(tmp_path)["a"], A)


def test_the_plain_index_wins_over_a_variant(tmp_path: Path) -> None:
    files = {
        n: make_file({"a": A + k})
        for k, n in enumerate(["x.safetensors", "y.safetensors"])
    }
    put_set(tmp_path, files, {"weight_map": {"a": "x.safetensors"}})
    variant = tmp_path / "model.safetensors.index.fp16.json"
    variant.write_text(json.dumps({"weight_map": {"a": "y.safetensors"}}))
    np.testing.assert_array_equal(values_of(tmp_path)["a"], A)
    np.testing.assert_array_equal(values_of(tmp_path, variant.name)["a"], A + 1)
    assert any(variant.name in note for note in find(tmp_path).notes)
    (tmp_path / "model.safetensors.index.json").rename(
        tmp_path / "model.safetensors.index.fp32.json"
    )
    refuse(ckpt.Unsupported, "expected one index", tmp_path)


def test_all_that_an_index_promises_must_be_there(tmp_path: Path) -> None:
    weights = {f"w{n}": f"{n:02}.safetensors" for n in range(30)}
    files = {f"{n:02}.safetensors": make_file({f"w{n}": A}) for n in range(2)}
    path = put_set(tmp_path, files, {"weight_map": weights})
    refuse(ckpt.Damaged, "found 28 missing: 02.safetensors, 03", path)
    refuse(ckpt.Damaged, "21.safetensors and 8 more", path)
    weights = {"w0": "00.safetensors", "w1": "00.safetensors", "x": "01.safetensors"}
    put_set(tmp_path, {}, {"weight_map": weights})
    refuse(
        ckpt.Damaged, "found 2 missing from the files that it names: `w1`, `x`", path
    )


@pytest.mark.parametrize(
    "name",
    [
        *("../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..", ""),
        *("C:\\x.safetensors", "C:x.safetensors", "a\\x.safetensors", "x.bin"),
        *("a\0.safetensors", "x.safetensors/", "é.safetensors", 5, None, ["a"]),
    ],
)
def test_an_index_names_files_beside_it_and_nothing_else(
    tmp_path: Path, name: Any
) -> None:
    files = {"x.safetensors": make_file({"a": A})}
    path = put_set(tmp_path / "set", files, {"weight_map": {"a": name}})
    (tmp_path / "x.safetensors").write_bytes(files["x.safetensors"])
    refuse(ckpt.Untrusted, "beside the index", path)


@pytest.mark.parametrize(
    "index",
    [
        *(
            b"",
            b"[]",
            b"{",
            b"{}",
            b'{"weight_map": []}',
            b'{"weight_map": {"a": NaN}}',
        ),
        *(b'{"weight_map": {}, "weight_map": {}}', b'{"weight_map": {"\\ud800": "a"}}'),
        b'{"weight_map": {"__metadata__": "x.safetensors"}}',
        b'{"weight_map": ' + b'{"a":' * 100_000,
    ],
)
def test_an_index_is_strict_json(tmp_path: Path, index: bytes) -> None:
    path = put_set(tmp_path, {"x.safetensors": make_file({"a": A})}, index)
    refuse(ckpt.Untrusted, "index", path)


def test_ties_are_taken_where_they_name_a_tensor(tmp_path: Path) -> None:
    told = {"head": "a", "b": "a", "note": "no tensor", "format": "pt"}
    path = put_set(tmp_path, {"x.safetensors": make_file({"a": A, "b": B}, told)})
    tree = find(path).tree
    assert list(tree) == ["a", "b", "head"]
    assert tree["head"] is tree["a"]
    assert tree["b"] is not tree["a"]


def test_the_format_of_a_file_is_no_tie(tmp_path: Path) -> None:
    file = make_file({"pt": A}, {"format": "pt"})
    assert list(find(put_set(tmp_path, {"x.safetensors": file})).tree) == ["pt"]


def test_a_folder_of_whole_tensors_is_no_set_of_parts(tmp_path: Path) -> None:
    path = put_set(tmp_path, {"sharded/x.safetensors": make_file({"a": A})})
    assert find_safetensors(folder_of(path)) is None
    part_of = make_file({"b": A}, {"DCP_SHARDING_INFO": "{}"})
    put_set(tmp_path, {"sharded/y.safetensors": part_of})
    refuse(ckpt.Unsupported, "found both", path)


def test_what_a_killed_export_left_is_passed_over(tmp_path: Path) -> None:
    files = {
        "model.safetensors": make_file({"a": A}),
        "model.0a1b2c3d-00001-of-00002.safetensors": make_file({"a": A + 1}),
    }
    path = put_set(tmp_path, files)
    np.testing.assert_array_equal(values_of(path)["a"], A)
    assert "0a1b2c3d" in find(path).notes[0]


def test_files_without_an_index_are_one_set_if_their_names_differ(
    tmp_path: Path,
) -> None:
    files = {"x.safetensors": make_file({"a": A}), "y.safetensors": make_file({"b": B})}
    path = put_set(tmp_path, files)
    assert list(values_of(path)) == ["a", "b"]
    put_set(tmp_path, {"z.safetensors": make_file({"b": B})})
    refuse(ckpt.Unsupported, "found `b` in several", path)
    put_set(tmp_path, {"model.safetensors": make_file({"b": B + 1})})
    np.testing.assert_array_equal(values_of(path)["b"], B + 1)
    assert "x.safetensors, y.safetensors, z.safetensors" in find(path).notes[0]


def test_numbered_files_without_an_index_must_all_be_there(tmp_path: Path) -> None:
    names = [f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)]
    files = {n: make_file({f"w{k}": A}) for k, n in enumerate(names)}
    path = put_set(tmp_path, files)
    assert list(values_of(path)) == ["w0", "w1", "w2"]
    (path / names[1]).unlink()
    refuse(ckpt.Damaged, f"found 1 missing: {names[1]}", path)
    put_set(tmp_path, {"model.safetensors": make_file({"a": A})})
    assert list(values_of(path)) == ["a"]
    assert names[0] in find(path).notes[0]
    (path / "model-00001-of-99999999.safetensors").write_bytes(b"")
    (path / "model.safetensors").unlink()
    refuse(ckpt.Damaged, "and", path)


def test_another_name_scheme_of_the_same_model_is_passed_over(tmp_path: Path) -> None:
    files = {
        "consolidated.safetensors": make_file({"x": A}),
        "model.safetensors": make_file({"y": A}),
    }
    assert list(values_of(put_set(tmp_path, files))) == ["y"]


def part(start: list[int] | None, values: np.ndarray, name: str = "w") -> bytes:
    offsets = {} if start is None else {name: {"saved_offsets": start}}
    return make_file({name: values}, {"DCP_SHARDING_INFO": json.dumps(offsets)})


def put_parts(folder: Path, *parts: bytes) -> Path:
    names = [f"shard-{n:05}-model-00001-of-00001.safetensors" for n in range(1, 99)]
    return put_set(folder, dict(zip(names, parts, strict=False)))


def test_equal_parts_are_replicas_and_empty_ones_count_for_nothing(
    tmp_path: Path,
) -> None:
    whole = np.arange(12, dtype=np.float32).reshape(4, 3)
    empty = np.zeros((0, 3), np.float32)
    parts = [part([2, 0], whole[2:]), part([0, 0], whole[:2]), part([2, 0], whole[2:])]
    path = put_parts(tmp_path, *parts, part([4, 0], empty))
    np.testing.assert_array_equal(values_of(path)["w"], whole)


@pytest.mark.parametrize(
    "parts",
    [
        [part([0, 0], A), part([3, 0], A)],
        [part([0, 0], A), part([1, 0], A)],
        [part([0, 0], A), part([2, 3], A)],
        [part([1 << 61, 0], A)],
    ],
)
def test_parts_that_do_not_cover_the_whole_once_are_damage(
    tmp_path: Path, parts: list[bytes]
) -> None:
    refuse(ckpt.Damaged, "'w'", put_parts(tmp_path, *parts))


@pytest.mark.parametrize(
    "parts",
    [
        [part([0], A)],
        [part([0, 0], A), part([2, 0], A.astype(np.int32))],
        [part([0, 0], A), part([0], B)],
        [part([-1, 0], A)],
        [part([1 << 64, 0], A)],
        [make_file({"w": A}, {"DCP_SHARDING_INFO": "[]"})],
        [make_file({"w": A}, {"DCP_SHARDING_INFO": '{"w": 1}'})],
        [make_file({"w": A}, {"DCP_SHARDING_INFO": '{"w": {"saved_offsets": "a"}}'})],
        [make_file({"w": A}, {"DCP_SHARDING_INFO": "[" * 100_000})],
    ],
)
def test_parts_that_contradict_each_other_are_refused(
    tmp_path: Path, parts: list[bytes]
) -> None:
    refuse(ckpt.Untrusted, "shard-0000", put_parts(tmp_path, *parts))


def test_a_missing_process_among_the_parts_is_seen(tmp_path: Path) -> None:
    path = put_parts(tmp_path, part([0, 0], A), part([2, 0], A), part([0, 0], A, "v"))
    (path / "shard-00002-model-00001-of-00001.safetensors").unlink()
    refuse(ckpt.Damaged, "shard-00002-*", path)
    # A number as large as names can say is not counted up to.
    third = "shard-00003-model-00001-of-00001.safetensors"
    (path / third).rename(path / third.replace("00003", "999999999"))
    refuse(ckpt.Damaged, "shard-00021-*", path)


def test_one_file_of_parts_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    path = put_parts(tmp_path, part([0, 0], A), part([2, 0], A))
    name = "shard-00001-model-00001-of-00001.safetensors"
    refuse(ckpt.Unsupported, "open its folder", path, name)
    (path / "shard-00002-model-00001-of-00001.safetensors").unlink()
    np.testing.assert_array_equal(values_of(path, name)["w"], A)
    put_set(path, {"other.safetensors": make_file({"a": A})})
    refuse(ckpt.Unsupported, "found both", path)


def test_a_truncated_shard_is_found_without_reading_it(tmp_path: Path) -> None:
    data = make_file({"a": A})
    path = put_set(tmp_path, {"x.safetensors": data[:-1]})
    refuse(ckpt.Damaged, "found 23", path)
    put_set(tmp_path, {"x.safetensors": data + b"\0"})
    refuse(ckpt.Untrusted, "nothing may follow", path)


def sparse(path: Path, head: bytes, size: int) -> Path:
    path.mkdir(exist_ok=True)
    with open(path / "x.safetensors", "wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def many(text: bytes, count: int) -> bytes:
    return with_header(b'{"a":[' + b",".join([text] * count) + b"]}")


@pytest.mark.parametrize(
    ("head", "size", "error"),
    [
        (struct.pack("<Q", 100_000_000), 100_000_008, ckpt.LimitExceeded),
        (struct.pack("<Q", 25_000_001), 25_000_009, ckpt.LimitExceeded),
        (struct.pack("<Q", (1 << 64) - 1), 100, ckpt.Damaged),
        (struct.pack("<Q", 24_000_000) + b"{", 24_000_008, ckpt.Untrusted),
        (many(b"{}", 2_000_000), None, ckpt.LimitExceeded),
        (many(b"1", 10_000_000), None, ckpt.LimitExceeded),
        (many(b"[" * 50_000, 1), None, ckpt.Untrusted),
        (many(b"1" * 20_000_000, 1), None, ckpt.Untrusted),
        (with_header(b'{"a":"' + b"x" * 24_000_000 + b'"}'), None, ckpt.Untrusted),
        (
            with_header('{"a":"\U0001f600'.encode() + b"x" * 24_000_000 + b'"}'),
            None,
            ckpt.LimitExceeded,
        ),
    ],
    ids=[
        *("100 MB", "25 MB", "2**64", "no JSON", "values", "numbers", "deep", "digits"),
        *("text", "wide"),
    ],
)
def test_a_hostile_header_costs_little(
    tmp_path: Path, head: bytes, size: int | None, error: type[Exception]
) -> None:
    path = sparse(tmp_path / "a", head, size or len(head))
    del head
    began = time.process_time()
    refuse(error, "x.safetensors", path)
    assert time.process_time() - began < 1
    tracemalloc.start()
    try:
        refuse(error, "x.safetensors", path)
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()


def test_names_and_shapes_of_files_do_not_flood_a_message(tmp_path: Path) -> None:
    entry = {"dtype": "x" * 100_000, "shape": [1] * 50, "data_offsets": [0, 1]}
    file = with_header(json.dumps({"n" * 100_000: entry}).encode(), b"\0")
    path = put_set(tmp_path, {"x.safetensors": file})
    with pytest.raises(ckpt.Untrusted) as raised:
        find(path)
    assert len(str(raised.value)) < 1000


def test_a_set_in_an_object_store_is_found_by_its_headers_alone() -> None:
    store = open_store("memory://safetensors-remote")
    with store.write("model.safetensors", size=None) as out:
        out.write([make_file({"a": A, "b": B})])
    folder = Folder(store, tuple(store.list("")))
    found = find_safetensors(folder)
    assert found is not None
    np.testing.assert_array_equal(materialise(folder, found.tree["a"]), A)


def test_the_path_of_a_file_or_an_index_opens_what_it_names(tmp_path: Path) -> None:
    weights = {"b": "two.safetensors", "a": "one.safetensors"}
    files = {
        "one.safetensors": make_file({"a": A}),
        "two.safetensors": make_file({"b": B}),
    }
    path = put_set(tmp_path, files, {"weight_map": weights})
    index = path / "model.safetensors.index.json"
    assert list(ckpt.open(index)) == ["b", "a"]
    assert list(ckpt.open(path / "one.safetensors")) == ["a"]
    np.testing.assert_array_equal(ckpt.restore(index)["b"], B)
    (path / "one.safetensors").unlink()
    with pytest.raises(ckpt.Damaged, match=r"found 1 missing: one\.safetensors"):
        ckpt.open(index)


def test_what_was_passed_over_is_a_warning(tmp_path: Path) -> None:
    files = {
        "one.safetensors": make_file({"a": A}),
        "model.safetensors": make_file({"a": A + 1}),
    }
    path = put_set(tmp_path, files)
    with pytest.warns(UserWarning, match=r"one\.safetensors have the same names"):
        found = ckpt.restore(path)
    np.testing.assert_array_equal(found["a"], A + 1)
