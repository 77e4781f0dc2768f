"""Reads boxes of foreign tensors into buffers: by range, several runs at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from operator import add, mul
from typing import Any, cast

import numpy as np

import layouts
from layouts import Box

from .._errors import Damaged, LimitExceeded
from .._read import scatter
from .._store import CutShort, Reader, Store
from .._write import run_all
from ._entry import Array, Blob, Block, Lazy, Tensor
from ._marks import Marks, check_mark
from ._strides import (
    c_strides,
    cut_strided,
    is_in_c_order,
    item_bytes,
    span_bytes,
)

_TASK_BYTES = 4 << 20
"""What one thread reads before it looks for more."""

_WAVE = 16
"""How many such portions for each thread are planned ahead."""

SPAN_BYTES = 256 << 20
"""Items that do not lie in C order are read in pieces that span at most this much."""

_BLOCK_BYTES = 16 << 20
"""What a reader of its own is asked for at once."""

_AROUND_BYTES = 1 << 20
"""How much more than the items a stream may hold: what describes them."""

Goal = tuple[Box, Array]
"""A box of a tensor that is wanted, and the buffer for its values."""


@dataclass(frozen=True, slots=True)
class Want:
    """Boxes of a tensor, known by its path, that are wanted in buffers.

    Buffers have the dtype in which `layouts` stores that of the tensor.
    """

    path: str
    tensor: Tensor
    goals: tuple[Goal, ...]
    span_bytes: int = SPAN_BYTES


@dataclass(frozen=True, slots=True)
class _Job:
    """Something to read from one object, and about how many bytes it is."""

    name: str
    nbytes: int
    work: Callable[[Reader | None], None]


def fill_wants(
    store: Store,
    wants: Sequence[Want],
    *,
    gap: int = 0,
    parallel: int = 1,
    marks: Marks | None = None,
) -> None:
    """Read what is wanted; Damaged, naming tensor and object, where that fails.

    Files that `marks` knows must be those still, before and after they are read.
    """
    for want in wants:
        if isinstance(want.tensor.data, np.ndarray):
            _copy_held(want.tensor, want.goals)
    groups = _groups(job for want in wants for job in _jobs(store, want, gap))
    # Planned while it is carried out: a plan of all runs may be large itself.
    while wave := list(islice(groups, _WAVE * parallel)):
        run_all(
            lambda group: _carry_out(store, group, marks or {}), wave, parallel=parallel
        )
    for want in wants:
        if want.tensor.dtype == "bool":
            _refuse_other_bools(store, want)


def _groups(jobs: Iterator[_Job]) -> Iterator[list[_Job]]:
    """Yield jobs on one object that are worth a thread's while."""
    group: list[_Job] = []
    held = 0
    for job in jobs:
        if group and (job.name != group[0].name or held + job.nbytes > _TASK_BYTES):
            yield group
            group, held = [], 0
        group.append(job)
        held += job.nbytes
    if group:
        yield group


def _carry_out(store: Store, group: Sequence[_Job], marks: Marks) -> None:
    with ExitStack() as stack:
        name = group[0].name
        reader = stack.enter_context(store.open(name, trusted=True)) if name else None
        for job in group:
            try:
                job.work(reader)
            except MemoryError:
                raise LimitExceeded(
                    f"expected memory for {job.nbytes:,} bytes, found none - in "
                    f"{store.url}/{name}: select= less"
                ) from None
        # Afterwards: what was written while it was read is found as well.
        check_mark(marks, name, reader, url=store.url)


def _jobs(store: Store, want: Want, gap: int) -> Iterator[_Job]:
    data = want.tensor.data
    if isinstance(data, np.ndarray):
        return
    if isinstance(data, Lazy):
        yield from _lazy_jobs(want, data)
        return
    boxes = [box for box, _ in want.goals]
    coded: dict[Blob, list[Block]] = {}
    for number, parts in layouts.find_wanted([b.box for b in data], boxes).items():
        block = data[number]
        if block.find is not None:
            yield _found_job(store, want, block, parts, gap)
        elif block.blob.codec is not None:
            coded.setdefault(block.blob, []).append(block)
        else:
            yield from _block_jobs(store, want, block, parts, gap)
    for blob, blocks in coded.items():
        yield _coded_job(store, want, blob, blocks)


def _block_jobs(
    store: Store, want: Want, block: Block, parts: Sequence[Box], gap: int
) -> Iterator[_Job]:
    itemsize = item_bytes(want.tensor)
    if is_in_c_order(block, itemsize):
        yield from _run_jobs(store, want, block, parts, gap // itemsize)
    else:
        yield from _strided_jobs(store, want, block, parts)


def _found_job(
    store: Store, want: Want, block: Block, parts: Sequence[Box], gap: int
) -> _Job:
    """Return how to look for the values of a block, and to read them where they are."""
    find = cast("Callable[[Reader], Block | Array]", block.find)

    def work(reader: Reader | None) -> None:
        found = find(cast("Reader", reader))
        if isinstance(found, Block):
            for job in _block_jobs(store, want, found, parts, gap):
                job.work(reader)
            return
        values = found.view(layouts.stored_dtype(want.tensor.dtype))
        for goal, buffer in want.goals:
            scatter(block.box, values, goal, buffer)

    return _Job(block.blob.name, block.box.size * item_bytes(want.tensor), work)


def _run_jobs(
    store: Store, want: Want, block: Block, parts: Sequence[Box], gap: int
) -> Iterator[_Job]:
    """Yield how to read runs of a block in C order."""
    itemsize = item_bytes(want.tensor)
    shape = block.box.shape
    most = max(1, (store.request_bytes if store.is_remote else _TASK_BYTES) // itemsize)
    runs: list[Box] = []
    held = 0
    for span in layouts.plan_spans(shape, parts, gap=gap):
        for run in layouts.cut_span(span, most):
            if runs and held + run.size > most:
                yield _runs_job(store, want, block, runs)
                runs, held = [], 0
            runs.append(run)
            held += run.size
    if runs:
        yield _runs_job(store, want, block, runs)


def _runs_job(store: Store, want: Want, block: Block, runs: Sequence[Box]) -> _Job:
    """Return how to read some runs that follow one another."""
    itemsize = item_bytes(want.tensor)
    steps = c_strides(block.box.shape, itemsize)
    begin = block.blob.offset + block.offset
    origin = block.box.start

    def work(reader: Reader | None) -> None:
        reader = cast("Reader", reader)
        goals = _near(want.goals, block, runs)
        for run in runs:
            offset = begin + sum(map(mul, run.start, steps))
            box = Box(tuple(map(add, origin, run.start)), run.shape)
            part = _part_of(goals[0], box) if len(goals) == 1 else None
            if part is not None:
                _read(store, want, block.blob.name, reader, offset, part)
                continue
            raw = np.empty(run.size * itemsize, np.uint8)
            _read(store, want, block.blob.name, reader, offset, raw)
            dtype = layouts.stored_dtype(want.tensor.dtype)
            values = raw.view(dtype).reshape(run.shape)
            for goal, buffer in goals:
                scatter(box, values, goal, buffer)

    return _Job(block.blob.name, sum(run.size for run in runs) * itemsize, work)


def _near(goals: Sequence[Goal], block: Block, runs: Sequence[Box]) -> list[Goal]:
    """Return the goals that want some of the rows in which the runs lie."""
    if not block.box.shape:
        return list(goals)
    low = block.box.start[0] + runs[0].start[0]
    high = block.box.start[0] + runs[-1].stop[0]
    return [g for g in goals if g[0].start[0] < high and low < g[0].stop[0]]


def _part_of(goal: Goal, box: Box) -> Array | None:
    """Return the part of a goal's buffer that is the box, if it lies in one run."""
    wanted, buffer = goal
    index: list[Any] = []
    for a, n, first, size in zip(
        box.start, box.shape, wanted.start, wanted.shape, strict=True
    ):
        low = a - first
        if low < 0 or low + n > size:
            return None
        index.append(slice(low, low + n))
    part = buffer[(*index, ...)]
    return part if part.flags.c_contiguous else None


def _strided_jobs(
    store: Store, want: Want, block: Block, parts: Sequence[Box]
) -> Iterator[_Job]:
    """Yield how to read items that lie otherwise than in C order: all they span."""
    strides = cast("tuple[int, ...]", block.strides)
    itemsize = item_bytes(want.tensor)
    for whole in dict.fromkeys(parts):
        for part in cut_strided(whole, strides, itemsize, most=want.span_bytes):
            span = span_bytes(part.shape, strides, itemsize)

            def work(reader: Reader | None, part: Box = part, span: int = span) -> None:
                first = sum(a * s for a, s in zip(part.start, strides, strict=True))
                raw = np.empty(span, np.uint8)
                offset = block.blob.offset + block.offset + first
                reader = cast("Reader", reader)
                _read(store, want, block.blob.name, reader, offset, raw)
                _scatter_strided(want, block, part, raw, 0)

            yield _Job(block.blob.name, span, work)


def _scatter_strided(
    want: Want, block: Block, part: Box, raw: Array, first: int
) -> None:
    """Lay the items of a part of a block, the first of which is at `first` of `raw`."""
    dtype = layouts.stored_dtype(want.tensor.dtype)
    strides = block.strides or c_strides(block.box.shape, dtype.itemsize)
    needed = first + span_bytes(part.shape, strides, dtype.itemsize)
    if first < 0 or needed > len(raw):
        raise Damaged(
            f"expected {needed:,} bytes or more, found {len(raw):,} - at "
            f"`{want.path}`, object {block.blob.name}"
        )
    plain = np.ndarray(part.shape, dtype, raw.data, first, strides)
    start = tuple(a + b for a, b in zip(block.box.start, part.start, strict=True))
    for goal, buffer in want.goals:
        scatter(Box(start, part.shape), plain, goal, buffer)


def _coded_job(store: Store, want: Want, blob: Blob, blocks: Sequence[Block]) -> _Job:
    """Return how to read blocks of a compressed stream, which is decoded whole."""
    from ._zstd import decode_zstd

    itemsize = item_bytes(want.tensor)

    def work(reader: Reader | None) -> None:
        raw = np.empty(blob.length, np.uint8)
        _read(store, want, blob.name, cast("Reader", reader), blob.offset, raw)
        end = max(_end(block, itemsize) for block in blocks)
        plain = decode_zstd(raw.tobytes(), limit=end + _AROUND_BYTES, guess=end)
        data = np.frombuffer(plain, np.uint8)
        for block in blocks:
            part = layouts.whole(block.box.shape)
            _scatter_strided(want, block, part, data, block.offset)

    return _Job(blob.name, sum(b.box.size for b in blocks) * itemsize, work)


def _end(block: Block, itemsize: int) -> int:
    strides = block.strides or c_strides(block.box.shape, itemsize)
    return block.offset + span_bytes(block.box.shape, strides, itemsize)


def _lazy_jobs(want: Want, lazy: Lazy) -> Iterator[_Job]:
    """Yield how to ask a reader of its own: each chunk once, as far as that is so."""
    shape, itemsize = want.tensor.shape, item_bytes(want.tensor)
    grid = layouts.Grid(shape, lazy.chunk)
    for box in _asked(grid, [goal for goal, _ in want.goals], itemsize):

        def work(_: Reader | None, box: Box = box) -> None:
            stored = layouts.stored_dtype(want.tensor.dtype)
            values = lazy.read(box).view(stored)
            for goal, buffer in want.goals:
                scatter(box, values, goal, buffer)

        yield _Job("", box.size * itemsize, work)


def _asked(grid: layouts.Grid, goals: Sequence[Box], itemsize: int) -> Iterator[Box]:
    """Yield boxes that hold the goals, none of which touches a chunk of another."""
    goals = [goal for goal in dict.fromkeys(goals) if 0 not in goal.shape]
    if not goals:
        return
    if len(goals) == 1:
        ranges = grid.ranges(goals[0])
        clip = goals[0]
        yield from _pieces(grid, ranges, clip, itemsize)
        return
    chunks = layouts.Grid(grid.counts, (1,) * len(grid.counts))
    touched = [
        Box(tuple(r.start for r in rs), tuple(map(len, rs)))
        for rs in (grid.ranges(goal) for goal in goals)
    ]
    for span in layouts.plan_spans(chunks.shape, touched):
        ranges = tuple(range(a, b) for a, b in zip(span.start, span.stop, strict=True))
        yield from _pieces(grid, ranges, layouts.whole(grid.shape), itemsize)


def _pieces(
    grid: layouts.Grid, ranges: tuple[range, ...], clip: Box, itemsize: int
) -> Iterator[Box]:
    """Yield the items of a box of chunks, within `clip`, some MiB at once."""
    whole = Box(tuple(r.start for r in ranges), tuple(map(len, ranges)))
    chunk_bytes = max(1, math.prod(grid.cell) * itemsize)
    for part in layouts.cut_span(whole, max(1, _BLOCK_BYTES // chunk_bytes)):
        start = tuple(a * c for a, c in zip(part.start, grid.cell, strict=True))
        stop = tuple(
            min(b * c, n)
            for b, c, n in zip(part.stop, grid.cell, grid.shape, strict=True)
        )
        size = tuple(b - a for a, b in zip(start, stop, strict=True))
        common = layouts.intersect(Box(start, size), clip)
        if common is not None:
            yield common


def _copy_held(tensor: Tensor, goals: Sequence[Goal]) -> None:
    values = cast(Array, tensor.data).view(layouts.stored_dtype(tensor.dtype))
    for goal, buffer in goals:
        buffer[...] = values[goal.slices]


def _read(
    store: Store, want: Want, name: str, reader: Reader, offset: int, buffer: Array
) -> None:
    try:
        reader.read_into(offset, buffer)
    except CutShort:
        raise Damaged(
            f"expected {offset + buffer.nbytes:,} bytes or more, found fewer - at "
            f"`{want.path}`, in {store.url}/{name}: fetch the file again"
        ) from None
    except MemoryError:
        raise LimitExceeded(
            f"expected memory for {buffer.nbytes:,} bytes, found none - at "
            f"`{want.path}`, in {store.url}/{name}: select= less"
        ) from None


def _refuse_other_bools(store: Store, want: Want) -> None:
    for _, buffer in want.goals:
        most = int(buffer.view(np.uint8).max(initial=0))
        if most > 1:
            raise Damaged(
                f"expected booleans of 0 and 1, found {most} - at `{want.path}`, in "
                f"{store.url}: fetch the file again"
            )
