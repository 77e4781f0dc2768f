"""Who reads what for whom, against index arrays."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, strategies as st

import layouts
from layouts import Chunked, Leaf, Loose, Packed, Unit, Wants, _read_share
from tests.layouts._cases import (
    Layout,
    box_of,
    hold_elements,
    naive_device_slices,
    placed,
    stored,
)


@st.composite
def owners(draw: st.DrawFn, layout: Layout) -> tuple[int, ...]:
    """Give each device of a mesh to a process, several to one or not."""
    count = draw(st.integers(1, 4))
    processes = st.integers(0, count - 1)
    size = layout.mesh.size
    return tuple(draw(st.lists(processes, min_size=size, max_size=size)))


def find_wants(layout: Layout, processes: tuple[int, ...]) -> Wants:
    found: dict[layouts.Box, set[int]] = {}
    for process, index in zip(processes, naive_device_slices(layout), strict=True):
        found.setdefault(box_of(index), set()).add(process)
    return tuple((box, tuple(sorted(held))) for box, held in found.items())


@st.composite
def shared(draw: st.DrawFn) -> tuple[Leaf, Layout, tuple[int, ...], int]:
    leaf = draw(stored(draw(placed())))
    target = draw(placed(leaf.shape))
    return leaf, target, draw(owners(target)), draw(st.sampled_from([0, 1 << 20]))


@given(shared())
def test_every_wanted_element_is_read_once_over_the_job(
    case: tuple[Leaf, Layout, tuple[int, ...], int],
) -> None:
    leaf, target, processes, small = case
    wants = find_wants(target, processes)
    with patch.object(_read_share, "_SMALL_BYTES", small):
        if not layouts.shares_reads(leaf, wants):
            return
        units = layouts.share_reads({7: leaf}, {7: wants})
        alone = {p: layouts.boxes_alone(leaf, wants, p) for p in set(processes)}
    held = hold_elements(target, processes)
    exchanged = np.zeros(leaf.shape, np.int64)
    for unit in units:
        assert held[unit.reader][unit.box.slices].any()
        assert unit.nbytes == unit.box.size * leaf.itemsize
        exchanged[unit.box.slices] += 1
    read = exchanged.copy()
    for process, boxes in alone.items():
        mine = exchanged > 0
        for box in boxes:
            read[box.slices] += 1
            mine[box.slices] = True
        assert mine[held[process]].all()
    assert (read[np.any(list(held.values()), axis=0)] == 1).all()


@given(shared())
def test_what_is_wanted_apart_is_not_shared(
    case: tuple[Leaf, Layout, tuple[int, ...], int],
) -> None:
    leaf, target, processes, _ = case
    wants = find_wants(target, processes)
    apart = all(len(held) == 1 for _, held in wants)
    with patch.object(_read_share, "_SMALL_BYTES", 0):
        assert layouts.shares_reads(leaf, wants) is (bool(leaf.nbytes) and not apart)


@given(shared())
def test_a_finer_spec_gives_each_element_to_one_process_that_wants_it(
    case: tuple[Leaf, Layout, tuple[int, ...], int],
) -> None:
    leaf, target, processes, _ = case
    with patch.object(_read_share, "_SMALL_BYTES", 0):
        finer = layouts.spread_spec(leaf, target.spec, target.mesh, processes)
    held = hold_elements(target, processes)
    replicated = np.sum([*held.values()], axis=0).max(initial=0) > 1
    if finer is None:
        return
    assert replicated
    read = hold_elements(Layout(target.shape, target.mesh, finer), processes)
    assert (np.sum([*read.values()], axis=0) == 1).all()
    for process, elements in read.items():
        assert not (elements & ~held[process]).any()


def test_replicated_matrices_of_even_sides_are_always_spread() -> None:
    leaf = Leaf("w", "jax", "float32", (1024, 1024), store=Packed((128, 1024)))
    mesh = layouts.mesh_layout({"data": 4, "model": 2})
    for spec in ((), ()), ((), ("model",)), (("model",), ()):
        assert layouts.spread_spec(leaf, spec, mesh, (0, 0, 1, 1, 2, 2, 3, 3))
    # Every process has the whole already, or a part of its own: nothing to spread.
    assert (
        layouts.spread_spec(leaf, (("data",), ()), mesh, (0, 0, 1, 1, 2, 2, 3, 3))
        is None
    )
    assert layouts.spread_spec(leaf, ((), ()), mesh, (0,) * 8) is None


FILE = Loose((64, 1024), (layouts.whole((1024, 1024)),))
BY_ROWS = (("data", "model"), ())


@pytest.mark.parametrize(
    ("spec", "owners", "found"),
    [
        # Each process wants half of each row, 2 KiB: it reads whole rows in its place.
        (((), ("data", "model")), (0, 0, 1, 1), BY_ROWS),
        (((), ("data", "model")), (0, 1, 0, 1), BY_ROWS),
        (((), ()), (0, 1, 2, 3), BY_ROWS),
        (((), ("data",)), (0, 1, 2, 3), BY_ROWS),
        ((("model",), ("data",)), (0, 0, 1, 1), BY_ROWS),
        # Columns of the devices of one process are its rows.
        ((("data",), ("model",)), (0, 0, 1, 1), None),
        ((("data", "model"), ()), (0, 0, 1, 1), None),
        (((), ("data", "model")), (0, 0, 0, 0), None),
    ],
)
def test_short_runs_of_a_file_are_read_as_rows(
    spec: layouts.Spec, owners: tuple[int, ...], found: layouts.Spec | None
) -> None:
    leaf = Leaf("w", "jax", "float32", (1024, 1024), store=FILE)
    mesh = layouts.mesh_layout({"data": 2, "model": 2})
    assert layouts.spread_spec(leaf, spec, mesh, owners) == found


@pytest.mark.parametrize(
    ("shape", "store"),
    [
        ((1022, 1028), Loose((1, 1028), (layouts.whole((1022, 1028)),))),  # not even
        ((64, 65536), Loose((1, 65536), (layouts.whole((64, 65536)),))),  # long runs
        ((1024, 1024), Loose((64, 64))),  # chunks
        ((1024, 1024), Chunked("w", (1024, 1024), (64, 64))),
        (  # each a file of columns
            (1024, 1024),
            Loose(
                (1024, 512),
                (
                    layouts.Box((0, 0), (1024, 512)),
                    layouts.Box((0, 512), (1024, 512)),
                ),
            ),
        ),
    ],
)
def test_what_would_not_be_read_better_as_rows_is_not(
    shape: tuple[int, ...], store: Loose | Chunked
) -> None:
    leaf = Leaf("w", "jax", "float32", shape, store=store)
    mesh = layouts.mesh_layout({"data": 2, "model": 2})
    spec = ((), ("data", "model"))
    assert layouts.spread_spec(leaf, spec, mesh, (0, 0, 1, 1)) is None


def test_a_replicated_object_is_read_in_parts_where_chunks_meet() -> None:
    store = Chunked("w", (1000, 512), (125, 256))
    leaf = Leaf("w", "jax", "float32", (1000, 512), store=store)
    wants = ((layouts.whole(leaf.shape), (0, 1, 2, 3)),)
    units = layouts.share_reads({0: leaf}, {0: wants})
    assert [(u.reader, u.box.start[0], u.box.shape[0]) for u in units] == [
        *((0, 0, 250), (1, 250, 250), (2, 500, 250), (3, 750, 250))
    ]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3000)), max_size=30),
    st.integers(1, 5000),
    st.integers(1, 4),
)
def test_rounds_hold_every_unit_apart_from_the_others(
    sizes: list[tuple[int, int]], limit: int, processes: int
) -> None:
    box = layouts.whole((1,))
    units = [Unit(n, box, reader, size) for n, (reader, size) in enumerate(sizes)]
    rounds = list(layouts.plan_rounds(units, limit=limit, processes=processes))
    assert [unit for r in rounds for unit in r.units] == units
    for found in rounds:
        loads = [sum(u.nbytes for u in found.units if u.reader == p) for p in range(4)]
        assert len(found.units) == 1 or max(loads) * processes <= limit
        used = np.zeros((4, found.length), bool)
        for unit, offset in zip(found.units, found.offsets, strict=True):
            assert offset % 64 == 0
            part = used[unit.reader, offset : offset + unit.nbytes]
            assert len(part) == unit.nbytes
            assert not part.any()
            part[:] = True


def test_units_are_cut_so_that_many_processes_can_exchange_them() -> None:
    store = Chunked("w", (4096, 2048), (512, 256))
    leaf = Leaf("w", "jax", "float32", (4096, 2048), store=store)
    wants = ((layouts.whole(leaf.shape), (0, 1)),)
    units = layouts.share_reads({0: leaf}, {0: wants}, most=8 << 20)
    assert [unit.nbytes for unit in units] == [8 << 20] * 4
