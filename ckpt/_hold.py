"""Copying what a process will write to host memory, so that the caller may go on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from layouts import Box, WritePlan

from ._snapshot import Snapshot, known_sources
from ._source import Held, Source, Transfer, is_in_host_memory, start_transfer
from ._staging import SLAB_BYTES, take_slab
from ._write import run_all

Array = np.ndarray[Any, Any]

_SMALL_BYTES = 256 << 10
"""Copies smaller than this are not worth a thread's attention."""

_ALIGNMENT = 64


def hold_snapshot(snapshot: Snapshot, plan: WritePlan) -> Snapshot:
    """Return the snapshot with copies of the cells that the plan for it writes.

    Transfers from devices are begun for all leaves before any is waited for. The
    caller may then donate, delete or mutate the arrays.
    """
    memory, found = _hold_cells(known_sources(snapshot), plan)
    held = iter(found)
    sources = {path: next(held) for path in snapshot.sources}
    own = {
        path: (structure, tuple(next(held) for _ in found))
        for path, (structure, found) in snapshot.own.items()
    }
    return replace(snapshot, sources=sources, own=own, memory=memory)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A cell to copy: of which source, and how it is fetched or on its way."""

    number: int
    box: Box
    source: Source
    transfer: Transfer | None

    @property
    def nbytes(self) -> int:
        return self.box.size * self.source.leaf.itemsize


def _hold_cells(
    sources: Sequence[Source], plan: WritePlan
) -> tuple[tuple[Array, ...], tuple[Source, ...]]:
    copies = [
        _Copy(number, box, sources[number], _begin(sources[number], box))
        for number, box in _planned(plan)
    ]
    held: list[Held] = [{} for _ in sources]
    here: list[tuple[_Copy, Array]] = []
    memory: list[Array] = []
    for copy, room in _make_room([c for c in copies if c.transfer is None], memory):
        held[copy.number][copy.box] = room
        here.append((copy, room))
    small = [pair for pair in here if pair[0].nbytes < _SMALL_BYTES]
    large = [pair for pair in here if pair[0].nbytes >= _SMALL_BYTES]
    for pair in small:
        _copy_here(pair)
    run_all(_copy_here, large, parallel=min(os.cpu_count() or 1, 4))
    for copy in copies:
        if copy.transfer is not None:
            held[copy.number][copy.box] = copy.transfer()
    return tuple(memory), tuple(
        s if s.pieces is None or s.array is None else replace(s, array=h)
        for s, h in zip(sources, held, strict=True)
    )


def _copy_here(pair: tuple[_Copy, Array]) -> None:
    copy, room = pair
    room[...] = copy.source.fetch(copy.box)


def _planned(plan: WritePlan) -> Iterator[tuple[int, Box]]:
    cells = [(write.leaf, write.object) for write in plan.objects]
    cells += [(row.leaf, row.piece) for row in plan.rows]
    for number, cell in cells:
        grid = plan.leaves[number].cells
        yield number, grid.box(grid.coordinates(cell))


def _begin(source: Source, box: Box) -> Transfer | None:
    """Begin to bring a cell from its device; None if it is in host memory."""
    if not isinstance(source.array, jax.Array):
        return None
    data, inside = source.locate(box)
    return None if is_in_host_memory(data) else start_transfer(data, inside)


def _make_room(
    copies: Sequence[_Copy], memory: list[Array]
) -> Iterator[tuple[_Copy, Array]]:
    """Yield each copy with room for it, cut from slabs, which are added to `memory`."""
    slabs: list[list[_Copy]] = [[]]
    size = 0
    for copy in copies:
        if slabs[-1] and size + copy.nbytes > SLAB_BYTES:
            slabs.append([])
            size = 0
        slabs[-1].append(copy)
        size += _align(copy.nbytes)
    for slab in slabs:
        taken = take_slab(sum(_align(copy.nbytes) for copy in slab))
        memory.append(taken)
        offset = 0
        for copy in slab:
            part = taken[offset : offset + copy.nbytes]
            dtype = copy.source.leaf.numpy_dtype
            yield copy, part.view(dtype).reshape(copy.box.shape)
            offset += _align(copy.nbytes)


def _align(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
