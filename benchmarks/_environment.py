"""What machine and which versions the figures belong to."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_DISTRIBUTIONS = (
    "ckpt-jax",
    "jax",
    "jaxlib",
    "numpy",
    "orbax-checkpoint",
    "safetensors",
    "tensorstore",
    "torch",
)


def describe_environment(*, load_before: float) -> dict[str, Any]:
    """Facts for the JSON; no path and no host name, so that it can be published."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu": _find_cpu(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_before": load_before,
        "versions": {name: _find_version(name) for name in _DISTRIBUTIONS},
    }


def _find_cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _find_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
