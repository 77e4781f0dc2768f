from __future__ import annotations

import zlib
from dataclasses import replace

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

from benchmarks._cases import CASES, FSDP, GRID, REPLICATED
from benchmarks._trees import (
    FULL,
    QUICK,
    abstract_state,
    build_state,
    draw_bits,
    draw_values,
    draw_weights,
    logical_bytes,
    shape_tree,
)


def test_matrices_are_one_gibibyte_in_full() -> None:
    assert logical_bytes(shape_tree("matrices", scale=FULL)) == 2**30


def test_small_leaves_are_two_thousand_of_one_kibibyte_in_full() -> None:
    leaves = jax.tree.leaves(shape_tree("small", scale=FULL))
    assert [x.shape for x in leaves] == [(256,)] * 2000
    assert {np.dtype(x.dtype).itemsize for x in leaves} == {4}


def test_train_state_has_the_parameters_of_gpt2_small() -> None:
    tree = shape_tree("train", scale=FULL)
    # 124.44 M with a vocabulary of 50,257; padded to 50,304 it has 47 rows more.
    assert sum(x.size for x in jax.tree.leaves(tree["params"])) == (
        124_439_808 + 47 * 768
    )


def test_train_state_has_bf16_params_and_two_f32_moments() -> None:
    tree = shape_tree("train", scale=QUICK)
    params = jax.tree.leaves(tree["params"])
    moments = tree["opt_state"][0]
    assert {x.dtype.name for x in params} == {"bfloat16"}
    for moment in (moments.mu, moments.nu):
        assert [x.shape for x in jax.tree.leaves(moment)] == [x.shape for x in params]
        assert {x.dtype.name for x in jax.tree.leaves(moment)} == {"float32"}


def test_random_bits_do_not_compress() -> None:
    rng = np.random.default_rng(0)
    data = draw_bits(rng, (256, 256), np.dtype(np.float32)).tobytes()
    assert len(zlib.compress(data, 9)) > len(data)


def test_drawn_values_have_the_shape_and_dtype_asked_for() -> None:
    rng = np.random.default_rng(0)
    for draw in (draw_bits, draw_weights):
        for shape in ((), (3,), (5, 7)):
            values = draw(rng, shape, np.dtype(np.float32))
            assert (values.shape, values.dtype) == (shape, np.float32)


def test_matrices_take_the_spec_and_vectors_are_replicated() -> None:
    shapes = shape_tree("train", scale=QUICK)
    for leaf in jax.tree.leaves(abstract_state(shapes, placement=GRID)):
        expected = P("data", "model") if len(leaf.shape) == 2 else P()
        assert isinstance(leaf.sharding, NamedSharding)
        assert leaf.sharding.spec == expected


def test_replicas_are_equal_and_do_not_share_memory() -> None:
    shapes = {"w": jax.ShapeDtypeStruct((4, 4), np.float32)}
    abstract = abstract_state(shapes, placement=REPLICATED)
    state = build_state(abstract, draw=draw_weights, seed=1)
    shards = [np.asarray(x.data) for x in state["w"].addressable_shards]
    assert len({x.ctypes.data for x in shards}) == 8
    assert all(np.array_equal(x, shards[0]) for x in shards)


def test_a_seed_gives_the_same_values_on_every_mesh() -> None:
    shapes = shape_tree("job", scale=QUICK)
    whole = list(draw_values(shapes, draw=draw_bits, seed=5))
    for placement in (FSDP[1], FSDP[4], REPLICATED):
        placed = replace(placement, processes=1)
        abstract = abstract_state(shapes, placement=placed)
        state = build_state(abstract, draw=draw_bits, seed=5)
        for values, array in zip(whole, jax.tree.leaves(state), strict=True):
            found = np.asarray(array)
            assert np.array_equal(found.view(np.uint8), values.view(np.uint8))


def test_the_state_of_a_job_and_of_a_trainer_have_the_sizes_they_should() -> None:
    assert 256 << 20 <= logical_bytes(shape_tree("job", scale=FULL)) <= 512 << 20
    assert 200 << 20 <= logical_bytes(shape_tree("step", scale=FULL)) <= 400 << 20


def test_the_same_seed_builds_the_same_values() -> None:
    shapes = shape_tree("small", scale=QUICK)
    abstract = abstract_state(shapes, placement=REPLICATED)
    first, again, other = (
        jax.tree.leaves(build_state(abstract, draw=draw_weights, seed=seed))
        for seed in (3, 3, 4)
    )
    assert all(map(np.array_equal, first, again))
    assert not np.array_equal(first[0], other[0])


def test_every_case_fits_its_devices_and_divides_its_matrices() -> None:
    for case in CASES:
        shapes = shape_tree(case.tree, scale=FULL)
        for placement in (case.saved, *case.targets.values()):
            assert placement.devices <= case.devices * placement.processes
            if placement.processes > 1:
                assert placement.devices == case.devices * placement.processes
            sizes = dict(placement.axes)
            for leaf in jax.tree.leaves(shapes):
                if len(leaf.shape) == 2:
                    for extent, axis in zip(leaf.shape, placement.spec, strict=False):
                        assert axis is None or extent % sizes[axis] == 0
