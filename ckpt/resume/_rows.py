"""Sources whose rows have numbers: sequences, arrays, map-style datasets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from .._errors import DataMismatch
from ._batches import take_shuffled
from ._kind import Host, Kind, Prefix, comes_from
from ._stateful import read_iterator

_ADVICE = (
    "pass the whole dataset on every host, and elastic=True to its ckpt.resume.Stream, "
    "which then takes each one's share"
)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows, and how they are taken.

    `is_shared`: all hosts have the same rows, and each takes its share of a batch.
    Otherwise each has rows of its own.
    """

    source: Any
    seed: int | None
    batch_size: int | None
    is_shared: bool


class RowIterator(Iterator[Any]):
    """Row after row, or batch after batch, epoch after epoch; batches are full.

    Its state is how many rows were taken: by all hosts where they share the rows, else
    by this one.
    """

    __slots__ = ("mine", "rows", "taken", "unit")

    def __init__(self, rows: Rows, host: Host) -> None:
        self.rows = rows
        self.taken = 0
        size = host.processes if rows.batch_size is None else rows.batch_size
        if size % host.processes:
            raise ValueError(
                f"expected batch_size to be divisible by the number of hosts, found "
                f"{size} for {host.processes}"
            )
        self.unit = size if rows.is_shared else size // host.processes
        share = host if rows.is_shared else Host(0, 1)
        self.mine = slice(share.process, None, share.processes)

    def __next__(self) -> Any:
        length = len(self.rows.source)
        if not length:
            raise StopIteration
        seed = self.rows.seed
        mine = take_shuffled(length, self.taken, self.unit, seed=seed)[self.mine]
        batch = _take(self.rows, mine)
        self.taken += self.unit
        return batch

    @property
    def epoch(self) -> int:
        """The epoch of the last row taken."""
        return max(self.taken - 1, 0) // max(len(self.rows.source), 1)

    def get_state(self) -> int:
        """Return how many rows were taken."""
        return self.taken

    def set_state(self, taken: int) -> None:
        """Go on behind so many rows."""
        self.taken = taken


def _take(rows: Rows, numbers: Any) -> Any:
    if rows.batch_size is None:
        return rows.source[int(numbers[0])]
    if isinstance(rows.source, np.ndarray):
        return cast("Any", rows.source)[numbers]
    if comes_from(rows.source, "datasets"):
        return rows.source[numbers.tolist()]
    return [rows.source[number] for number in numbers.tolist()]


def _begin(source: Rows, host: Host) -> RowIterator:
    return RowIterator(source, host)


def _place(source: Rows, state: Any, host: Host) -> RowIterator:
    iterator = RowIterator(source, host)
    iterator.set_state(state)
    return iterator


def _describe(source: Rows, host: Host) -> dict[str, Any]:
    told: dict[str, Any] = {"source": type(source.source).__qualname__}
    if source.is_shared or host.processes == 1:
        # Rows that are each host's own differ between hosts, as these must not.
        told["records"] = len(source.source)
        fingerprint = getattr(source.source, "_fingerprint", None)
        if isinstance(fingerprint, str):
            told["fingerprint"] = fingerprint
    return told


def _count(source: Rows, state: int, host: Host, taken: int | None) -> Prefix | None:
    del taken
    if not source.is_shared and host.processes > 1:
        return None
    return Prefix(state, f"{len(source.source)} rows, seed {source.seed}")


def _move(source: Rows, prefix: Prefix, host: Host) -> RowIterator:
    if not source.is_shared and host.processes > 1:
        raise DataMismatch(
            f"expected rows that all hosts share, found rows of {host.processes} hosts "
            f"that may be each one's own: {_ADVICE}"
        )
    return _place(source, prefix.count, host)


ROWS = Kind(
    *("rows", _begin, read_iterator, _place, _describe, _count, _move),
    advice=_ADVICE,
)
"""What has a length, and rows by number."""
