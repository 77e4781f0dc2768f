"""Runs of an array in C order that hold some boxes, and little else."""

from math import prod

import numpy as np
from hypothesis import given, strategies as st

from layouts import Box, cut_span, find_wanted, plan_spans
from layouts._spans import count_span_items

Case = tuple[tuple[int, ...], list[Box]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape = tuple(draw(st.lists(st.integers(1, 20), max_size=3)))
    boxes: list[Box] = []
    for _ in range(draw(st.integers(0, 4))):
        starts = tuple(draw(st.integers(0, n - 1)) for n in shape)
        sizes = (
            draw(st.integers(0, n - a)) for n, a in zip(shape, starts, strict=True)
        )
        boxes.append(Box(starts, tuple(sizes)))
    return shape, boxes


def mark(shape: tuple[int, ...], boxes: list[Box]) -> np.ndarray:
    """Return how many of the boxes hold each item."""
    marks = np.zeros(shape, int)
    for box in boxes:
        marks[box.slices] += 1
    return marks


@given(cases(), st.sampled_from([0, 0, 3, 50]), st.integers(1, 30))
def test_spans_are_runs_that_hold_all_boxes(case: Case, gap: int, most: int) -> None:
    shape, boxes = case
    spans = list(plan_spans(shape, boxes, gap=gap))
    held, wanted = mark(shape, spans), mark(shape, boxes)
    assert held.max(initial=0) <= 1
    assert (held[wanted > 0] == 1).all()
    assert count_span_items(shape, boxes, gap=gap) == held.sum()
    order = np.arange(prod(shape)).reshape(shape)
    for runs in (spans, [run for span in spans for run in cut_span(span, most)]):
        # Each is one run, and they come in order.
        found = [order[run.slices].reshape(-1) for run in runs]
        assert all((np.diff(items) == 1).all() for items in found)
        assert (np.diff(np.concatenate([[-1], *found])) > 0).all()
        assert mark(shape, runs).tolist() == held.tolist()


@given(cases())
def test_without_a_gap_one_item_in_sixteen_is_unwanted_at_most(case: Case) -> None:
    shape, boxes = case
    disjoint: list[Box] = []
    for box in boxes:
        if mark(shape, [*disjoint, box]).max(initial=0) <= 1:
            disjoint.append(box)
    wanted = mark(shape, disjoint).sum()
    assert 15 * count_span_items(shape, disjoint) <= 16 * wanted


@given(cases(), cases())
def test_what_targets_want_of_blocks_is_their_common_part(a: Case, b: Case) -> None:
    shape, blocks = a
    targets = [t for t in b[1] if len(t.shape) == len(shape)]
    found = find_wanted(blocks, targets)
    for number, block in enumerate(blocks):
        wanted = np.zeros([n + 40 for n in shape], int)
        for target in targets:
            wanted[target.slices] += 1
        parts = mark(block.shape, found.get(number, []))
        assert parts.tolist() == wanted[block.slices].tolist()
