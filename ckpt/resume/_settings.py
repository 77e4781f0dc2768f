"""What changes numbers beside the state: JAX's settings, versions, the device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

import jax
import jaxlib

_OPTIONS = (
    "jax_enable_x64",
    "jax_threefry_partitionable",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_default_dtype_bits",
    "jax_debug_nans",
    "jax_disable_jit",
)
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_HARMLESS = (
    "--xla_force_host_platform_device_count",
    "--xla_cpu_collective",
    "--xla_dump",
    "--xla_gpu_nccl",
)


def describe_settings() -> dict[str, str]:
    """Return what changes numbers, by name, as text.

    >>> describe_settings()["jax_enable_x64"]
    'False'
    """
    found = {name: str(getattr(jax.config, name)) for name in _OPTIONS if _has(name)}
    device = cast("Any", jax.devices()[0])
    found["device"] = f"{device.platform} {device.device_kind}"
    found["jax"] = jax.__version__
    found["jaxlib"] = jaxlib.__version__
    for name in _FLAGS:
        flags = sorted(os.environ.get(name, "").split())
        found[name] = " ".join(f for f in flags if not f.startswith(_HARMLESS))
    return found


def _has(name: str) -> bool:
    return getattr(jax.config, name, None) is not None or hasattr(jax.config, name)


def compare_values(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for each name whose values differ, in order of names.

    >>> compare_values({"seed": 0, "lr": 0.1}, {"seed": 1, "lr": 0.1})
    ['seed: expected 0 (saved), found 1']
    """
    return [
        f"{name}: expected {_show(saved, name)} (saved), found {_show(now, name)}"
        for name in sorted(saved.keys() | now.keys(), key=str)
        if (name in saved) != (name in now) or _differ(saved[name], now[name])
    ]


def _differ(saved: Any, now: Any) -> bool:
    # A NaN differs from itself, but is the same text.
    return saved != now and repr(saved) != repr(now)


def _show(values: Mapping[str, Any], name: str) -> str:
    return f"{values[name]!r:.200}" if name in values else "nothing"
