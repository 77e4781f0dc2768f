"""Every set that a peer wrote opens, restores on any mesh, converts and verifies."""

from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import ckpt
import pytree
from tests.formats.bare import (
    SETS,
    find_paths,
    is_expected,
    list_differences,
    list_sets,
    read_expected,
)

# The ranks of that one saved values of their own, of which the first one's are read.
pytestmark = pytest.mark.filterwarnings(
    "ignore:not all in .*dcp_mesh4_ranklocal was read:UserWarning"
)

FAMILIES = {
    "dcp": "dcp",
    "ds": "deepspeed",
    "flax": "flax",
    "ox": "orbax",
    "st": "safetensors",
    "torch": "torch",
}


def spread(path: str, shape: tuple[int, ...], spec: P) -> P:
    """Split the dimensions that divide."""
    del path, spec
    mesh = jax.sharding.get_abstract_mesh()
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    axes: list[str | None] = []
    for axis, n in zip(sizes, shape, strict=False):
        axes.append(axis if n and n % sizes[axis] == 0 else None)
    return P(*axes)


@pytest.mark.parametrize("name", list_sets())
def test_every_tensor_is_the_one_that_its_peer_reads(name: str) -> None:
    assert list_differences(name) == []
    family = "st" if "_hf_" in name else name.partition("_")[0]
    assert ckpt.open(SETS / name).format == FAMILIES[family]


@pytest.mark.parametrize("sizes", [(4, 2), (1, 8), (1, 1)])
@pytest.mark.parametrize("name", list_sets())
def test_a_set_is_restored_on_any_mesh(name: str, sizes: tuple[int, int]) -> None:
    with jax.enable_x64(True):
        mesh = jax.make_mesh(
            sizes, ("x", "y"), devices=jax.devices()[: sizes[0] * sizes[1]]
        )
        with jax.set_mesh(mesh):
            tree = ckpt.restore(SETS / name, mesh, specs=spread)
        leaves, _ = pytree.flatten(tree)
        found = ckpt.open(SETS / name)
        names = find_paths(found)
        ties = found.manifest.structure.ties
        for tensor, wanted in read_expected(name).items():
            path = ties.get(names[tensor], names[tensor])
            array = leaves[path]
            if isinstance(array, jax.Array):
                assert isinstance(array.sharding, NamedSharding)
                assert array.sharding.mesh == mesh
            assert is_expected(np.asarray(array), wanted), tensor


@pytest.mark.parametrize("name", list_sets())
def test_a_set_becomes_a_checkpoint_of_ours(name: str, memory_run: Path) -> None:
    (made,) = ckpt.copy(SETS / name, memory_run)
    assert made.format == "ckpt"
    assert ckpt.steps(memory_run) == [ckpt.open(SETS / name).step]
    assert ckpt.verify(memory_run).ok
    assert not ckpt.diff(SETS / name, memory_run)
    paths = find_paths(made)
    for tensor, wanted in read_expected(name).items():
        assert is_expected(np.asarray(made[paths[tensor]][...]), wanted), tensor


@pytest.mark.parametrize("name", list_sets())
def test_a_plan_of_a_set_reads_what_is_wanted(name: str) -> None:
    with jax.enable_x64(True):
        plan = ckpt.plan(SETS / name, {"x": 2, "y": 2}, processes=2)
    assert plan.leaves == len(ckpt.open(SETS / name))
    assert plan.bytes >= plan.stored
    if not name.startswith("ox_") and "zstd" not in name:
        # No chunks are read whole, and what both processes want is read once.
        assert plan.bytes == plan.stored
    assert "read amplification" in str(plan)
