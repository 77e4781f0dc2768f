"""Small files that claim much, and files that go while they are read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import ckpt
from ckpt.formats._deepspeed_state import add_shared
from ckpt.formats._deepspeed_zero import read_partitions
from ckpt.formats._entry import Tensor

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


def write_array(folder: Path, *, inner: int = 0, **fields: Any) -> Path:
    """Write what old Orbax did: one array, whose equal chunks were left out."""
    (folder / "w").mkdir()
    keys = [{"key": "w", "key_type": 2}]
    kind = {"value_type": "jax.Array", "skip_deserialize": False}
    entry = {"key_metadata": keys, "value_metadata": kind}
    tree = {"('w',)": entry}
    told = {"tree_metadata": tree, "use_ocdbt": False, "use_zarr3": bool(inner)}
    (folder / "_METADATA").write_text(json.dumps(told))
    if not inner:
        array = {"zarr_format": 2, "dtype": "<f4", "fill_value": 7} | fields
        (folder / "w" / ".zarray").write_text(json.dumps(array))
        return folder
    grid = {"chunk_shape": fields.pop("chunks")}
    shards = {"chunk_shape": [inner], "codecs": [BYTES], "index_codecs": [BYTES]}
    array = {
        "zarr_format": 3,
        "node_type": "array",
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": grid},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 7,
        "codecs": [{"name": "sharding_indexed", "configuration": shards}],
    }
    (folder / "w" / "zarr.json").write_text(json.dumps(array | fields))
    return folder


def test_chunks_that_were_left_out_are_not_looked_for_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckpt.formats._links import LinkedStore

    write_array(tmp_path, shape=[1 << 10], chunks=[1])
    asked: list[str] = []
    plain = LinkedStore.size
    monkeypatch.setattr(
        LinkedStore,
        "size",
        lambda store, name: asked.append(name) or plain(store, name),
    )
    assert (ckpt.restore(tmp_path)["w"] == np.full(1 << 10, 7, np.float32)).all()
    assert len(asked) < 10


def test_tiny_chunks_by_the_billion_are_planned_by_the_thousand(tmp_path: Path) -> None:
    path = write_array(tmp_path, shape=[1 << 34], chunks=[1 << 18], inner=1)
    ckpt.plan(path)
    assert ckpt.open(path)["w"][5:9].tolist() == [7] * 4


def test_a_shard_of_too_many_chunks_is_refused(tmp_path: Path) -> None:
    path = write_array(tmp_path, shape=[1 << 19], chunks=[1 << 19], inner=1)
    with pytest.raises(ckpt.Untrusted, match="at most 262144 chunks in a shard"):
        ckpt.open(path)


def test_a_shard_is_refused_by_its_index_if_a_length_cannot_be(tmp_path: Path) -> None:
    path = write_array(tmp_path, shape=[4], chunks=[4], inner=1)
    (path / "w" / "c").mkdir()
    places = np.array([[0, 1], [1, 1], [2, 1], [3, 0]], "<u8")
    (path / "w" / "c" / "0").write_bytes(b"abcd" + places.tobytes())
    with pytest.raises(ckpt.Damaged, match="expected 1 bytes, found 0"):
        ckpt.open(path)["w"][0:1]


def test_a_chunk_that_goes_after_the_opening_is_no_value(tmp_path: Path) -> None:
    write_array(tmp_path, shape=[4], chunks=[2], dimension_separator=".")
    (tmp_path / "w" / "0").write_bytes(np.array([1, 2], "<f4").tobytes())
    found = ckpt.open(tmp_path)
    assert np.asarray(found["w"][...]).tolist() == [1, 2, 7, 7]
    (tmp_path / "w" / "0").unlink()
    with pytest.raises(ckpt.Damaged, match="when the checkpoint was opened"):
        found["w"][...]


def test_chunks_behind_a_link_are_refused_not_filled(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    path.mkdir()
    write_array(path, shape=[4], chunks=[2], inner=1)
    (tmp_path / "outside").mkdir()
    (path / "w" / "c").symlink_to(tmp_path / "outside")
    (tmp_path / "outside" / "0").write_bytes(bytes(34))
    with pytest.raises(ckpt.Untrusted, match="found a link"):
        ckpt.restore(path)


@pytest.mark.parametrize("value", [1e300, -1e300])
def test_a_fill_value_that_its_dtype_lacks_is_refused(
    value: float, tmp_path: Path
) -> None:
    write_array(tmp_path, shape=[4], chunks=[2], fill_value=value)
    with pytest.raises(ckpt.Untrusted, match="a fill value of float32"):
        ckpt.restore(tmp_path)


def test_values_that_count_for_each_parameter_are_bounded() -> None:
    flat = Tensor("float32", (0,), ())
    base = {"state": {0: dict.fromkeys(map(str, range(1000)), 1)}}
    state = {
        "partition_count": 1,
        "single_partition_of_fp32_groups": [flat],
        "base_optimizer_state": base,
    }
    model = {"param_shapes": [{str(n): (0,) for n in range(1000)}]}
    with pytest.raises(ckpt.LimitExceeded, match="values of parameters, found 1,00"):
        read_partitions(model, [state])


def test_values_that_count_for_each_second_name_are_bounded() -> None:
    tree = {"a": dict.fromkeys(map(str, range(1000)), 1)}
    shared = {"shared_params": {f"b{n}": "a" for n in range(1000)}}
    with pytest.raises(ckpt.LimitExceeded, match="values of second names"):
        add_shared(tree, shared)


@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_that_changes_after_the_opening_is_damage(
    replaced: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": np.ones(8, np.float32)}, path)
    found = ckpt.open(path)
    assert found["w"][0] == 1
    if replaced:
        save_file({"w": np.zeros(8, np.float32)}, tmp_path / "new")
        (tmp_path / "new").rename(path)
    else:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size + 1)
    with pytest.raises(ckpt.Damaged, match="found it replaced or changed"):
        found["w"][...]
