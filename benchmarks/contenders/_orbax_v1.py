"""Orbax v1 with its defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orbax.checkpoint.experimental.v1 as ocp


def save(state: Any, folder: Path) -> None:
    ocp.save(str(folder), state)


def restore(folder: Path, abstract: Any) -> Any:
    return ocp.load(str(folder), abstract)


def metadata(folder: Path) -> Any:
    return ocp.metadata(str(folder))
