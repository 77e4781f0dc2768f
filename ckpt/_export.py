"""Writing the arrays of a tree or a checkpoint as safetensors files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ._catalog import PathLike
from ._copy import Progress
from ._job import BARRIER_SECONDS, check_timeout
from ._store_options import GivenOptions


def save_safetensors(
    tree_or_path: Any,
    out: PathLike,
    *,
    step: int | None = None,
    select: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
    max_shard_bytes: int = 5_000_000_000,
    max_host_bytes: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    barrier_timeout: float = BARRIER_SECONDS,
    store_options: GivenOptions | None = None,
) -> tuple[str, ...]:
    """Write a tree, or any checkpoint, as safetensors files; return their names.

    `tree_or_path` is a tree of arrays, a Checkpoint, or the path of what `ckpt.open`
    opens (its newest step, or `step`). The folder `out` gets model.safetensors, or
    model-00001-of-00003.safetensors and so on with model.safetensors.index.json where
    the arrays are more than `max_shard_bytes`; safetensors, huggingface_hub and
    transformers read them. Names are the paths with dots, so that those of a flat dict
    are its keys. `select` takes only the paths that its globs match, as they were
    before `rename`, which maps paths as in `restore`. Python numbers become arrays
    without dimensions (int64, float64 or bool); None is left out, as it has no leaf.
    Ties are written once, and recorded in the metadata {name: name of the array}.
    `metadata` is kept beside {"format": "pt"}, which transformers asks for.

    Refused, all at once and before anything is written: names that are empty, given
    twice or `__metadata__`; text, bytes, typed PRNG keys, and dtypes that safetensors
    lacks (complex128, int4).

    Streaming: what is held beside the arrays themselves stays within `max_host_bytes`.
    An object store is sent each file whole, so there they are of 512 MiB at most where
    arrays are not larger. Durable when it returns. A set that is there already is an
    error without `overwrite`; with it the old files stay as they are until the new
    ones are complete, and are then removed. `progress` is called with the bytes done
    and all bytes.

    In a job of several processes a tree with arrays on devices of several of them is
    for all to call, with the same arguments. Each writes whole files, about as many
    bytes as the others if the set has enough files (`max_shard_bytes`), and `progress`
    tells of its own; what others hold of those they hand over by XLA. When one fails or
    stays away for `barrier_timeout` seconds, all raise, and readers see the old set;
    CommitUnknown says that process 0 fell silent as it put the new one in place.
    Other trees, and paths, are local: let one process call it.

    Raises Unsupported, StepExists, NotFound, Damaged, LimitExceeded, StoreError,
    BarrierTimeout, CommitUnknown.

    >>> import jax.numpy as jnp, ckpt
    >>> ckpt.save_safetensors({"layer": {"w": jnp.ones(3)}}, "memory://doc-export")
    ('model.safetensors',)
    """
    # Not before it is needed: most programs never read or write foreign formats.
    from .formats._safetensors_items import Request, is_shared

    request = Request(
        tree_or_path,
        out,
        step,
        select,
        rename,
        metadata,
        max_shard_bytes,
        max_host_bytes,
        overwrite,
        progress,
        store_options,
    )
    if is_shared(tree_or_path):
        from .formats._safetensors_together import write_set_together

        return write_set_together(request, barrier_timeout)
    from .formats._safetensors_write import write_set

    check_timeout(barrier_timeout)
    return write_set(request)
