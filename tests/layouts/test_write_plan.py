"""Who writes what: against index arrays painted with what each device holds."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

import layouts
from layouts import Chunked, Leaf, Packed, Pieces, WriteLimits
from tests.layouts._cases import (
    Layout,
    all_layouts,
    cell_of,
    hold_elements,
    naive_cells,
    naive_piece,
    pieces_of,
    placed,
    stored,
)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[Layout], list[Leaf], list[list[int]]]:
    """Draw leaves, how they are stored, and the process of each device of each."""
    placements = draw(st.lists(placed(), min_size=1, max_size=4))
    leaves = [draw(stored(x, f"leaf{i}")) for i, x in enumerate(placements)]
    count = draw(st.integers(1, 4))
    processes = [
        draw(st.lists(st.integers(0, count - 1), min_size=n, max_size=n))
        for n in (x.mesh.size for x in placements)
    ]
    return placements, leaves, processes


def assign(
    placements: Sequence[Layout], leaves: Sequence[Leaf], processes: list[list[int]]
) -> tuple[Leaf, ...]:
    pieces = [pieces_of(x, p) for x, p in zip(placements, processes, strict=True)]
    return layouts.assign_writers(leaves, pieces)


@given(jobs())
def test_every_element_is_written_once_by_a_process_that_holds_it(
    job: tuple[list[Layout], list[Leaf], list[list[int]]],
) -> None:
    placements, leaves, processes = job
    assigned = assign(*job)
    held = [hold_elements(x, p) for x, p in zip(placements, processes, strict=True)]
    count = [np.zeros(x.shape, np.int32) for x in placements]
    indices = [list(naive_cells(leaf.shape, cell_of(leaf))) for leaf in leaves]
    everyone = sorted({p for each in processes for p in each})
    for process in everyone:
        plan = layouts.plan_write(assigned, process)
        cells = [(w.leaf, w.object, w.nbytes) for w in plan.objects]
        cells += [(r.leaf, r.piece, r.length) for r in plan.rows]
        for number, cell, nbytes in cells:
            leaf, index = leaves[number], indices[number][cell]
            assert held[number][process][index].all()
            assert nbytes == count[number][index].size * leaf.itemsize
            count[number][index] += 1
            assert assigned[number].writer(cell) == process
    for each in count:
        assert (each == 1).all()


@given(jobs())
def test_a_plan_counts_the_bytes_of_what_it_writes(
    job: tuple[list[Layout], list[Leaf], list[list[int]]],
) -> None:
    assigned = assign(*job)
    everyone = {p for each in job[2] for p in each}
    plans = [layouts.plan_write(assigned, process) for process in sorted(everyone)]
    assert sum(plan.nbytes for plan in plans) == sum(
        math.prod(leaf.shape) * leaf.itemsize for leaf in job[1]
    )
    assert all(f"{plan.nbytes:,} bytes" in str(plan) for plan in plans)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
    st.integers(1, 7),
    st.integers(1, 3),
)
def test_replicated_trees_are_shared_within_one_cell_of_fair(
    lengths: list[int], processes: int, rows: int
) -> None:
    everyone = tuple(range(processes))
    leaves = [
        Leaf(str(i), "jax", "float32", (n, 3), store=Chunked(str(i), (rows, 3), (1, 3)))
        for i, n in enumerate(lengths)
    ]
    pieces = [Pieces(leaf.shape, (everyone,)) for leaf in leaves]
    assigned = layouts.assign_writers(leaves, pieces)
    loads = [layouts.plan_write(assigned, p).nbytes for p in everyone]
    assert max(loads) - min(loads) <= rows * 3 * 4


def test_what_only_process_0_holds_counts_as_its_load() -> None:
    leaves = [
        Leaf("host", "numpy", "uint8", (100,), store=Packed((100,))),
        Leaf("a", "jax", "uint8", (60,), store=Packed((60,))),
        Leaf("b", "jax", "uint8", (50,), store=Packed((50,))),
        Leaf("c", "jax", "uint8", (30,), store=Packed((30,))),
    ]
    both = [Pieces(leaf.shape, ((0, 1),)) for leaf in leaves[1:]]
    assigned = layouts.assign_writers(leaves, [Pieces((100,)), *both])
    assert [leaf.writer(0) for leaf in assigned] == [0, 1, 1, 0]


def test_ties_go_to_the_lowest_process_and_runs_are_merged() -> None:
    leaf = Leaf("w", "jax", "uint8", (8,), store=Packed((1,)))
    holders = ((1, 2),) * 4 + ((2,),) * 2 + ((1, 2),) * 2
    (assigned,) = layouts.assign_writers([leaf], [Pieces((1,), holders)])
    # What 2 alone holds counts first; the first two of the others make up for it.
    writers = layouts.Writers(((1, 3), (2, 3), (1, 1), (2, 1)))
    assert sorted(Counter(map(assigned.writer, range(8))).items()) == [(1, 4), (2, 4)]
    assert assigned.store == Packed((1,), writers)


def test_leaves_without_a_store_are_left_as_they_are() -> None:
    leaf = Leaf("n", "int", value="0x1")
    assert layouts.assign_writers([leaf], [None]) == (leaf,)
    assert layouts.plan_write([leaf], 0).nbytes == 0


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 60))
def test_packs_hold_their_rows_without_gaps_and_within_the_limit(
    lengths: list[int], limit: int
) -> None:
    leaves = [
        Leaf(str(i), "jax", "uint8", (n,), store=Packed((n,)))
        for i, n in enumerate(lengths)
    ]
    rows = list(layouts.pack_rows(leaves, 0, limit=limit))
    assert [(r.leaf, r.length) for r in rows] == [
        (i, n) for i, n in enumerate(lengths) if n
    ]
    ends: dict[int, int] = {}
    for row in rows:
        assert row.offset == ends.get(row.pack, 0)
        ends[row.pack] = row.offset + row.length
        assert ends[row.pack] <= limit or row.offset == 0
    assert list(ends) == list(range(len(ends)))
    sizes = list(ends.values())
    firsts = [r.length for r in rows if r.pack and not r.offset]
    assert all(size + n > limit for size, n in zip(sizes, firsts, strict=False))


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(24, 16), (8,), (16, 3, 8), (), (0, 8), (7, 5)])
def test_all_specs_of_a_shape_are_written_once_by_any_number_of_processes(
    shape: tuple[int, ...], count: int
) -> None:
    for layout in all_layouts(shape, {"x": 4, "y": 2}):
        processes = [device * count // 8 for device in range(8)]
        leaf = Leaf("w", "jax", "float32", shape, store=Packed(naive_piece(layout)))
        (assigned,) = assign([layout], [leaf], [processes])
        held = hold_elements(layout, processes)
        count_written = np.zeros(shape, np.int32)
        pieces = list(naive_cells(shape, naive_piece(layout)))
        for process in range(count):
            for row in layouts.plan_write([assigned], process).rows:
                assert held[process][pieces[row.piece]].all()
                count_written[pieces[row.piece]] += 1
        assert (count_written == 1).all()


@pytest.mark.parametrize(
    ("shape", "piece", "store"),
    [
        ((512, 511), (512, 511), Packed((512, 511))),
        ((512, 512), (512, 512), Chunked("w", (512, 512), (128, 128))),
        ((4096, 4096), (128, 1024), Packed((128, 1024))),
        ((4096, 4096), (256, 1024), Chunked("w", (256, 1024), (256, 512))),
        ((0, 1 << 20), (0, 1 << 20), Packed((0, 1 << 20))),
        ((0, 1 << 20), (1, 1 << 20), Packed((1, 1 << 20))),
        ((), (), Packed(())),
    ],
)
def test_pieces_under_a_mebibyte_are_packed_and_the_others_chunked(
    shape: tuple[int, ...], piece: tuple[int, ...], store: Packed | Chunked
) -> None:
    leaf = Leaf("w", "jax", "float32", shape)
    # float32: 512 x 512 is one mebibyte; 128 x 1024 half of one, 256 x 1024 a whole.
    assert layouts.lay_out(leaf, "w", Pieces(piece)).store == store


def test_replicas_share_a_matrix_by_objects_of_a_mebibyte_at_least() -> None:
    leaf = Leaf("w", "jax", "float32", (4096, 4096))
    for processes, objects in [(1, 1), (2, 2), (8, 8), (64, 64), (1000, 64)]:
        pieces = Pieces(leaf.shape, (tuple(range(processes)),))
        laid = layouts.lay_out(leaf, "w", pieces)
        (assigned,) = layouts.assign_writers([laid], [pieces])
        assert assigned.cells.length == objects
        assert {assigned.writer(n) for n in range(objects)} == set(
            range(min(processes, objects))
        )


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (None, (64 << 20, 512 << 10)),
        (1 << 30, (64 << 20, 512 << 10)),
        (64 << 20, (16 << 20, 512 << 10)),
        (1 << 20, (256 << 10, 256 << 10)),
        (1, (64 << 10, 64 << 10)),
    ],
)
def test_objects_take_a_quarter_of_the_memory_budget_at_most(
    budget: int | None, expected: tuple[int, int]
) -> None:
    limits = WriteLimits.within(budget)
    assert (limits.object_bytes, limits.chunk_bytes) == expected
