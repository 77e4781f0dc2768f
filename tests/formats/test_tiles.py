"""Boxes that tile a shape, against a count of how often each item is covered."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ckpt import LimitExceeded
from ckpt.formats._tiles import tiles
from layouts import Box


def count(shape: tuple[int, ...], boxes: list[Box]) -> bool:
    covered = np.zeros(shape, int)
    for box in boxes:
        if any(a + n > m for a, n, m in zip(box.start, box.shape, shape, strict=True)):
            return False
        covered[box.slices] += 1
    return bool((covered == 1).all())


@st.composite
def halved(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Cut a shape in two, somewhere, again and again."""
    boxes = [Box((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 12))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        if not shape:
            return [box]
        d = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, box.shape[d]))
        left, right = list(box.shape), list(box.shape)
        left[d], right[d] = at, box.shape[d] - at
        start = list(box.start)
        start[d] += at
        boxes += [Box(box.start, tuple(left)), Box(tuple(start), tuple(right))]
    return draw(st.permutations(boxes))


shapes = st.lists(st.integers(0, 6), max_size=4).map(tuple)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_boxes_cut_from_a_shape_tile_it(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    assert tiles(shape, data.draw(halved(shape)))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_moved_and_swapped_boxes_tile_as_a_count_says(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    boxes = data.draw(halved(shape))
    extents = [
        st.integers(0, n).flatmap(
            lambda a, n=n: st.tuples(st.just(a), st.integers(0, n - a))
        )
        for n in shape
    ]
    for _ in range(data.draw(st.integers(1, 2))):
        spans = data.draw(st.tuples(*extents))
        boxes[data.draw(st.integers(0, len(boxes) - 1))] = Box(
            tuple(a for a, _ in spans), tuple(n for _, n in spans)
        )
    assert tiles(shape, boxes) == count(shape, boxes)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_an_overlap_that_equals_a_hole_is_found(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(2, 5), min_size=1, max_size=3).map(tuple))
    cells = [
        Box(at, (1,) * len(shape))
        for at in itertools.product(*(range(n) for n in shape))
    ]
    one, other = data.draw(
        st.lists(st.sampled_from(range(len(cells))), min_size=2, max_size=2)
    )
    cells[one] = cells[other]
    assert tiles(shape, cells) == (one == other)


def test_boxes_outside_a_shape_or_of_another_rank_do_not_tile() -> None:
    assert not tiles((4,), [Box((-1,), (4,))])
    assert not tiles((4,), [Box((0,), (-4,)), Box((0,), (8,))])
    assert not tiles((4,), [Box((2,), (4,))])
    assert not tiles((4,), [Box((0, 0), (4, 1))])
    assert not tiles((), [])
    assert not tiles((), [Box((), ())] * 2)
    assert tiles((), [Box((), ())])
    assert tiles((0, 3), [])


def test_many_boxes_of_a_grid_of_many_dimensions_are_no_work() -> None:
    shape = (500, 4, 3, 200, *(7,) * 40)
    boxes = [
        Box((a, 2 * b, 0, c, *(0,) * 40), (1, 2, 3, 20, *(7,) * 40))
        for a, b, c in itertools.product(range(500), range(2), range(0, 200, 20))
    ]
    assert tiles(shape, boxes)
    boxes[77] = boxes[78]
    assert not tiles(shape, boxes)


def test_sizes_beyond_an_int64_are_refused() -> None:
    with pytest.raises(LimitExceeded, match="below 2\\*\\*62"):
        tiles((2**63,), [Box((0,), (2**63,))])


def test_long_boxes_over_many_cuts_are_counted_in_a_moment() -> None:
    n = 4000
    rows = [Box((0, r), (n - r, 1)) for r in range(n)]
    rest = [Box((n - r, r), (r, 1)) for r in range(n)]
    assert tiles((n, n), rows + rest)


def test_boxes_whose_corners_never_meet_are_refused() -> None:
    choose = np.random.default_rng(0)
    boxes: list[Box] = []
    for _ in range(64):
        halves = choose.permutation([1] * 6 + [2] * 18).tolist()
        start = [int(choose.integers(0, 3 - n)) for n in halves]
        boxes.append(Box(tuple(start), tuple(halves)))
    with pytest.raises(LimitExceeded, match="side by side"):
        tiles((2,) * 24, boxes)
