"""ckpt with its defaults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import ckpt


def save(state: Any, folder: Path) -> None:
    ckpt.save(state, _find_mesh(state), folder, step=0)


def save_async(state: Any, folder: Path) -> Callable[[], object]:
    return ckpt.save_async(state, _find_mesh(state), folder, step=0).result


def restore(folder: Path, abstract: Any) -> Any:
    return ckpt.restore(folder, _find_mesh(abstract), like=abstract)


def metadata(folder: Path) -> Any:
    return ckpt.open(folder).tree


def _find_mesh(tree: Any) -> Any:
    return jax.tree.leaves(tree)[0].sharding.mesh
