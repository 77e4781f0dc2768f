"""Orbax v0 with Zarr v3, otherwise its defaults."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp


@functools.cache
def _checkpointer() -> ocp.AsyncCheckpointer:
    return ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_zarr3=True))


def save(state: Any, folder: Path) -> None:
    _checkpointer().save(folder, args=ocp.args.PyTreeSave(state))
    _checkpointer().wait_until_finished()


def save_async(state: Any, folder: Path) -> Callable[[], object]:
    _checkpointer().save(folder, args=ocp.args.PyTreeSave(state))
    return _checkpointer().wait_until_finished


def restore(folder: Path, abstract: Any) -> Any:
    leaves = ocp.checkpoint_utils.construct_restore_args(abstract)
    return _checkpointer().restore(
        folder, args=ocp.args.PyTreeRestore(item=abstract, restore_args=leaves)
    )


def metadata(folder: Path) -> Any:
    return _checkpointer().metadata(folder)
