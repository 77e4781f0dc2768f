"""JAX's own array serialization, which stores a list of arrays at paths."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from jax.experimental.array_serialization.serialization import (
    GlobalAsyncCheckpointManager,
)

from benchmarks.contenders._flat import flatten_names, unflatten_names


@functools.cache
def _manager() -> GlobalAsyncCheckpointManager:
    return GlobalAsyncCheckpointManager()


def save(state: Any, folder: Path) -> None:
    named = flatten_names(state)
    _manager().serialize_with_paths(
        list(named.values()),
        [str(folder / name) for name in named],
        on_commit_callback=lambda: None,
    )
    _manager().wait_until_finished()


def restore(folder: Path, abstract: Any) -> Any:
    named = flatten_names(abstract)
    arrays = _manager().deserialize_with_paths(
        [leaf.sharding for leaf in named.values()],
        [str(folder / name) for name in named],
    )
    return unflatten_names(dict(zip(named, arrays, strict=True)), like=abstract)
