"""Shards larger than the budget reach their devices in slabs, bit for bit."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import ckpt
from ckpt._assemble import assemble_leaves
from ckpt._catalog import open_path
from ckpt._stage import place_in_slabs
from ckpt._target import Wishes, choose_target
from layouts import Box, box_of_index


def restore_staged(run: Path, mesh: Any, spec: P, budget: int) -> Any:
    opened = open_path(run)
    leaf = opened.manifest.leaves[0]
    wishes = Wishes(mesh, specs={"**": spec})
    target = choose_target(0, leaf.path, leaf, wishes, None)
    made = assemble_leaves(
        opened, [target], max_host_bytes=budget, staged=lambda _: True
    )
    return made[0]


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [(P(), "float32"), (P("data", "model"), "bfloat16"), (P(None, "model"), "int8")],
)
def test_a_shard_above_the_budget_arrives_in_slabs(
    tmp_path: Path, spec: P, dtype: str
) -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    bits = np.random.default_rng(0).integers(0, 255, (1024, 2048, 2), np.uint8)
    values = bits.reshape(1024, -1).view(jax.numpy.dtype(dtype))
    ckpt.save({"w": values}, mesh, tmp_path / "run")
    like = {"w": jax.ShapeDtypeStruct(values.shape, values.dtype)}
    plain = ckpt.restore(tmp_path / "run", mesh, like=like, specs={"**": spec})["w"]
    ckpt.save({"w": plain}, mesh, tmp_path / "again")
    made = restore_staged(tmp_path / "again", mesh, spec, 1 << 19)
    assert made.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2)
    assert np.asarray(made).tobytes() == values.tobytes()


def test_no_slab_is_larger_than_the_limit() -> None:
    mesh = jax.make_mesh((2,), ("data",))
    sharding = NamedSharding(mesh, P("data"))
    values = np.arange(64 * 33, dtype=np.int32).reshape(64, 33)
    indices: Any = sharding.addressable_devices_indices_map(values.shape)
    boxes = {d: box_of_index(i, values.shape) for d, i in indices.items()}
    asked: list[Box] = []

    def read(box: Box) -> Any:
        asked.append(box)
        return values[box.slices]

    made = place_in_slabs(values.shape, values.dtype, sharding, boxes, read, limit=1000)
    np.testing.assert_array_equal(made, values)
    assert max(4 * box.size for box in asked) <= 1000
    assert sum(box.size for box in asked) == values.size
