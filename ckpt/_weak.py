"""Making a weakly typed jax array: the one thing JAX offers no public call for."""

from __future__ import annotations

from typing import Any, cast


def make_weak(array: Any) -> Any:
    """Return the array with `weak_type=True`, its values, dtype and sharding kept.

    A scalar made by `jnp.asarray(0.1)` is weak: it takes its dtype from what it meets.
    Restored strong, it would turn a bfloat16 computation into float32.
    """
    from jax._src.lax.lax import _convert_element_type  # pyright: ignore[reportPrivateUsage]

    return cast("Any", _convert_element_type(array, array.dtype, weak_type=True))
