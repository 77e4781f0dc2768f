"""What is saved in a store of any kind comes back bit by bit, whole or in part."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import ckpt
from tests.faults._trees import differing, flat, make_tree, place_tree, same_bits
from tests.stores._places import CloudPlace, Place


def split(values: Any, *axes: int) -> jax.Array:
    """Place values over the devices of a mesh of this shape, a dimension an axis."""
    devices = jax.devices()[: int(np.prod(axes))]
    names = ("x", "y")[: len(axes)]
    mesh = jax.make_mesh(axes, names, devices=devices)
    return jax.device_put(values, NamedSharding(mesh, P(*names)))


def differing_shards(found: Any, expected: Any) -> list[str]:
    """Return where shards of restored arrays are not the same piece of numpy's."""
    wanted = flat(expected)
    return [
        f"{path} {shard.index}"
        for path, leaf in flat(found).items()
        for shard in leaf.addressable_shards
        if not same_bits(shard.data, wanted[path][shard.index])
    ]


def test_a_tree_comes_back_on_the_host_and_on_any_mesh(place: Place) -> None:
    tree = make_tree(1, "wide")
    state, mesh = place_tree(tree, devices=2)
    done = ckpt.save(state, mesh, place.url, step=3)
    assert (done.step, ckpt.steps(place.url)) == (3, [3])
    assert differing(ckpt.restore(place.url), tree) == []
    assert differing(ckpt.restore(done.url, expect=done.digest), tree) == []

    wide = jax.make_mesh((8,), ("x",))
    found = ckpt.restore(place.url, wide)
    assert found["deep"]["layer0"]["kernel"].sharding.spec == P("x")
    assert differing_shards(found, tree) == []

    grid = jax.make_mesh((4, 2), ("x", "y"))
    found = ckpt.restore(place.url, grid, specs={"**/kernel": P("y", "x")})
    assert found["deep"]["layer1"]["kernel"].sharding.spec == P("y", "x")
    assert differing_shards(found, tree) == []


def test_values_of_every_sort_come_back(place: Place) -> None:
    bits = np.random.default_rng(0).integers(0, 2**16, (64, 5), np.uint16)
    values = {
        "half": bits.view(ml_dtypes.bfloat16),
        "wide": bits.astype(np.int64),
        "empty": np.zeros((0, 3), np.float32),
        "mask": bits > 1000,
        "low": bits.astype(ml_dtypes.float8_e4m3fn),
        "scalar": np.float64(0.1),
    }
    ckpt.save({"a": values, "b": [3, 0.5, "ü", None, True]}, None, place.url)
    found = ckpt.restore(place.url)
    assert differing(found["a"], values) == []
    assert found["b"] == [3, 0.5, "ü", None, True]


def test_names_of_any_characters_come_back(place: Place) -> None:
    """They are escaped once for the object, and once more for the request."""
    names = ["a b", "ü€", "x/y", "50%", "a+b&c=d", "..", "%2F", "q?#~"]
    tree = {
        name: np.full((512, 513), number, np.float32)
        for number, name in enumerate(names)
    }
    ckpt.save(tree, None, place.url)
    found = ckpt.restore(place.url)
    assert list(found) == list(tree)
    assert all(same_bits(found[name], tree[name]) for name in names)
    assert ckpt.verify(place.url).orphans == ()


def test_a_background_save_takes_the_values_it_was_given(place: Place) -> None:
    tree = make_tree(4)
    state = {name: values.copy() for name, values in tree.items()}
    pending = ckpt.save_async(state, None, place.url, step=1)
    for values in state.values():
        values.fill(0)
    later = ckpt.save_async(make_tree(5), None, place.url)
    assert (pending.result().step, later.result().step) == (1, 2)
    assert differing(ckpt.restore(place.url, step=1), tree) == []
    assert differing(ckpt.restore(place.url), make_tree(5)) == []


@pytest.mark.parametrize("codec", ["zstd", "gzip", "blosc"])
def test_a_codec_saves_room_and_changes_no_bit(place: Place, codec: str) -> None:
    tree = {"w": np.arange(1 << 19, dtype=np.int32) // 100, "b": np.arange(5)}
    ckpt.save(tree, None, place.url, codec=codec)
    sizes = [len(place.get(name)) for name in place.names()]
    assert sum(sizes) < tree["w"].nbytes / 2
    assert differing(ckpt.restore(place.url), tree) == []


def test_a_part_of_a_tree_is_all_that_is_read(place: Place) -> None:
    tree = make_tree(2, "wide")
    state, mesh = place_tree(tree, devices=2)
    ckpt.save(state, mesh, place.url, step=1)
    found = ckpt.restore(place.url, select="deep/layer1/*")
    assert differing(found["deep"]["layer1"], tree["deep"]["layer1"]) == []
    assert found["w"] is ckpt.ABSENT

    opened = ckpt.open(place.url)
    assert sorted(opened) == sorted(path.lstrip("/") for path in flat(tree))
    kernel, expected = opened["deep/layer0/kernel"], tree["deep"]["layer0"]["kernel"]
    assert (kernel.shape, kernel.dtype) == (expected.shape, expected.dtype)
    if isinstance(place, CloudPlace):
        place.cloud.take_log()
    assert same_bits(kernel[5:9, 100:], expected[5:9, 100:])
    assert same_bits(kernel[-1], expected[-1])
    assert same_bits(opened["w"][...], tree["w"])
    if isinstance(place, CloudPlace):
        paths = {request.path for request in place.cloud.take_log()}
        assert not any("layer1" in path for path in paths)


def test_two_thousand_small_leaves_are_few_objects(place: Place) -> None:
    generator = np.random.default_rng(3)
    tree = {
        f"layer{number}": {"scale": generator.standard_normal(number % 40 + 1)}
        for number in range(2000)
    }
    ckpt.save(tree, None, place.url, step=1)
    assert len(place.names()) <= 10
    assert differing(ckpt.restore(place.url), tree) == []
    opened = ckpt.open(place.url, step=1)
    assert same_bits(opened["layer77/scale"][3:9], tree["layer77"]["scale"][3:9])
    if isinstance(place, CloudPlace):
        log = place.cloud.take_log()
        assert sum(request.writes for request in log) <= 10


def test_a_plan_says_what_a_restore_takes(place: Place) -> None:
    tree = make_tree(6, "wide")
    state, mesh = place_tree(tree, devices=2)
    ckpt.save(state, mesh, place.url)
    whole = sum(values.nbytes for values in flat(tree).values())
    plan = ckpt.plan(place.url)
    assert (plan.step, plan.leaves, plan.stored) == (0, len(flat(tree)), whole)
    # With the data come its checksums.
    assert whole <= plan.bytes <= whole * 1.001
    kernel = tree["deep"]["layer0"]["kernel"].nbytes
    part = ckpt.plan(place.url, {"x": 4}, processes=2, select="deep/layer0/kernel")
    halves = [reads.bytes for reads in part.processes]
    assert kernel / 2 <= min(halves) <= max(halves) <= kernel / 2 * 1.001


def test_a_diff_finds_what_numpy_finds(place: Place) -> None:
    left, right = make_tree(7, "wide"), make_tree(7, "wide")
    right["deep"]["layer1"]["bias"][[1, 5]] += np.float32(0.25)
    right["extra"] = 1
    ckpt.save(left, None, place.url, step=1)
    ckpt.save(right, None, place.url, step=2)
    ckpt.save(jax.tree.map(jnp.asarray, left), None, place.url, step=3)
    found = ckpt.diff(place.url, place.url, left_step=1, right_step=2)
    changes = {change.path: change for change in found.changes}
    assert sorted(changes) == ["deep/layer1/bias", "extra"]
    one, other = (tree["deep"]["layer1"]["bias"] for tree in (left, right))
    assert changes["deep/layer1/bias"].count == 2
    assert changes["deep/layer1/bias"].max_abs == np.abs(one - other).max()
    assert not ckpt.diff(place.url, place.url, left_step=1, right_step=1)
