"""Orbax v0 with its defaults: OCDBT, Zarr v2, zstd."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp


@functools.cache
def _checkpointer() -> ocp.StandardCheckpointer:
    return ocp.StandardCheckpointer()


def save(state: Any, folder: Path) -> None:
    _checkpointer().save(folder, state)
    _checkpointer().wait_until_finished()


def save_async(state: Any, folder: Path) -> Callable[[], object]:
    _checkpointer().save(folder, state)
    return _checkpointer().wait_until_finished


def restore(folder: Path, abstract: Any) -> Any:
    return _checkpointer().restore(folder, abstract)


def metadata(folder: Path) -> Any:
    return _checkpointer().metadata(folder)
