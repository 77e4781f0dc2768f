"""Read plans, carried out on a naive disk: every layout onto every other."""

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, strategies as st

import layouts
from layouts import Box, Chunked, Leaf, Packed, Pieces, ReadPlan, Writers
from tests.layouts._cases import (
    Layout,
    all_layouts,
    naive_device_slices,
    naive_piece,
    pieces_of,
    placed,
    shapes,
    stored,
)
from tests.layouts._reader import fill_boxes, naive_read, store_array


def check_read(leaf: Leaf, boxes: list[Box]) -> None:
    """Plan, carry out, and compare with the array and the naive sums."""
    array = np.arange(np.prod(leaf.shape, dtype=int)).reshape(leaf.shape)
    plan = layouts.plan_leaf_read(7, leaf, boxes)
    filled, reads = fill_boxes(plan, store_array(leaf, array))
    for box, values in zip(boxes, filled, strict=True):
        np.testing.assert_array_equal(values, array[box.slices])
    naive = naive_read(leaf, boxes)
    assert set(reads.values()) <= {1}
    assert len(reads) == naive.chunks
    assert plan.read == naive.nbytes
    assert plan.wanted == sum(array[box.slices].size for box in boxes) * leaf.itemsize
    assert {cell.cell for cell in plan.cells} == naive.cells
    assert plan.targets == tuple(boxes)
    for cell in plan.cells:
        assert cell.leaf == plan.leaf == 7
        assert cell.writer == leaf.writer(cell.cell)
        assert list(cell.chunks) == sorted(set(cell.chunks))


@given(st.data())
def test_any_layout_is_read_onto_any_other(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    saved = data.draw(placed(shape))
    leaf = data.draw(stored(saved))
    wanted = data.draw(placed(shape))
    mesh, spec = wanted.mesh, wanted.spec
    boxes = list(dict.fromkeys(layouts.piece_boxes(shape, spec, mesh)))
    check_read(leaf, boxes)
    for box in boxes[:3]:
        check_read(leaf, [box])


@given(st.data())
def test_any_boxes_are_read_overlapping_and_empty_ones_too(data: st.DataObject) -> None:
    saved = data.draw(placed())
    leaf = data.draw(stored(saved))
    boxes: list[Box] = []
    for _ in range(data.draw(st.integers(0, 4))):
        start = tuple(data.draw(st.integers(0, n)) for n in saved.shape)
        shape = tuple(
            data.draw(st.integers(0, n - a))
            for a, n in zip(start, saved.shape, strict=True)
        )
        boxes.append(Box(start, shape))
    check_read(leaf, boxes)


@given(st.data())
def test_a_plan_names_the_writer_of_each_cell(data: st.DataObject) -> None:
    saved = data.draw(placed())
    leaf = data.draw(stored(saved))
    size = saved.mesh.size
    processes = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    (leaf,) = layouts.assign_writers([leaf], [pieces_of(saved, processes)])
    check_read(leaf, [layouts.whole(leaf.shape)])
    store = leaf.store
    assert store is not None
    runs = store.writers.runs if store.writers else ()
    spelled = [writer for writer, count in runs for _ in range(count)]
    spelled = spelled or [0] * leaf.cells.length
    assert list(leaf.writers(range(len(spelled)))) == spelled
    assert [leaf.writer(n) for n in range(len(spelled))[::7]] == spelled[::7]
    plan = layouts.plan_leaf_read(7, leaf, [layouts.whole(leaf.shape)])
    assert [cell.writer for cell in plan.cells] == spelled
    assert ReadPlan((plan,)).writers == tuple(sorted(set(spelled)))


def test_boxes_in_one_object_read_only_the_chunks_that_any_of_them_touches() -> None:
    store = Chunked("w", (16, 16), (4, 4))
    leaf = Leaf("w", "jax", "float32", (16, 16), store=store)
    boxes = [Box((0, 0), (5, 5)), Box((15, 15), (1, 1)), Box((15, 0), (1, 0))]
    (cell,) = layouts.plan_leaf_read(7, leaf, boxes).cells
    assert cell.chunks == (0, 1, 4, 5, 15)
    assert cell.targets == (0, 1)
    check_read(leaf, boxes)


SHAPES = [(24, 16), (8,), (6, 4, 2), (), (0, 8), (7, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("packed", [True, False])
def test_every_spec_of_a_shape_is_read_onto_every_other(
    shape: tuple[int, ...], packed: bool
) -> None:
    sources = all_layouts(shape, {"x": 2, "y": 2}) + all_layouts(shape, {"x": 3})
    targets = all_layouts(shape, {"x": 4, "y": 2}) + all_layouts(shape, {"y": 5})
    for saved in sources:
        leaf = small_leaf(saved, packed=packed)
        for wanted in targets:
            boxes = [
                Box(tuple(s.start for s in i), tuple(s.stop - s.start for s in i))
                for i in naive_device_slices(wanted)
            ]
            check_read(leaf, list(dict.fromkeys(boxes)))


def small_leaf(saved: Layout, *, packed: bool) -> Leaf:
    shape, piece = saved.shape, naive_piece(saved)
    if packed or not shape or 0 in shape:
        return Leaf("w", "jax", "float32", shape, store=Packed(piece))
    chunk = layouts.cut_chunk(piece, 4, shape=shape, limit=32)
    cell = layouts.cut_object(piece, chunk, 4, shape=shape, limit=128)
    return Leaf("w", "jax", "float32", shape, store=Chunked("w", cell, chunk))


@given(st.sets(st.integers(0, 40)), st.integers(1, 6))
def test_runs_hold_each_chunk_once_and_are_as_long_as_allowed(
    chunks: set[int], most: int
) -> None:
    ordered = sorted(chunks)
    runs = list(layouts.merge_runs(ordered, most=most))
    assert [chunk for run in runs for chunk in run] == ordered
    # Neighbours differ from their rank by the same amount.
    adjacent = [
        len(list(group))
        for _, group in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])
    ]
    assert len(runs) == sum(-(-n // most) for n in adjacent)
    assert all(len(run) <= most for run in runs)


def test_a_plan_sums_its_leaves() -> None:
    a = Leaf("a", "jax", "float32", (4,), store=Packed((4,)))
    b = Leaf("b", "jax", "uint8", (4,), store=Packed((2,), Writers(((3, 1), (1, 1)))))
    plan = ReadPlan(
        (
            layouts.plan_leaf_read(0, a, [Box((1,), (2,))]),
            layouts.plan_leaf_read(1, b, [Box((0,), (1,)), Box((3,), (1,))]),
        )
    )
    assert (plan.wanted, plan.read, plan.writers) == (8 + 2, 16 + 4, (0, 1, 3))


def test_a_replicated_leaf_is_wanted_once_by_all_devices_of_a_process() -> None:
    leaf = layouts.lay_out(
        Leaf("w", "jax", "float32", (1024, 1024)), "w", Pieces((1024, 1024))
    )
    plan = layouts.plan_leaf_read(0, leaf, [layouts.whole((1024, 1024))])
    # Eight chunks of half a mebibyte, each with four bytes of checksum.
    assert (plan.wanted, plan.read) == (1 << 22, (1 << 22) + 8 * 4)
