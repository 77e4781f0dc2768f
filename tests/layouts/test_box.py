"""Boxes and grids against numpy indexing."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

import layouts
from layouts import Box, Grid
from tests.layouts._cases import (
    LENGTHS,
    Shape,
    label_cells,
    naive_cells,
    shapes,
)


@st.composite
def boxes(draw: st.DrawFn, shape: Shape) -> Box:
    start = tuple(draw(st.integers(0, n)) for n in shape)
    sizes = [draw(st.integers(0, n - a)) for a, n in zip(start, shape, strict=True)]
    return Box(start, tuple(sizes))


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    shape = draw(shapes())
    return Grid(shape, tuple(draw(st.integers(1, max(n, 1))) for n in shape))


@given(st.data())
def test_intersection_holds_exactly_the_elements_common_to_both(
    data: st.DataObject,
) -> None:
    shape = data.draw(shapes())
    left, right = data.draw(boxes(shape)), data.draw(boxes(shape))
    count = np.zeros(shape, np.int8)
    count[left.slices] += 1
    count[right.slices] += 1
    common = layouts.intersect(left, right)
    found = np.zeros(shape, bool)
    if common is not None:
        assert common.size > 0
        found[common.slices] = True
    np.testing.assert_array_equal(found, count == 2)


@given(st.data())
def test_a_box_within_an_origin_is_the_same_part_of_the_smaller_array(
    data: st.DataObject,
) -> None:
    shape = data.draw(shapes())
    outer = data.draw(boxes(shape))
    inner = data.draw(boxes(outer.shape))
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    moved = Box(
        tuple(a + b for a, b in zip(outer.start, inner.start, strict=True)), inner.shape
    )
    np.testing.assert_array_equal(
        array[moved.slices], array[outer.slices][moved.within(outer.start)]
    )
    assert moved.size == array[moved.slices].size
    assert moved.stop == tuple(s.stop for s in moved.slices)


@given(grids())
def test_cells_are_numbered_and_placed_as_numpy_orders_them(grid: Grid) -> None:
    expected = list(naive_cells(grid.shape, grid.cell))
    assert grid.length == len(expected)
    for number, index in enumerate(expected):
        coordinates = grid.coordinates(number)
        assert coordinates == tuple(np.unravel_index(number, grid.counts))
        assert grid.number(coordinates) == number
        assert grid.box(coordinates).slices == index


@given(st.data())
def test_numbers_are_the_cells_that_a_box_touches(data: st.DataObject) -> None:
    grid = data.draw(grids())
    box = data.draw(boxes(grid.shape))
    labels = label_cells(grid.shape, grid.cell)
    expected = sorted(set(labels[box.slices].ravel().tolist()))
    assert list(grid.numbers(box)) == expected
    assert np.prod([len(r) for r in grid.ranges(box)], dtype=int) == len(expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_zero_length_cell_is_fine_where_the_array_is_empty(length: int) -> None:
    grid = Grid((length, 0), (max(length, 1), 0))
    assert grid.length == 0
    assert list(grid.numbers(layouts.whole((length, 0)))) == []


def test_the_box_of_a_numpy_index_is_clipped_like_numpy_clips() -> None:
    index = (slice(None), slice(2, 99), slice(5, 3), slice(-2, None))
    shape = (3, 4, 7, 6)
    box = layouts.box_of_index(index, shape)
    assert box.shape == np.empty(shape)[index].shape
    assert box.start == (0, 2, 5, 4)


@given(grids())
def test_the_slices_of_a_grid_are_those_of_its_cells_in_c_order(grid: Grid) -> None:
    found = np.full(grid.shape, -1)
    for number, at in enumerate(grid.slices()):
        assert (found[at] == -1).all()
        found[at] = number
    np.testing.assert_array_equal(found, label_cells(grid.shape, grid.cell))
