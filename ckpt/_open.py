"""Opening a checkpoint without reading its arrays."""

from __future__ import annotations

from ._catalog import PathLike
from ._checkpoint import Checkpoint
from ._mirror import Places
from ._store_options import GivenOptions


def open(
    path: PathLike | None = None,
    *,
    step: int | None = None,
    mirror: PathLike | None = None,
    store_options: GivenOptions | None = None,
) -> Checkpoint:
    """Open a run's newest committed step (or `step`), or one checkpoint by its path.

    The path may also be a folder or file of another library (safetensors, PyTorch,
    DeepSpeed, Orbax, flax): `.format` says which, and its values are never loaded by
    code of that library. With `mirror` the newest of both, in `path` if it is there:
    `.url` tells where. Reads the manifest alone: NotFound, Damaged, Untrusted or
    Unsupported if it is not one this version can read.

    >>> import jax.numpy as jnp, ckpt
    >>> files = ckpt.save_safetensors({"w": jnp.arange(6.0)}, "memory://doc-others")
    >>> ck = ckpt.open("memory://doc-others")
    >>> ck.format, ck["w"][4:]
    ('safetensors', array([4., 5.], dtype=float32))
    """
    return Checkpoint(Places(path, mirror, store_options).open(step)[0])
