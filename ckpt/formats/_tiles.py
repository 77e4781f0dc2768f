"""Whether boxes tile a shape, proven by their corners alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from layouts import Box

from .._errors import LimitExceeded

_CORNERS = 300_000
"""How many corners are kept at once, beside a few for each box: bounds memory."""
_LONGEST = 2**62

Ints = np.ndarray[Any, np.dtype[np.int64]]


def tiles(shape: tuple[int, ...], boxes: Sequence[Box]) -> bool:
    """Tell whether boxes lie within a shape and cover each item of it exactly once.

    Boxes without items may lie anywhere within. Honest tilings of any kind take
    O(n log n); LimitExceeded for boxes whose corners are too many to compare.

    >>> tiles((4, 2), [Box((0, 0), (2, 2)), Box((2, 0), (2, 2))])
    True
    """
    if any(size >= _LONGEST for size in shape):
        raise LimitExceeded(f"expected dimensions below 2**62, found {max(shape)}")
    for box in boxes:
        if len(box.start) != len(shape) or len(box.shape) != len(shape):
            return False
        for start, size, whole in zip(box.start, box.shape, shape, strict=True):
            if start < 0 or size < 0 or start + size > whole:
                return False
    full = [box for box in boxes if 0 not in box.shape]
    if sum(box.size for box in full) != math.prod(shape):
        return False
    varied = {
        d for d in range(len(shape)) if any(box.shape[d] != shape[d] for box in full)
    }
    if len(varied) <= 1:
        # Slices along one dimension, as most are: they follow one another or overlap.
        d = varied.pop() if varied else 0
        ordered = sorted(full, key=lambda box: box.start[d : d + 1])
        return all(a.stop[d] <= b.start[d] for a, b in pairwise(ordered))
    return _cancels([*full, Box((0,) * len(shape), shape)])


def _cancels(boxes: list[Box]) -> bool:
    """Tell whether all boxes but the last add up to the last, item by item.

    The number of boxes over each item is a function of finite support, and so it is
    zero (with the last box counted as -1) iff its differences are, taken along every
    dimension in turn. Those are the signed corners of the boxes, of which neighbours
    cancel one another. No box is ever compared with another.
    """
    starts = np.array([box.start for box in boxes], np.int64)
    stops = starts + np.array([box.shape for box in boxes], np.int64)
    spans = [_rank_pairs(starts[:, d], stops[:, d]) for d in range(starts.shape[1])]
    # Every box has the same extent in some dimensions: they change nothing. Those with
    # the most cuts go first, where the most corners cancel.
    cut = [d for d, ranks in enumerate(spans) if ranks.max() > 0]
    cut.sort(key=lambda d: -int(spans[d].max()))
    # rests[k] ranks the boxes by their extents in cut[k:].
    rests: list[Ints] = [np.zeros(len(boxes), np.int64)]
    for d in reversed(cut):
        rests.insert(0, _rank_pairs(spans[d], rests[0]))

    weight = np.ones(len(boxes), np.int64)
    weight[-1] = -1
    before = np.zeros(len(boxes), np.int64)
    sample = np.arange(len(boxes))
    before, sample, weight = _merge(before, sample, weight, rest=rests[0])
    for d, rest in zip(cut, rests[1:], strict=True):
        if 2 * len(weight) > _CORNERS + 8 * len(boxes):
            raise LimitExceeded(
                f"expected boxes that lie side by side, found {len(boxes) - 1:,} whose "
                f"more than {_CORNERS:,} corners do not meet"
            )
        edges = np.concatenate([starts[sample, d], stops[sample, d]])
        before = _rank_pairs(np.concatenate([before, before]), edges)
        sample = np.concatenate([sample, sample])
        weight = np.concatenate([weight, -weight])
        before, sample, weight = _merge(before, sample, weight, rest=rest)
    return not len(weight)


def _rank_pairs(left: Ints, right: Ints) -> Ints:
    """Number pairs so that equal ones, and only they, have one number."""
    _, first = np.unique(left, return_inverse=True)
    values, second = np.unique(right, return_inverse=True)
    # Both are below 2**31: there are not that many boxes.
    _, ranks = np.unique(first * len(values) + second, return_inverse=True)
    return ranks.astype(np.int64)


def _merge(
    before: Ints, sample: Ints, weight: Ints, *, rest: Ints
) -> tuple[Ints, Ints, Ints]:
    """Add up corners that agree so far and have the same extents left; drop zeros.

    `sample` is a box that has the extents left, `rest` their numbers.
    """
    key = _rank_pairs(before, rest[sample])
    _, first = np.unique(key, return_index=True)
    # Weights are small integers, which float64 adds exactly.
    total = np.bincount(key, weights=weight).astype(np.int64)
    kept = first[total != 0]
    return before[kept], sample[kept], total[total != 0]
