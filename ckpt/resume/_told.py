"""What is compared before a run goes on: settings, the caller's config, the data."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from .._errors import DataMismatch
from .._warn import warn_caller
from ._fingerprint import compare_fingerprints
from ._settings import compare_values, describe_settings
from ._stream import Stream
from ._tree import Saved, describe_mesh

_log = logging.getLogger("ckpt")


def check_config(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a config as JSON has it; TypeError for what JSON lacks.

    >>> check_config({"seed": 0, "betas": (0.9, 0.99)})
    {'seed': 0, 'betas': [0.9, 0.99]}
    """
    found: dict[str, Any] = {}
    for name, value in dict(config or {}).items():
        try:
            found[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError) as error:
            raise TypeError(
                "expected config= of numbers, texts, lists and dicts, found that "
                f"{error} - at `{name}`"
            ) from None
    return found


def tell(
    config: Mapping[str, Any], stream: Stream | None, mesh: Any, processes: int
) -> dict[str, Any]:
    """Return what a step says of the run that saved it."""
    return {
        "settings": describe_settings(),
        "config": dict(config),
        "data": None if stream is None else stream.fingerprint(),
        "mesh": describe_mesh(mesh),
        "processes": processes,
    }


def compare_told(
    saved: Saved, now: Mapping[str, Any], *, where: str, check_data: bool
) -> None:
    """Warn of settings and config that differ; DataMismatch for another pipeline."""
    told = saved.told
    for name, effect in (
        ("settings", "the steps that follow may differ from an uninterrupted run's"),
        ("config", "the run goes on as it is told now"),
    ):
        lines = compare_values(told[name], now[name])
        if lines:
            _warn(f"expected the {name} of {where}", lines, effect)
    _compare_data(saved, now["data"], where=where, check_data=check_data)
    if (told.get("mesh"), told.get("processes")) != (now["mesh"], now["processes"]):
        _log.info(
            "step %d was saved on mesh %s of %s processes and goes on on %s of %d: the "
            "state is the same bit for bit, sums may round otherwise from now on",
            *(saved.step, told.get("mesh"), told.get("processes")),
            *(now["mesh"], now["processes"]),
        )


def _compare_data(saved: Saved, now: Any, *, where: str, check_data: bool) -> None:
    before = saved.told["data"]
    if before is None or now is None:
        if before is not now:
            which = ["no data was saved, it begins at its start"]
            if now is None:
                which = ["no data is given, though its position was saved"]
            _warn(f"expected the data of {where}", which, "pass the same data")
        return
    lines = compare_fingerprints(before, now)
    if lines and check_data:
        raise DataMismatch(
            f"expected the data of {where}, found another pipeline:\n  "
            + "\n  ".join(lines)
            + "\ngo on with the data that was saved; or pass check_data=False to take "
            "its position all the same"
        )
    if lines:
        _warn(f"expected the data of {where}", lines, "its position is taken")


def _warn(what: str, lines: list[str], effect: str) -> None:
    warn_caller(f"{what}, found others: {'; '.join(lines)} - {effect}")
