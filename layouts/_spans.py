"""Which runs of plain items to read, so that boxes of an array in C order are filled.

A pure function: the plan of a restore counts with it what the restore then reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ._box import Box, Shape, intersect

_WASTE = 16
"""A run may hold one item in so many that nobody wants: it spares requests."""


def plan_spans(shape: Shape, boxes: Sequence[Box], *, gap: int = 0) -> Iterator[Box]:
    """Yield boxes that are each one run in C order, and together hold all `boxes`.

    They come in C order and do not overlap. What lies between two wanted items is read
    as well where it is less than one in sixteen, or at most `gap` items.

    >>> [(b.start, b.shape) for b in plan_spans((4, 8), [Box((1, 0), (2, 8))])]
    [((1, 0), (2, 8))]
    >>> [b.start for b in plan_spans((4, 8), [Box((1, 0), (2, 2))])]
    [(1, 0), (2, 0)]
    """
    wanted = [box for box in dict.fromkeys(boxes) if 0 not in box.shape]
    return _plan(shape, wanted, gap)


def count_span_items(shape: Shape, boxes: Sequence[Box], *, gap: int = 0) -> int:
    """Return how many items `plan_spans` has in all."""
    wanted = [box for box in dict.fromkeys(boxes) if 0 not in box.shape]
    return _count(shape, wanted, gap)


def cut_span(span: Box, most: int) -> Iterator[Box]:
    """Yield boxes that are each one run in C order of about `most` items at most.

    >>> [b.shape for b in cut_span(Box((0, 0), (5, 4)), 8)]
    [(2, 4), (2, 4), (1, 4)]
    """
    if span.size <= most:
        yield span
        return
    d = next(n for n, size in enumerate(span.shape) if size > 1)
    inner = math.prod(span.shape[d + 1 :])
    step = max(1, most // inner)
    for at in range(0, span.shape[d], step):
        rows = min(step, span.shape[d] - at)
        start = (*span.start[:d], span.start[d] + at, *span.start[d + 1 :])
        part = Box(start, (*span.shape[:d], rows, *span.shape[d + 1 :]))
        if step == 1:
            yield from cut_span(part, most)
        else:
            yield part


def find_wanted(blocks: Sequence[Box], targets: Sequence[Box]) -> dict[int, list[Box]]:
    """Return which parts of which blocks some targets want, relative to the block.

    >>> find_wanted([Box((0,), (4,)), Box((4,), (4,))], [Box((3,), (2,))])
    {0: [Box(start=(3,), shape=(1,))], 1: [Box(start=(0,), shape=(1,))]}
    """
    found: dict[int, list[Box]] = {}
    if not blocks:
        return found
    starts, stops = _edges(tuple(blocks))
    for target in targets:
        meets = np.ones(len(blocks), bool)
        for d, (low, high) in enumerate(zip(target.start, target.stop, strict=True)):
            meets &= (starts[:, d] < high) & (stops[:, d] > low)
        for block in np.flatnonzero(meets).tolist():
            common = intersect(blocks[block], target)
            if common is not None:
                origin = blocks[block].start
                start = tuple(a - o for a, o in zip(common.start, origin, strict=True))
                found.setdefault(block, []).append(Box(start, common.shape))
    return dict(sorted(found.items()))


@lru_cache(maxsize=64)
def _edges(blocks: tuple[Box, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    size = (len(blocks), len(blocks[0].shape))
    starts = np.array([b.start for b in blocks], np.int64).reshape(size)
    return starts, starts + np.array([b.shape for b in blocks], np.int64).reshape(size)


def _plan(shape: Shape, boxes: list[Box], gap: int) -> Iterator[Box]:
    if not shape:
        if boxes:
            yield Box((), ())
        return
    zeros = (0,) * (len(shape) - 1)
    for low, high, active in _strips(shape, boxes, gap):
        if _is_dense(shape, active, gap):
            yield Box((low, *zeros), (high - low, *shape[1:]))
            continue
        # All rows of the strip are read alike: there may be many.
        row = list(_plan(shape[1:], _rows(active), gap))
        for at in range(low, high):
            for start, size in row:
                yield Box((at, *start), (1, *size))


def _count(shape: Shape, boxes: list[Box], gap: int) -> int:
    if not shape:
        return min(len(boxes), 1)
    inner = math.prod(shape[1:])
    found = 0
    for low, high, active in _strips(shape, boxes, gap):
        if _is_dense(shape, active, gap):
            found += (high - low) * inner
        else:
            found += (high - low) * _count(shape[1:], _rows(active), gap)
    return found


def _rows(boxes: list[Box]) -> list[Box]:
    """Return what boxes want of one row that they all touch."""
    return list(dict.fromkeys(Box(b.start[1:], b.shape[1:]) for b in boxes))


def _strips(
    shape: Shape, boxes: list[Box], gap: int
) -> Iterator[tuple[int, int, list[Box]]]:
    """Yield runs of rows, and the boxes that want some of each row of the run.

    Runs whose rows are wanted whole are joined where they meet, or nearly.
    """
    inner = math.prod(shape[1:])
    edges = sorted({e for b in boxes for e in (b.start[0], b.start[0] + b.shape[0])})
    held: tuple[int, int, list[Box]] | None = None
    for low, high in pairwise(edges):
        active = [b for b in boxes if b.start[0] <= low < b.start[0] + b.shape[0]]
        if not active:
            continue
        if held is not None:
            joins = (low - held[1]) * inner <= gap
            if joins and all(_is_dense(shape, a, gap) for a in (held[2], active)):
                held = (held[0], high, active)
                continue
            yield held
        held = (low, high, active)
    if held is not None:
        yield held


def _is_dense(shape: Shape, active: list[Box], gap: int) -> bool:
    """Tell whether rows are best read whole, by what is wanted of each."""
    inner = math.prod(shape[1:])
    rows = _rows(active)
    wanted = min(inner, sum(math.prod(b.shape) for b in rows))
    if len(rows) > 1 and wanted == inner:
        wanted = _union(shape[1:], rows)
    unwanted = inner - wanted
    return unwanted * _WASTE <= inner or unwanted <= gap


def _union(shape: Shape, boxes: list[Box]) -> int:
    """Return how many items the boxes have together; few boxes overlap."""
    found = 0
    for number, box in enumerate(boxes):
        found += math.prod(box.shape)
        for other in boxes[:number]:
            common = intersect(box, other)
            if common is not None:
                # At least that much is counted twice.
                found -= common.size
    return max(0, min(found, math.prod(shape)))
