"""Checkpoints of PyTorch DCP, against what PyTorch reads from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckpt
from ckpt import Damaged, NotFound
from ckpt._store import open_store
from ckpt.formats._dcp import find_dcp
from ckpt.formats._entry import Catalogue, Folder, Tensor

from . import _dcp_files as dcp
from ._gather import PEERS, describe, expected_tensors, leaves, look_in, materialise

SETS = sorted(
    path.name
    for path in PEERS.glob("dcp_*")
    if path.is_dir() and not path.name.startswith("dcp_hf_")
)


def find(path: Path | str, step: int | None = None) -> Catalogue:
    found = find_dcp(look_in(path, step=step))
    assert found is not None
    return found


def read(path: Path) -> Any:
    """Return a tree with the values of its tensors."""
    store = open_store(path)

    def fill(value: Any) -> Any:
        if isinstance(value, Tensor):
            return materialise(store, value).tolist()
        if isinstance(value, dict):
            return {key: fill(child) for key, child in value.items()}
        return [fill(child) for child in value] if isinstance(value, list) else value

    return fill(find(path).tree)


@pytest.mark.parametrize("name", SETS)
def test_every_tensor_is_what_was_saved(name: str) -> None:
    found = find(PEERS / name)
    store = open_store(PEERS / name)
    tensors = {
        ".".join(map(str, path)): leaf
        for path, leaf in leaves(found.tree)
        if isinstance(leaf, Tensor)
    }
    expected = {
        key: {part: entry[part] for part in ("shape", "dtype", "sha256")}
        for key, entry in expected_tensors(name).items()
    }
    assert {key: describe(store, t) for key, t in tensors.items()} == expected
    for check in found.checks:
        check.work()
    assert set(found.objects) == set(store.list(""))


@pytest.mark.parametrize("name", ["dcp_single", "dcp_single_zstd"])
def test_plain_values_are_what_was_saved(name: str) -> None:
    document = json.loads((PEERS / f"{name}.expected.json").read_text())
    tree = find(PEERS / name).tree
    for key, text in document["non_tensors"].items():
        assert repr(tree[key]) == text
    assert tree["empty_list"] == []
    assert tree["opt"]["param_groups"] == [
        {"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]}
    ]


def test_the_structure_is_that_of_the_saved_tree() -> None:
    tree = find(PEERS / "dcp_single").tree
    assert isinstance(tree["lst"], list)
    assert isinstance(tree["lst"][2]["x"], Tensor)
    assert list(tree["a.b"]) == ["c"]
    assert list(tree["opt"]["state"]) == ["0", "1"]
    model = find(PEERS / "dcp_fsdp2_adamw").tree
    assert list(model["optim"]["state"]) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_ranks_that_saved_on_their_own_are_one_checkpoint() -> None:
    found = find(PEERS / "dcp_mesh4_ranklocal")
    assert found.notes == ("`rank_obj` differs between ranks: the first one is taken",)
    assert found.tree["rank_obj"] == "rank0"
    assert found.tree["step"] == 11


def test_a_rank_that_is_missing_is_a_hole(tmp_path: Path) -> None:
    shutil.copytree(PEERS / "dcp_mesh4_ranklocal", tmp_path, dirs_exist_ok=True)
    (tmp_path / "__2.metadata").unlink()
    with pytest.raises(Damaged, match=r"cover float32\[8, 6\] exactly.*at `m\.s0`"):
        find(tmp_path)


def test_metadata_of_old_versions_are_read(tmp_path: Path) -> None:
    arrays = {
        "a.b": np.arange(40, dtype=np.float32).reshape(10, 4),
        "c": np.arange(7, dtype=np.int64),
    }
    dcp.write(tmp_path, arrays, rows=3, old=True)
    expected = {name: array.tolist() for name, array in arrays.items()}
    assert read(tmp_path) == expected


def test_large_items_are_found_by_their_first_bytes(tmp_path: Path) -> None:
    array = np.arange(300_000, dtype=np.float32).reshape(3, 100_000)
    dcp.write(tmp_path, {"w": array}, rows=1)
    store = open_store(tmp_path)
    tensor = find(tmp_path).tree["w"]
    assert np.array_equal(materialise(store, tensor), array)

    class Counting:
        def __init__(self, reader: Any) -> None:
            self.reader, self.size, self.fetched = reader, reader.size, 0

        def read_into(self, offset: int, buffer: bytearray) -> None:
            self.fetched += len(buffer)
            self.reader.read_into(offset, buffer)

    for block in tensor.data:
        with store.open(block.blob.name) as reader:
            counting: Any = Counting(reader)
            block.find(counting)
        assert counting.fetched <= 4096


@pytest.mark.parametrize("shape", [(200, 300), (2, 3)])
def test_items_in_another_order_of_dimensions_are_read(
    shape: tuple[int, int], tmp_path: Path
) -> None:
    array = np.arange(shape[0] * shape[1], dtype=np.int64).reshape(shape).T
    dcp.write(tmp_path, {"w": array}, rows=1000)
    assert read(tmp_path)["w"] == array.tolist()
    assert np.array_equal(ckpt.open(tmp_path)["w"][...], array)


def test_an_empty_dict_in_a_list_leaves_a_place_behind(tmp_path: Path) -> None:
    arrays = {"l.2": np.zeros(2, np.float32), "l.0.x": np.ones(1, np.float32)}
    paths = {"l.2": ("l", 2), "l.0.x": ("l", 0, "x")}
    dcp.write(tmp_path, arrays, rows=2, paths=paths)
    assert read(tmp_path) == {"l": [{"x": [1.0]}, {}, [0.0, 0.0]]}


def test_the_newest_step_or_the_wanted_one_is_read(tmp_path: Path) -> None:
    for step in (9, 10):
        array = np.full(3, step, np.int64)
        dcp.write(tmp_path / f"step-{step}", {"w": array}, rows=2)
    newest, wanted = find(tmp_path), find(tmp_path, step=9)
    assert (newest.step, wanted.step) == (10, 9)
    store = open_store(tmp_path)
    assert materialise(store, newest.tree["w"]).tolist() == [10] * 3
    assert materialise(store, wanted.tree["w"]).tolist() == [9] * 3
    with pytest.raises(NotFound, match=r"expected step 8 in .*, found 9, 10"):
        find(tmp_path, step=8)


def test_other_folders_and_unfinished_saves_are_told_apart(tmp_path: Path) -> None:
    assert find_dcp(look_in(PEERS / "flax_msgpack")) is None
    (tmp_path / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(Damaged, match="never finished"):
        find(tmp_path)


def test_files_that_nobody_names_are_noted(tmp_path: Path) -> None:
    shutil.copytree(PEERS / "dcp_single", tmp_path, dirs_exist_ok=True)
    (tmp_path / "__7_0.distcp").write_bytes(b"")
    assert find(tmp_path).notes == ()
    (tmp_path / "__7_0.distcp").write_bytes(b"stale")
    assert find(tmp_path).notes == ("1 .distcp files that the metadata do not name",)


def test_a_changed_bit_of_a_tensor_shows_in_a_check(tmp_path: Path) -> None:
    shutil.copytree(PEERS / "dcp_single", tmp_path, dirs_exist_ok=True)
    path = tmp_path / "__0_0.distcp"
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    weights = find(tmp_path).tree["model"]["w"]
    values = materialise(open_store(tmp_path), weights).tobytes()
    data[data.index(values) + 40] ^= 1
    path.write_bytes(data)
    (check,) = find(tmp_path).checks
    with pytest.raises(Damaged, match="checksum"):
        check.work()


def test_objects_of_unread_classes_are_passed_over_with_a_note(tmp_path: Path) -> None:
    when = dcp.Made(dcp.Name("datetime", "date"), ("x",), reduced=True)
    item = dcp.saved({"when": when, "step": 7})
    (tmp_path / "__0_0.distcp").write_bytes(item)
    place = dcp.place("__0_0.distcp", 0, len(item))
    (tmp_path / ".metadata").write_bytes(
        dcp.metadata({"v": dcp.plain()}, [(dcp.index("v", None), place)])
    )
    found = find(tmp_path)
    assert found.tree == {"v": {"when": None, "step": 7}}
    assert found.notes == ("`v/when` is left out: an object of datetime.date",)


def test_a_checkpoint_in_an_object_store_is_read() -> None:
    store = open_store("memory://dcp-sets")
    for path in (PEERS / "dcp_mesh4_1d").iterdir():
        store.create(path.name, path.read_bytes())
    found = find_dcp(Folder(store, tuple(store.list(""))))
    assert found is not None
    expected = expected_tensors("dcp_mesh4_1d")["m.s1"]["sha256"]
    assert describe(store, found.tree["m"]["s1"])["sha256"] == expected
