"""Checkpoints of other libraries open, restore and convert from stores of all kinds."""

from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import ckpt
from tests.formats.bare import SETS, find_paths, is_expected, read_expected
from tests.stores._places import Place

NAMES = [
    "dcp_mesh4_1d",
    "dcp_single_zstd",
    "ds_zero2_dp2",
    "flax_legacy_checkpoint",
    "ox_v0_manager",
    "st_hub_sharded",
]


def put_set(place: Place, name: str) -> None:
    """Put the files of a set past the library."""
    folder = SETS / name
    for file in folder.rglob("*"):
        if file.is_file():
            place.put(file.relative_to(folder).as_posix(), file.read_bytes())


def is_whole(found: ckpt.Checkpoint, name: str) -> bool:
    paths = find_paths(found)
    return all(
        is_expected(np.asarray(found[paths[tensor]][...]), wanted)
        for tensor, wanted in read_expected(name).items()
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_set_in_a_store_is_what_it_is_on_a_disk(
    place: Place, name: str, memory_run: Path
) -> None:
    put_set(place, name)
    assert is_whole(ckpt.open(place.url), name)
    assert not ckpt.diff(SETS / name, place.url)
    (made,) = ckpt.copy(place.url, memory_run)
    assert is_whole(made, name)


def test_one_file_of_a_store_opens_and_is_laid_on_a_mesh(place: Place) -> None:
    put_set(place, "st_flax")
    mesh = jax.make_mesh((8,), ("x",))
    url = f"{place.url}/{next((SETS / 'st_flax').iterdir()).name}"
    tree = ckpt.restore(url, mesh, select="*", cast="lossy")
    for name, wanted in read_expected("st_flax").items():
        if "64" not in wanted["dtype"]:
            assert tree[name].sharding.spec == P()
            assert is_expected(np.asarray(tree[name]), wanted)


def test_a_set_is_written_to_a_store(place: Place) -> None:
    tree = {f"w{n}": np.arange(1000 * n, dtype=np.float32) for n in range(3)}
    files = ckpt.save_safetensors(tree, place.url, max_shard_bytes=5000)
    assert len(files) == 3
    found = ckpt.restore(place.url)
    assert found.keys() == tree.keys()
    assert all(np.array_equal(found[name], tree[name]) for name in tree)
