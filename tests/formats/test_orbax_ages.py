"""Shapes that only some versions of Orbax write, by their own files or as they are."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgpack
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts

import ckpt
from ckpt.formats._entry import Tensor
from ckpt.formats._orbax import find_orbax
from layouts import MeshLayout, Placement

from ._gather import PEERS, look_in


def put_array(folder: Path, values: np.ndarray[Any, Any]) -> None:
    """Write an array as Zarr's version 2 has it, in one chunk as it is."""
    folder.mkdir(parents=True)
    about = {
        "chunks": values.shape,
        "compressor": None,
        "dtype": values.dtype.str,
        "fill_value": None,
        "filters": None,
        "order": "C",
        "shape": values.shape,
        "zarr_format": 2,
    }
    (folder / ".zarray").write_text(json.dumps(about))
    (folder / ".".join("0" * values.ndim)).write_bytes(values.tobytes())


def put_aggregate(folder: Path, tree: Any) -> None:
    data = msgpack.packb(tree)
    assert isinstance(data, bytes)
    (folder / "checkpoint").write_bytes(data)


def test_values_in_the_aggregate_file_are_leaves_though_told_to_be_passed_over() -> (
    None
):
    tree = ckpt.restore(PEERS / "ox_0_4_8_aggregate")
    assert (tree["i"], tree["model"]["step"]) == (3, 0)
    np.testing.assert_array_equal(tree["cfg"], [1, 2])
    assert isinstance(tree["model"]["opt_state"], list)


def test_one_aggregate_file_is_a_checkpoint(tmp_path: Path) -> None:
    put_aggregate(tmp_path, {"a": [1, 2.5, None], "b": {}})
    assert ckpt.restore(tmp_path) == {"a": [1, 2.5, None], "b": {}}
    (tmp_path / "7").mkdir()
    (tmp_path / "checkpoint").rename(tmp_path / "7" / "checkpoint")
    assert ckpt.open(tmp_path).step == 7


@pytest.mark.parametrize("data", [b"", b"model_checkpoint_path: 'm-3'\n", b"\x80\x02}"])
def test_other_files_of_that_name_are_not(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "checkpoint").write_bytes(data)
    assert find_orbax(look_in(tmp_path)) is None


def test_texts_are_in_the_folder_of_one_of_them(tmp_path: Path) -> None:
    places = {"a": "PLACEHOLDER://a", "s": "PLACEHOLDER://s", "t": "PLACEHOLDER://t"}
    put_aggregate(tmp_path, places)
    put_array(tmp_path / "a", np.arange(3.0))
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "_strings.json").write_text('{"s": "one", "t": ""}')
    tree = ckpt.restore(tmp_path)
    assert (tree["s"], tree["t"]) == ("one", "")
    np.testing.assert_array_equal(tree["a"], [0, 1, 2])


@pytest.mark.parametrize("ocdbt", [True, False])
@pytest.mark.parametrize("zarr3", [True, False])
def test_a_tree_may_be_one_array(tmp_path: Path, ocdbt: bool, zarr3: bool) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=zarr3)
    ocp.Checkpointer(handler).save(tmp_path / "one", jnp.asarray(values))
    np.testing.assert_array_equal(ckpt.restore(tmp_path / "one"), values)
    assert ckpt.verify(tmp_path / "one").ok


def test_a_tree_without_arrays_has_no_database(tmp_path: Path) -> None:
    ocp.PyTreeCheckpointer().save(tmp_path / "none", {"a": None, "b": {"c": "text"}})
    assert ckpt.restore(tmp_path / "none") == {"a": None, "b": {"c": "text"}}


def test_an_array_alone_lies_in_a_database_of_no_tree(tmp_path: Path) -> None:
    kvstore = {"driver": "ocdbt", "base": f"file://{tmp_path}/", "path": "checkpoint/"}
    values = np.arange(5, dtype=np.int16)
    made = ts.open(  # pyright: ignore[reportUnknownMemberType]
        {"driver": "zarr", "kvstore": kvstore},
        create=True,
        dtype=ts.int16,
        shape=[5],
    ).result()
    made.write(values).result()
    np.testing.assert_array_equal(ckpt.restore(tmp_path), values)


def test_json_alone_is_what_a_checkpoint_holds(tmp_path: Path) -> None:
    ocp.Checkpointer(ocp.JsonCheckpointHandler()).save(tmp_path / "json", {"a": [1]})
    assert ckpt.restore(tmp_path / "json") == {"a": [1]}


def test_folders_of_arrays_may_have_any_name(tmp_path: Path) -> None:
    tree = {
        name: {"w": jnp.full(3, number)}
        for number, name in enumerate(["e f", "ü", "x:y", "it's", "mlp/~/linear"])
    }
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
    ocp.Checkpointer(handler).save(tmp_path / "run" / "3", tree)
    for path in (tmp_path / "run", tmp_path / "run" / "3"):
        found = ckpt.restore(path)
        assert set(found) == set(tree)
        for name, inner in tree.items():
            np.testing.assert_array_equal(found[name]["w"], inner["w"])
    (tmp_path / "run" / "3" / "e f.w" / "0").unlink()
    with pytest.raises(ckpt.Damaged, match="found none"):
        ckpt.restore(tmp_path / "run")


def test_shardings_may_have_the_names_of_arrays_as_they_are(tmp_path: Path) -> None:
    put_aggregate(tmp_path, {"abcd": "PLACEHOLDER://abcd", "b": "PLACEHOLDER://b"})
    put_array(tmp_path / "abcd", np.zeros((4, 2), np.float32))
    put_array(tmp_path / "b", np.zeros(2, np.float32))
    said = {
        "sharding_type": "NamedSharding",
        "shape": [2, 1],
        "axis_names": ["x", "y"],
        "partition_spec": ["x"],
    }
    document = {"abcd": json.dumps(said), "b": ""}
    (tmp_path / "_sharding").write_text(json.dumps(document))
    found = find_orbax(look_in(tmp_path))
    assert found is not None
    assert found.notes == ()
    assert isinstance(found.tree["abcd"], Tensor)
    mesh = MeshLayout((("x", 2), ("y", 1)), ("Auto", "Auto"))
    assert found.tree["abcd"].placement == Placement(mesh, (("x",), ()))
