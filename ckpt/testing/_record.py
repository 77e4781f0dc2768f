"""What a training saw, step by step, and where two records part."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, cast

import jax
import numpy as np

import pytree

from ..resume._rng import pack_rngs


def show_leaves(tree: Any) -> dict[str, str]:
    """Return each leaf of a tree as a text: the same if and only if the bits are.

    >>> show_leaves({"loss": np.float32(0.5)})
    {'loss': '0.5 float32[] d99e5843'}
    """
    return {
        path: _show(leaf) for path, leaf in pytree.flatten(pack_rngs(tree))[0].items()
    }


def _show(leaf: Any) -> str:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(
        leaf.dtype, jax.dtypes.prng_key
    ):
        leaf = cast("Any", jax.random.key_data(leaf))
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        array: np.ndarray[Any, Any] = np.asarray(cast("Any", leaf))
        digest = hashlib.sha256(array.tobytes()).hexdigest()[:8]
        shown = f"{array.item()!r:.40}" if array.size == 1 else _summarise(array)
        shape = ",".join(map(str, array.shape))
        return f"{shown} {array.dtype}[{shape}] {digest}"
    text = repr(leaf)
    if len(text) <= 200:
        return text
    return f"{text[:200]}.. {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _summarise(array: np.ndarray[Any, Any]) -> str:
    first = array.reshape(-1)[:3].tolist()
    return f"({', '.join(f'{x!r:.24}' for x in first)}, ..)" if first else "()"


def find_difference(
    expected: Mapping[str, str], found: Mapping[str, str]
) -> tuple[str, str, str] | None:
    """Return the first path whose leaves differ, and both; None where none do.

    >>> find_difference({"a": "1", "b": "2"}, {"a": "1", "b": "3"})
    ('b', '2', '3')
    """
    for path in [*expected, *(p for p in found if p not in expected)]:
        one, other = expected.get(path, "nothing"), found.get(path, "nothing")
        if one != other:
            return path, one, other
    return None
