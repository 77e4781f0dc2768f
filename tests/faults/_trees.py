"""Trees that tell by every value which seed they were made of."""

from typing import Any, Literal

import numpy as np

import ckpt

Size = Literal["small", "wide", "frozen"]


class WrongTree(Exception):
    """A restored tree is not, bit for bit, one that was saved."""


def make_tree(seed: int, size: Size = "small") -> dict[str, Any]:
    """Make a tree of numpy arrays: one large leaf and one small, or many of both.

    A frozen one has a large leaf more, which is the same for every seed.
    """
    generator = np.random.default_rng(seed)
    tree: dict[str, Any] = {
        "seed": np.full(3, seed, np.int32),
        "w": generator.standard_normal((512, 512), np.float32),
    }
    if size == "frozen":
        frozen = np.random.default_rng(7)
        tree["base"] = frozen.standard_normal((1024, 512), np.float32)
    if size == "wide":
        tree["deep"] = {
            f"layer{number}": {
                "kernel": generator.standard_normal((1024, 512), np.float32),
                "bias": generator.standard_normal(512, np.float32),
                "mask": generator.integers(0, 2, (64, 9)).astype(bool),
            }
            for number in range(2)
        }
    return tree


def place_tree(tree: dict[str, Any], *, devices: int = 1) -> tuple[dict[str, Any], Any]:
    """Put a tree on devices, split where that goes evenly; return their mesh too."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices])

    def place(values: Any) -> Any:
        even = values.ndim == 2 and values.shape[0] % mesh.size == 0
        spec = PartitionSpec("x") if even else PartitionSpec()
        return jax.device_put(values, NamedSharding(mesh, spec))

    return jax.tree.map(place, tree), mesh


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts by path, without the library's help."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {
        name: leaf
        for key, value in tree.items()
        for name, leaf in flat(value, f"{path}/{key}").items()
    }


def differing(found: Any, expected: Any) -> list[str]:
    """Return the paths at which two trees are not equal to the last bit."""
    left, right = flat(found), flat(expected)
    if left.keys() != right.keys():
        return sorted(left.keys() ^ right.keys())
    return [path for path in left if not same_bits(left[path], right[path])]


def same_bits(found: Any, expected: Any) -> bool:
    """Compare two arrays by type, shape and bytes."""
    found, expected = np.asarray(found), np.asarray(expected)
    return (found.dtype, found.shape) == (expected.dtype, expected.shape) and (
        found.tobytes() == expected.tobytes()
    )


def seed_of(tree: Any) -> int:
    """Return the seed of a restored tree; WrongTree if it is not whole."""
    seed = int(tree["seed"][0])
    size: Size = "wide" if "deep" in tree else "frozen" if "base" in tree else "small"
    expected = make_tree(seed, size)
    if paths := differing(tree, expected):
        raise WrongTree(f"seed {seed} is mixed with something else at {paths}")
    return seed


def restore_seed(run: Any, step: int | None = None) -> int:
    """Restore a step to the host and return the seed of its tree."""
    return seed_of(ckpt.restore(str(run), step=step))
