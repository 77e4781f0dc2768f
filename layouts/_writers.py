"""Which process writes each cell of an array, found without a walk over all cells."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

from ._errors import InvalidLayout, show
from ._expect import expect_int, expect_list

Runs = tuple[tuple[int, int], ...]
"""Writers, run-length encoded in the order of the cells: (process, count)."""


# Without slots: what is looked up is kept with the value, which many leaves share.
@dataclass(frozen=True)
class Writers:
    """The process that writes each cell; leaves of one layout share one value.

    >>> writers = Writers(((0, 2), (5, 1), (0, 1)))
    >>> writers.process(2), list(writers.cells(0)), writers.length
    (5, [0, 1, 3], 4)
    """

    runs: Runs

    @property
    def length(self) -> int:
        """The number of cells."""
        return self._stops[-1] if self.runs else 0

    def process(self, cell: int) -> int:
        """Return the process that writes the cell with this number."""
        return self.runs[bisect_right(self._stops, cell)][0]

    def cells(self, process: int) -> Iterable[int]:
        """Return the numbers of the cells that a process writes, ascending."""
        return chain.from_iterable(self._ranges.get(process, ()))

    @cached_property
    def _stops(self) -> list[int]:
        return list(accumulate([count for _, count in self.runs]))

    @cached_property
    def _ranges(self) -> dict[int, list[range]]:
        found: dict[int, list[range]] = {}
        for (process, count), stop in zip(self.runs, self._stops, strict=True):
            found.setdefault(process, []).append(range(stop - count, stop))
        return found

    @cached_property
    def _hash(self) -> int:
        return hash(self.runs)

    def __hash__(self) -> int:
        return self._hash

    def to_json(self) -> list[int]:
        """Return the runs as one flat list: process, count, process, count ..."""
        return list(chain.from_iterable(self.runs))


def merge_writers(processes: Iterable[int]) -> Runs:
    """Return the runs of the writers of all cells, given one by one.

    >>> merge_writers([0, 0, 2, 1, 1])
    ((0, 2), (2, 1), (1, 2))
    """
    runs: list[tuple[int, int]] = []
    last, count = -1, 0
    for process in processes:
        if process != last:
            if count:
                runs.append((last, count))
            last, count = process, 0
        count += 1
    return (*runs, (last, count)) if count else ()


def writers_from_json(value: Any, processes: int) -> Writers:
    """Read the writers of one layout in a job of so many processes."""
    flat = expect_list(value, "runs of writers")
    if len(flat) % 2:
        raise InvalidLayout(f"expected a count for each writer, found {show(flat)}")
    found, counts = flat[::2], flat[1::2]
    sound = set(map(type, flat)) <= {int} and (
        not flat
        or (
            (min(found) >= 0 and max(found) < processes)
            and (min(counts) >= 1 and max(counts) < 1 << 63)
        )
    )
    if not sound:
        for writer, count in zip(found, counts, strict=True):
            expect_int(writer, "a writer", below=processes)
            expect_int(count, "a count of cells", least=1, below=1 << 63)
    return Writers(tuple(zip(found, counts, strict=True)))
