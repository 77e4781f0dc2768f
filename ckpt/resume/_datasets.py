"""Hugging Face's IterableDataset."""

from __future__ import annotations

import warnings
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


def warn_of_buffers(source: Any) -> None:
    """Warn of a shuffle buffer, whose rows are in no state."""
    for step in _chain(getattr(source, "dataset", source)):
        rows = getattr(step, "buffer_size", 0)
        if type(step).__name__.startswith("BufferShuffled") and rows > 1:
            warnings.warn(
                f"a resume loses up to {rows} rows: those in the shuffle buffer of the "
                f"IterableDataset are not in its state; shuffle a map-style dataset "
                f"(pass it with seed= to ckpt.resume.Stream), or shuffle shards alone "
                f"(buffer_size=1)",
                stacklevel=4,
            )


ITERABLE = Kind("datasets.IterableDataset", begin, read_source, place_source, _describe)
"""An IterableDataset; its state is each host's own."""
