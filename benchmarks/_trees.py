"""The trees that every contender saves, built from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Draw = Callable[[np.random.Generator, tuple[int, ...], np.dtype], np.ndarray]


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the trees are."""

    matrices: int
    matrix_side: int
    small_leaves: int
    layers: int
    width: int
    vocabulary: int
    shards: int
    shard_side: int
    table: int
    trained_layers: int
    trained_width: int


FULL = Scale(
    matrices=16,
    matrix_side=4096,
    small_leaves=2000,
    layers=12,
    width=768,
    vocabulary=50_304,
    shards=24,
    shard_side=2048,
    table=2 << 20,
    trained_layers=2,
    trained_width=1024,
)
QUICK = Scale(
    matrices=4,
    matrix_side=512,
    small_leaves=80,
    layers=1,
    width=64,
    vocabulary=256,
    shards=4,
    shard_side=256,
    table=32 << 10,
    trained_layers=1,
    trained_width=512,
)


@dataclass(frozen=True, slots=True)
class Placement:
    """A mesh over the first devices, and the spec of every matrix.

    Leaves with fewer dimensions than two are replicated, as is usual in training.
    """

    axes: tuple[tuple[str, int], ...]
    spec: tuple[str | None, ...]
    processes: int = 1

    @property
    def devices(self) -> int:
        return math.prod(size for _, size in self.axes)

    def mesh(self) -> Mesh:
        names = tuple(name for name, _ in self.axes)
        sizes = tuple(size for _, size in self.axes)
        found = jax.devices()[: self.devices]
        return Mesh(np.array(found).reshape(sizes), names)

    def sharding(self, mesh: Mesh, ndim: int) -> NamedSharding:
        spec = PartitionSpec(*self.spec) if ndim >= 2 else PartitionSpec()
        return NamedSharding(mesh, spec)


def shape_tree(tree: str, *, scale: Scale) -> Any:
    """The tree as shapes and dtypes; `tree` is matrices, small, train, job or step."""
    if tree == "matrices":
        side = scale.matrix_side
        matrix = jax.ShapeDtypeStruct((side, side), np.float32)
        return {f"w{i:02}": matrix for i in range(scale.matrices)}
    if tree == "small":
        leaf = jax.ShapeDtypeStruct((256,), np.float32)
        return {
            f"block{i:02}": {f"leaf{j:02}": leaf for j in range(40)}
            for i in range(scale.small_leaves // 40)
        }
    if tree == "train":
        return _train_shapes(scale)
    if tree == "job":
        return _job_shapes(scale)
    if tree == "step":
        return _step_shapes(scale)
    raise ValueError(f"Expected matrices, small, train, job or step, found {tree!r}.")


def _job_shapes(scale: Scale) -> Any:
    side = scale.shard_side
    matrix = jax.ShapeDtypeStruct((side, side), np.float32)
    table = jax.ShapeDtypeStruct((scale.table,), np.float32)
    vector = jax.ShapeDtypeStruct((side,), np.float32)
    return {
        "sharded": {
            f"block{i:02}": {"w": matrix, "bias": vector} for i in range(scale.shards)
        },
        "replicated": {f"table{i}": table for i in range(4)},
    }


def _step_shapes(scale: Scale) -> Any:
    width = scale.trained_width

    def leaf(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, np.float32)

    block = {
        "norm1": leaf(width),
        "qkv": leaf(width, 3 * width),
        "out": leaf(width, width),
        "norm2": leaf(width),
        "up": leaf(width, 4 * width),
        "down": leaf(width, 4 * width),
    }
    params = {
        "embedding": leaf(2 * width, width),
        "blocks": [block] * scale.trained_layers,
        "norm": leaf(width),
    }
    step = jax.ShapeDtypeStruct((), np.int32)
    return {"params": params, "mean": params, "square": params, "step": step}


def _train_shapes(scale: Scale) -> Any:
    import jax.numpy as jnp
    import optax

    width = scale.width

    def leaf(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    block = {
        "norm1": {"scale": leaf(width), "bias": leaf(width)},
        "attention": {
            "qkv": {"kernel": leaf(width, 3 * width), "bias": leaf(3 * width)},
            "out": {"kernel": leaf(width, width), "bias": leaf(width)},
        },
        "norm2": {"scale": leaf(width), "bias": leaf(width)},
        "mlp": {
            "up": {"kernel": leaf(width, 4 * width), "bias": leaf(4 * width)},
            "down": {"kernel": leaf(4 * width, width), "bias": leaf(width)},
        },
    }
    params = {
        "embedding": leaf(scale.vocabulary, width),
        "positions": leaf(1024, width),
        "blocks": [block] * scale.layers,
        "norm": {"scale": leaf(width), "bias": leaf(width)},
    }
    # Moments are kept in f32 beside bf16 params, as mixed-precision recipes do.
    wide = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, np.float32), params)
    moments = jax.eval_shape(optax.adamw(3e-4).init, wide)
    step = jax.ShapeDtypeStruct((), np.int32)
    return {"params": params, "opt_state": moments, "step": step}


def abstract_state(shapes: Any, *, placement: Placement) -> Any:
    """`shapes` with a sharding on every leaf."""
    mesh = placement.mesh()

    def place(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding = placement.sharding(mesh, len(leaf.shape))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(place, shapes)


def build_state(abstract: Any, *, draw: Draw, seed: int) -> Any:
    """Arrays for `abstract` with the values of `draw_values` on every mesh."""
    leaves, structure = jax.tree.flatten(abstract)
    values = draw_values(abstract, draw=draw, seed=seed)
    arrays = [_place_values(*pair) for pair in zip(leaves, values, strict=True)]
    return jax.block_until_ready(jax.tree.unflatten(structure, arrays))


def draw_values(shapes: Any, *, draw: Draw, seed: int) -> Iterator[np.ndarray]:
    """The values of each leaf, whole, on the host."""
    for number, leaf in enumerate(jax.tree.leaves(shapes)):
        # Processes of a job draw the same values, though each holds others of them.
        rng = np.random.Generator(np.random.SFC64([seed, number]))
        yield draw(rng, leaf.shape, np.dtype(leaf.dtype))


def _place_values(leaf: jax.ShapeDtypeStruct, values: np.ndarray) -> jax.Array:
    sharding = leaf.sharding
    if not isinstance(sharding, NamedSharding):
        raise TypeError(f"Expected a NamedSharding, found {sharding!r}.")
    # A replica is its own buffer on real devices, so it is one here.
    pieces = [
        jax.device_put(values[index].copy(), device)
        for device, index in sharding.addressable_devices_indices_map(
            leaf.shape
        ).items()
    ]
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, pieces)


def draw_bits(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """Values of uniformly random bits: nothing can compress them."""
    size = math.prod(shape) * dtype.itemsize
    words = rng.integers(0, 2**64, size=-(-size // 8), dtype=np.uint64)
    return words.view(np.uint8)[:size].view(dtype).reshape(shape)


def draw_weights(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """Normal values, as weights and moments have; integers are counters."""
    if dtype.kind == "i":
        return np.full(shape, rng.integers(1, 1_000_000), dtype)
    values = rng.standard_normal(shape, dtype=np.float32)
    return (values * np.float32(0.02)).astype(dtype)


def logical_bytes(shapes: Any) -> int:
    """The bytes of the tree's values, each counted once."""
    leaves = jax.tree.leaves(shapes)
    return sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in leaves)
