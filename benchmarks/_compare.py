"""Compares a restored tree with the saved one, bit for bit."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def gather_host(array: jax.Array) -> np.ndarray:
    """The whole array on the host, leaving no cached copy on the array itself."""
    whole = np.empty(array.shape, array.dtype)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            whole[shard.index] = np.asarray(shard.data)
    return whole


def list_differences(saved: Any, restored: Any, *, abstract: Any) -> list[str]:
    """One line for each leaf that isn't the saved one under the asked sharding.

    The saved leaves may be jax arrays that this process holds whole, or numpy ones.
    """
    wanted = jax.tree_util.tree_flatten_with_path(abstract)[0]
    sources = jax.tree.leaves(saved)
    if jax.tree.structure(restored) != jax.tree.structure(abstract):
        return ["the tree's structure differs"]
    lines: list[str] = []
    for (path, want), source, found in zip(
        wanted, sources, jax.tree.leaves(restored), strict=True
    ):
        problem = _describe(source, found, want=want)
        if problem:
            lines.append(f"{jax.tree_util.keystr(path)}: {problem}")
    return lines


def _describe(source: jax.Array | np.ndarray, found: Any, *, want: Any) -> str:
    if not isinstance(found, jax.Array):
        return f"expected a jax.Array, found {type(found).__name__}"
    if found.shape != source.shape or found.dtype != source.dtype:
        return (
            f"expected {source.dtype}{source.shape}, found {found.dtype}{found.shape}"
        )
    if not found.sharding.is_equivalent_to(want.sharding, found.ndim):
        return f"expected {want.sharding}, found {found.sharding}"
    whole = source if isinstance(source, np.ndarray) else gather_host(source)
    for shard in found.addressable_shards:
        expected = _bits(whole[shard.index])
        if not np.array_equal(expected, _bits(np.asarray(shard.data))):
            return f"values differ on {shard.device}"
    return ""


def _bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
