"""Moving a live tree onto another mesh, device to device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

import layouts
import pytree

from ._target import make_sharding, require_devices, warn_changed


def remesh(tree: Any, mesh: Any, *, strict: bool = False) -> Any:
    """Return the tree with its jax arrays laid on `mesh`, without disk or host files.

    Each array keeps its spec, re-laid: an axis the mesh lacks or that does not divide
    is dropped, with a warning (`strict=True`: a ValueError); arrays without a mesh are
    replicated. Other leaves, types and structure stay as they are, values bit for bit.

    >>> import jax, jax.numpy as jnp, ckpt
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> ckpt.remesh({"w": jnp.ones(4)}, mesh)["w"].sharding.is_fully_replicated
    True
    """
    require_devices(mesh)
    leaves, structure = pytree.flatten(tree)
    laid = layouts.mesh_layout(mesh)
    moved = {p: x for p, x in leaves.items() if isinstance(x, jax.Array)}
    found = {p: _sharding(p, x, mesh, laid, strict=strict) for p, x in moved.items()}
    changed = [f"`{p}`: {'; '.join(notes)}" for p, (_, notes) in found.items() if notes]
    warn_changed(changed, stacklevel=2)
    shardings = [sharding for sharding, _ in found.values()]
    arrays = _put(list(moved.values()), shardings)
    return pytree.unflatten(structure, leaves | dict(zip(moved, arrays, strict=True)))


def _put(arrays: list[jax.Array], shardings: list[NamedSharding]) -> list[Any]:
    """Put arrays as jax.device_put does, which refuses what one process has alone.

    To a mesh of several processes it takes neither keys nor committed arrays of one.
    """
    lone = {n for n, x in enumerate(arrays) if _is_lone(x, shardings[n])}
    keys = {n: arrays[n] for n in lone if _is_key(arrays[n])}
    given: list[Any] = list(arrays)
    for n in lone:
        if n in keys:
            given[n] = np.asarray(jax.random.key_data(keys[n]))
        elif arrays[n].committed:
            given[n] = np.asarray(arrays[n])
    put: list[Any] = jax.device_put(given, shardings)
    for n, key in keys.items():
        put[n] = jax.random.wrap_key_data(put[n], impl=jax.random.key_impl(key))
    return put


def _is_key(array: jax.Array) -> bool:
    return jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)


def _is_lone(array: jax.Array, sharding: NamedSharding) -> bool:
    return array.is_fully_addressable and not sharding.is_fully_addressable


def _sharding(
    path: str, array: jax.Array, mesh: Any, laid: layouts.MeshLayout, *, strict: bool
) -> tuple[NamedSharding, tuple[str, ...]]:
    rank = array.ndim
    spec: layouts.Spec = ((),) * rank
    if isinstance(array.sharding, NamedSharding):
        spec = layouts.spec_of(array.sharding.spec, rank)
    found = layouts.relay_spec(spec, array.shape, laid)
    if strict and found.dropped:
        raise ValueError(
            f"expected {layouts.format_spec(spec)} to fit {laid}, found: "
            f"{'; '.join(found.dropped)} - at `{path}`"
        )
    sharding, notes = make_sharding(mesh, found.spec, array.sharding.memory_kind)
    return sharding, (*found.dropped, *notes)
