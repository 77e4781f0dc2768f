"""Orbax checkpoints that are damaged or hostile: refused, by name, before they cost."""

import contextlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorstore as ts

from ckpt import CkptError, Damaged, LimitExceeded, Unsupported, Untrusted
from ckpt.formats._entry import Catalogue, Lazy, Tensor
from ckpt.formats._orbax import find_orbax
from layouts import whole
from tests.formats._memory import HOSTILE_BYTES, measure_growth, refused

from ._gather import PEERS, leaves, look_in


def read(path: Path) -> Catalogue:
    found = find_orbax(look_in(path))
    assert found is not None
    return found


def read_all(path: Path) -> None:
    """Read each tensor, whole: those of hostile shapes must not get this far."""
    found = find_orbax(look_in(path))
    for _, leaf in leaves(found.tree if found else {}):
        if isinstance(leaf, Tensor) and isinstance(leaf.data, Lazy):
            assert np.prod(leaf.shape) < 1 << 20
            leaf.data.read(whole(leaf.shape))


KEPT = ["ids", "n", "params.dense.kernel"]


def copy_files(path: Path) -> Path:
    """Copy a few arrays of a sample that keeps them in folders of files."""
    sample = PEERS / "ox_v0_zarr_dirs"
    path.mkdir()
    for name in KEPT:
        shutil.copytree(sample / name, path / name)
    for name in ["_CHECKPOINT_METADATA", "commit_success.txt", "_sharding"]:
        shutil.copy(sample / name, path / name)
    document = json.loads((sample / "_METADATA").read_text())
    entries = document["tree_metadata"]
    document["tree_metadata"] = {
        keys: entry
        for keys, entry in entries.items()
        if ".".join(key["key"] for key in entry["key_metadata"]) in KEPT
    }
    (path / "_METADATA").write_text(json.dumps(document))
    (path / "array_metadatas").mkdir()
    shutil.copy(sample / "array_metadatas" / "process_0", path / "array_metadatas")
    return path


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A sample whose arrays are folders of files."""
    return copy_files(tmp_path / "saved")


def change(path: Path, edit: Callable[[Any], Any]) -> None:
    value = json.loads(path.read_text())
    path.write_text(json.dumps(edit(value) or value))


def test_a_missing_chunk_is_damage_and_never_zeros(files: Path) -> None:
    (files / "ids" / "2.0").unlink()
    with pytest.raises(Damaged) as caught:
        read_all(files)
    assert str(caught.value) == (
        f"expected a chunk, found none - at `ids`, in {files}/ids/2.0: restore another "
        "step"
    )


@pytest.mark.parametrize("size", [0, 1, 9])
def test_a_truncated_chunk_is_damage(files: Path, size: int) -> None:
    chunk = files / "params.dense.kernel" / "1.1"
    chunk.write_bytes(chunk.read_bytes()[:size])
    with pytest.raises(Damaged, match=r"at `params\.dense\.kernel`, in .*/1\.1"):
        read_all(files)


def test_a_chunk_that_is_too_long_is_damage(files: Path) -> None:
    with (files / "ids" / "0.0").open("ab") as chunk:
        chunk.truncate(1 << 40)
    with pytest.raises(Damaged, match=r"expected about 20 bytes or fewer, found 1,099"):
        read_all(files)


def test_a_missing_array_is_damage(files: Path) -> None:
    shutil.rmtree(files / "ids")
    with pytest.raises(Damaged, match=r"an array, found none - at `ids`"):
        read(files)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"shape": [1 << 40, 1 << 40], "chunks": [1 << 40, 1 << 40]}, LimitExceeded),
        ({"shape": [1 << 20, 1 << 20], "chunks": [1 << 20, 1 << 20]}, Damaged),
        ({"shape": [1 << 20, 1 << 12], "chunks": [1, 1]}, Damaged),
        ({"shape": [8] * 40, "chunks": [8] * 40}, Untrusted),
        ({"shape": [-1, 5]}, Untrusted),
        ({"shape": [8.0, 5]}, Untrusted),
        ({"shape": [True, 5]}, Untrusted),
        ({"shape": "85"}, Untrusted),
        ({"chunks": [0, 5]}, Untrusted),
        ({"chunks": [5]}, Untrusted),
        ({"compressor": {"id": "pickle"}}, Unsupported),
        ({"compressor": "zstd"}, Untrusted),
        ({"filters": [{"id": "delta"}]}, Unsupported),
        ({"dtype": "|O"}, Unsupported),
        ({"dtype": [["a", "<f4"]]}, Unsupported),
        ({"dtype": "<M8[ns]"}, Unsupported),
        ({"dtype": "|i4"}, Untrusted),
        ({"order": "K"}, Untrusted),
        ({"dimension_separator": "/../"}, Untrusted),
        ({"zarr_format": 3}, Untrusted),
    ],
    ids=str,
)
def test_hostile_array_metadata_is_refused_when_opened(
    files: Path, fields: dict[str, Any], error: type[CkptError]
) -> None:
    change(files / "ids" / ".zarray", lambda value: value | fields)
    with pytest.raises(error, match=r"found .* - at `ids`|no device holds"):
        read(files)


@pytest.mark.parametrize(
    "fields",
    [
        {"chunks": [1 << 10, 5]},
        {"dtype": "<i8"},
        {"compressor": None},
        {"compressor": {"id": "gzip"}},
        {"compressor": {"id": "zlib"}},
        {"compressor": {"id": "bz2"}},
        {"compressor": {"id": "blosc"}},
    ],
    ids=str,
)
def test_chunks_that_are_not_what_is_said_are_damage(
    files: Path, fields: dict[str, Any]
) -> None:
    change(files / "ids" / ".zarray", lambda value: value | fields)
    tensor = read(files).tree["ids"]
    with pytest.raises(Damaged, match="at `ids`, in "):
        tensor.data.read(whole((1, 5)))


def sharded(**fields: Any) -> dict[str, Any]:
    inner = {"name": "bytes", "configuration": {"endian": "little"}}
    configuration = {
        "chunk_shape": [2, 2],
        "codecs": [inner],
        "index_codecs": [inner, {"name": "crc32c"}],
    }
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4, 4],
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [
            {"name": "sharding_indexed", "configuration": configuration | fields}
        ],
    }


def write_sharded(path: Path, index: list[tuple[int, int]], **fields: Any) -> Path:
    from crc32c import crc32c

    copy_files(path)
    entry = json.loads((path / "_METADATA").read_text())
    tree = {k: v for k, v in entry["tree_metadata"].items() if k == "('ids',)"}
    entry |= {"tree_metadata": tree, "use_zarr3": True}
    (path / "_METADATA").write_text(json.dumps(entry))
    (path / "ids" / "zarr.json").write_text(json.dumps(sharded(**fields)))
    (path / "ids" / "c" / "0").mkdir(parents=True)
    data = np.arange(16, dtype="<i4").tobytes()
    places = b"".join(struct.pack("<QQ", *pair) for pair in index)
    ends = places + struct.pack("<I", crc32c(places))
    (path / "ids" / "c" / "0" / "0").write_bytes(data + ends)
    return path


def test_a_shard_is_read_by_its_index(tmp_path: Path) -> None:
    path = write_sharded(tmp_path / "s", [(0, 16), (16, 16), (32, 16), (48, 16)])
    found = read(path).tree["ids"].data.read(whole((4, 4)))
    expected = np.arange(16).reshape(2, 2, 2, 2).transpose(0, 2, 1, 3).reshape(4, 4)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "index",
    [
        [(0, 16), (16, 16), (32, 16), (1 << 40, 16)],
        [(0, 16), (16, 16), (32, 16), ((1 << 64) - 8, 16)],
        [(0, 16), (16, 16), (32, 16), (0, (1 << 64) - 2)],
        [(0, 16), (16, 16), (32, 16), ((1 << 64) - 1, 16)],
        [(0, 16), (16, 16), (32, 16), (48, 15)],
        [(0, 16), (16, 16), (32, 16), ((1 << 64) - 1, (1 << 64) - 1)],
    ],
    ids=str,
)
def test_a_shard_whose_index_lies_is_damage(
    tmp_path: Path, index: list[tuple[int, int]]
) -> None:
    path = write_sharded(tmp_path / "s", index)
    with pytest.raises(Damaged, match="at `ids`, in "):
        read_all(path)


def test_chunks_left_out_by_old_versions_are_the_fill_value(tmp_path: Path) -> None:
    absent = ((1 << 64) - 1, (1 << 64) - 1)
    path = write_sharded(tmp_path / "s", [(0, 16), absent, (16, 16), absent])
    change(path / "ids" / "zarr.json", lambda value: value | {"fill_value": 7})
    change(
        path / "_METADATA",
        lambda value: value | {"store_array_data_equal_to_fill_value": False},
    )
    found = read(path).tree["ids"].data.read(whole((4, 4)))
    expected = [[0, 1, 7, 7], [2, 3, 7, 7], [4, 5, 7, 7], [6, 7, 7, 7]]
    assert found.tolist() == expected


def test_a_flipped_bit_in_the_index_of_a_shard_is_damage(tmp_path: Path) -> None:
    path = write_sharded(tmp_path / "s", [(0, 16), (16, 16), (32, 16), (48, 16)])
    shard = path / "ids" / "c" / "0" / "0"
    data = bytearray(shard.read_bytes())
    data[70] ^= 1
    shard.write_bytes(data)
    with pytest.raises(Damaged, match="bytes with their CRC-32C, found others"):
        read_all(path)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"chunk_shape": [3, 2]}, Untrusted),
        ({"chunk_shape": [0, 2]}, Untrusted),
        ({"codecs": []}, Unsupported),
        ({"codecs": [{"name": "sharding_indexed"}]}, Unsupported),
        ({"codecs": [{"name": "bytes"}] * 2}, Unsupported),
        ({"codecs": [{"name": "zstd"}, {"name": "bytes"}]}, Unsupported),
        ({"codecs": [{"name": "bytes"}, {"name": "x-exec"}]}, Unsupported),
        ({"index_codecs": [{"name": "bytes"}, {"name": "zstd"}]}, Untrusted),
        ({"index_location": "middle"}, Untrusted),
        ({"codecs": [{"name": "transpose", "configuration": {"order": [0, 0]}}]}, 0),
    ],
    ids=str,
)
def test_hostile_shards_are_refused_when_opened(
    tmp_path: Path, fields: dict[str, Any], error: type[CkptError]
) -> None:
    path = write_sharded(tmp_path / "s", [(0, 16)] * 4, **fields)
    with pytest.raises(error or Untrusted, match=r"found .* - at `ids`"):
        read(path)


@pytest.mark.parametrize("key", ["../../outside", "/etc", "a/../../b", "a\0b", "a\\b"])
def test_an_array_outside_the_checkpoint_is_refused(files: Path, key: str) -> None:
    def edit(value: Any) -> None:
        value["tree_metadata"]["('ids',)"]["key_metadata"][0]["key"] = key

    change(files / "_METADATA", edit)
    with pytest.raises(Untrusted, match="Expected a relative object name"):
        read(files)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"tree_metadata": []}',
        '{"tree_metadata": {"a": 1}}',
        '{"tree_metadata": {"a": {"key_metadata": [{"key": 1, "key_type": 2}]}}}',
        '{"tree_metadata": ' + "[" * 100_000,
        '{"tree_metadata": {"a": "\\ud800"}}',
        "\xff",
    ],
    ids=lambda text: text[:30],
)
def test_metadata_that_is_none_is_refused(files: Path, text: str) -> None:
    (files / "_METADATA").write_bytes(text.encode("latin-1"))
    with pytest.raises((Damaged, Untrusted, LimitExceeded), match="_METADATA"):
        read(files)


def test_metadata_of_too_many_values_is_refused_unparsed(files: Path) -> None:
    (files / "_METADATA").write_text("[" + "[]," * 700_000 + "[]]")
    with pytest.raises(LimitExceeded, match=r"expected at most 655,360 JSON values"):
        read(files)


def test_a_leaf_that_is_a_node_too_is_refused(files: Path) -> None:
    def edit(value: Any) -> None:
        entry = json.loads(json.dumps(value["tree_metadata"]["('n',)"]))
        entry["key_metadata"].insert(0, {"key": "ids", "key_type": 2})
        entry["value_metadata"] = {"value_type": "None", "skip_deserialize": True}
        value["tree_metadata"]["x"] = entry

    change(files / "_METADATA", edit)
    with pytest.raises(Untrusted, match="a leaf or a node"):
        read(files)


def test_two_arrays_of_one_name_are_damage(files: Path) -> None:
    def edit(value: Any) -> None:
        keys = [{"key": "params.dense.kernel", "key_type": 2}]
        entry = value["tree_metadata"]["('ids',)"]
        value["tree_metadata"]["x"] = entry | {"key_metadata": keys}

    change(files / "_METADATA", edit)
    with pytest.raises(Damaged, match=r"over one another - at `params\.dense\.kernel`"):
        read(files)


def test_shardings_that_make_no_sense_are_passed_over_with_a_note(files: Path) -> None:
    def edit(value: Any) -> None:
        for key in value:
            value[key] = value[key].replace('"data"', '"data", "other"')

    change(files / "_sharding", edit)
    found = read(files)
    assert found.tree["ids"].placement is None
    assert "saved shardings" in found.notes[0]


def test_a_link_in_place_of_a_chunk_is_refused(files: Path) -> None:
    chunk = files / "ids" / "0.0"
    chunk.unlink()
    chunk.symlink_to("/etc/hostname")
    with pytest.raises(Untrusted, match="found a link"):
        read_all(files)


def test_a_database_without_its_manifest_is_damage(tmp_path: Path) -> None:
    path = shutil.copytree(PEERS / "ox_v1" / "state", tmp_path / "s")
    for manifest in path.rglob("manifest.ocdbt"):
        manifest.unlink()
    with pytest.raises(Damaged, match=r"a database, found none - at .*manifest\.ocdbt"):
        read(path)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """An item whose chunks are too large to lie in the nodes of the database's tree."""
    path = tmp_path / "large"
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "ocdbt", "base": f"file://{path}/", "path": "w/"},
        "metadata": {"shape": [64, 64], "chunks": [32, 32], "dtype": "<f4"},
        "create": True,
    }
    values = np.random.default_rng(1).standard_normal((64, 64), np.float32)
    ts.open(spec).result().write(values).result()
    keys = [{"key": "w", "key_type": 2}]
    kind = {"value_type": "jax.Array", "skip_deserialize": False}
    entry = {"key_metadata": keys, "value_metadata": kind}
    document = {"tree_metadata": {"('w',)": entry}, "use_ocdbt": True}
    (path / "_METADATA").write_text(json.dumps(document))
    read_all(path)
    return path


@pytest.mark.parametrize("cut", [0, 20, -1])
@pytest.mark.parametrize("name", ["manifest.ocdbt", "d/*"])
def test_a_truncated_database_is_damage(large: Path, name: str, cut: int) -> None:
    for path in large.glob(name):
        path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(Damaged, match=r"[Rr]estore another step"):
        read_all(large)


def test_a_missing_part_of_a_database_is_damage(large: Path) -> None:
    shutil.rmtree(large / "d")
    with pytest.raises(Damaged, match=r"[Rr]estore another step"):
        read_all(large)


def test_a_linked_part_of_a_database_is_refused(large: Path) -> None:
    for path in list((large / "d").iterdir()):
        path.rename(large.parent / path.name)
        path.symlink_to(large.parent / path.name)
    with pytest.raises(Untrusted, match="found a link"):
        read_all(large)


def test_a_linked_folder_of_a_database_is_refused(large: Path) -> None:
    (large / "d").rename(large.parent / "outside")
    (large / "d").symlink_to(large.parent / "outside")
    with pytest.raises(Untrusted, match="found a link"):
        read_all(large)


def test_flipped_bits_in_a_database_are_never_missed_chunks(large: Path) -> None:
    for path in (large / "d").iterdir():
        whole_file = path.read_bytes()
        for at in range(0, len(whole_file), len(whole_file) // 7 + 1):
            changed = bytearray(whole_file)
            changed[at] ^= 4
            path.write_bytes(changed)
            with contextlib.suppress(CkptError):
                # The chunks have no checksum: other values may come of it.
                assert read(large).tree["w"].data.read(whole((64, 64))).all()
        path.write_bytes(whole_file)


CHANGED = [
    "_METADATA",
    "_sharding",
    "array_metadatas/process_0",
    "ids/.zarray",
    "ids/0.0",
    "_CHECKPOINT_METADATA",
    "manifest.ocdbt",
    "checkpoint",
]


@hypothesis.given(data=st.data())
def test_changed_bytes_give_values_or_a_clean_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("changed") / "saved"
    name = data.draw(st.sampled_from(CHANGED))
    copy_files(path)
    if name == "manifest.ocdbt":
        shutil.copytree(PEERS / "ox_v1" / "state", path, dirs_exist_ok=True)
    elif name == "checkpoint":
        shutil.copy(PEERS / "ox_0_2_3_pytree" / name, path)
        (path / "_METADATA").unlink()
    changed = bytearray((path / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        length = data.draw(st.sampled_from([0, 1, 1, 1, 8]))
        changed[at : at + length] = data.draw(st.binary(max_size=4))
    (path / name).write_bytes(changed)
    try:
        found = find_orbax(look_in(path))
        for _, leaf in leaves(found.tree if found else {}):
            if isinstance(leaf, Tensor) and isinstance(leaf.data, Lazy):
                small = tuple(min(n, 3) for n in leaf.shape)
                leaf.data.read(whole(small))
    except CkptError:
        pass
    finally:
        shutil.rmtree(path)


def test_the_whole_process_stays_small_before_a_hostile_array(files: Path) -> None:
    fields = {"shape": [1 << 20, 1 << 20], "chunks": [1 << 20, 1 << 20]}
    change(files / "ids" / ".zarray", lambda value: value | fields)
    imports = (
        "import ckpt\nfrom ckpt._store import open_store\n"
        "from ckpt.formats._entry import Folder\n"
        "from ckpt.formats._orbax import find_orbax\n"
        "store = open_store(sys.argv[1])"
    )
    work = refused("Damaged", "find_orbax(Folder(store, tuple(store.list(''))))")
    assert measure_growth(imports, work, os.fspath(files)) < HOSTILE_BYTES
