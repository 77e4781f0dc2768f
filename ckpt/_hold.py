"""Copying what a process will write to host memory, so that the caller may go on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from layouts import Box, WritePlan

from ._snapshot import Snapshot, known_sources
from ._source import Held, Source, is_in_host_memory, start_transfer
from ._write import run_all

Array = np.ndarray[Any, Any]
Copy = Callable[[], Array]

_LARGE_BYTES = 1 << 20
"""Copies smaller than this are not worth a thread's attention."""


def hold_snapshot(snapshot: Snapshot, plan: WritePlan) -> Snapshot:
    """Return the snapshot with copies of the cells that the plan for it writes."""
    held = iter(_hold_cells(known_sources(snapshot), plan))
    sources = {path: next(held) for path in snapshot.sources}
    own = {
        path: (structure, tuple(next(held) for _ in found))
        for path, (structure, found) in snapshot.own.items()
    }
    return replace(snapshot, sources=sources, own=own)


def _hold_cells(sources: Sequence[Source], plan: WritePlan) -> tuple[Source, ...]:
    """Return the sources with the cells that the plan writes copied to host memory.

    Transfers from devices are begun for all leaves before any is waited for. The
    caller may then donate, delete or mutate the arrays.
    """
    held: list[Held] = [{} for _ in sources]
    small: list[tuple[int, Box, Copy]] = []
    large: list[tuple[int, Box, Copy]] = []
    for number, box in _planned(plan):
        source = sources[number]
        size = box.size * source.leaf.itemsize
        kind = large if size >= _LARGE_BYTES else small
        kind.append((number, box, _begin_copy(source, box)))

    def finish(item: tuple[int, Box, Copy]) -> None:
        number, box, copy = item
        held[number][box] = copy()

    for item in small:
        finish(item)
    run_all(finish, large, parallel=min(os.cpu_count() or 1, 4))
    return tuple(
        s if s.pieces is None or s.array is None else replace(s, array=h)
        for s, h in zip(sources, held, strict=True)
    )


def _planned(plan: WritePlan) -> list[tuple[int, Box]]:
    cells = [(write.leaf, write.object) for write in plan.objects]
    cells += [(row.leaf, row.piece) for row in plan.rows]
    found: list[tuple[int, Box]] = []
    for number, cell in cells:
        grid = plan.leaves[number].cells
        found.append((number, grid.box(grid.coordinates(cell))))
    return found


def _begin_copy(source: Source, box: Box) -> Copy:
    array = source.array
    if isinstance(array, jax.Array):
        data, inside = source.locate(box)
        if not is_in_host_memory(data):
            return start_transfer(data, inside)
    return lambda: np.array(source.fetch(box), order="C")
