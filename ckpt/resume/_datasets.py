"""Hugging Face's IterableDataset."""

from __future__ import annotations

from typing import Any

from ._kind import Host, Kind
from ._state import digest, freeze
from ._stateful import begin, place_source, read_source


def _chain(source: Any) -> list[Any]:
    found = [getattr(source, "_ex_iterable", None)]
    while (inner := getattr(found[-1], "ex_iterable", None)) is not None:
        found.append(inner)
    return found


def _describe(source: Any, host: Host) -> dict[str, Any]:
    del host
    seeds = [
        digest(freeze(step.generator.bit_generator.state))[:16]
        for step in _chain(source)
        if hasattr(getattr(step, "generator", None), "bit_generator")
    ]
    return {
        "shuffles": seeds,
        "shards": source.num_shards,
        "columns": source.column_names,
    }


ITERABLE = Kind("datasets.IterableDataset", begin, read_source, place_source, _describe)
"""An IterableDataset; its state is each host's own."""
