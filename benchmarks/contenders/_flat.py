"""Names for leaves, for the libraries that store flat dictionaries of arrays."""

from __future__ import annotations

from typing import Any

import jax


def flatten_names(tree: Any) -> dict[str, Any]:
    """The leaves by path: `params/blocks/0/mlp/up/kernel`."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in leaves
    }


def unflatten_names(named: dict[str, Any], *, like: Any) -> Any:
    """The inverse of `flatten_names` for a tree shaped as `like`."""
    leaves = [named[name] for name in flatten_names(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
