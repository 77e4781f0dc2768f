"""How arrays are cut into objects and chunks, against labels made with numpy."""

import math
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

import layouts
from layouts import CHUNK_BYTES, OBJECT_BYTES, Grid
from tests.layouts._cases import (
    Shape,
    has_divisor,
    label_cells,
    naive_cells,
    naive_piece,
    placed,
)

POWERS = [1 << k for k in range(15)]
LARGE = [*POWERS, 3, 5, 7, 49, 127, 768, 1000, 1187, 4093, 5120, 11008, 50257, 151936]


class Cut(NamedTuple):
    """A small array, its piece, object and chunk, its item size and the limits."""

    shape: Shape
    piece: Shape
    cell: Shape
    chunk: Shape
    itemsize: int
    chunk_bytes: int
    object_bytes: int


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    layout = draw(placed().filter(lambda x: x.shape and 0 not in x.shape))
    shape, piece = layout.shape, naive_piece(layout)
    itemsize = draw(st.sampled_from([1, 2, 4, 8, 16]))
    small, large = draw(st.integers(1, 300)), draw(st.integers(1, 2000))
    chunk = layouts.cut_chunk(piece, itemsize, shape=shape, limit=small)
    cell = layouts.cut_object(piece, chunk, itemsize, shape=shape, limit=large)
    return Cut(shape, piece, cell, chunk, itemsize, small, large)


@given(cuts())
def test_no_chunk_crosses_an_object_and_no_object_crosses_a_piece(cut: Cut) -> None:
    assert all(o % c == 0 for o, c in zip(cut.cell, cut.chunk, strict=True))
    labels = [label_cells(cut.shape, part) for part in (cut.piece, cut.cell, cut.chunk)]
    for coarse, fine in pairwise(labels):
        pairs = set(zip(fine.ravel().tolist(), coarse.ravel().tolist(), strict=True))
        assert len(pairs) == len(set(fine.ravel().tolist()))


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_objects_of_every_small_piece_divide_it_where_the_array_is_partitioned(
    parts: int,
) -> None:
    for piece, chunk_bytes, object_bytes in product(
        range(1, 41), range(1, 9), range(1, 41)
    ):
        shape = (piece * parts,)
        chunk = layouts.cut_chunk((piece,), 1, shape=shape, limit=chunk_bytes)
        cell = layouts.cut_object((piece,), chunk, 1, shape=shape, limit=object_bytes)
        assert cell[0] % chunk[0] == 0
        assert parts == 1 or piece % cell[0] == 0
        assert cell[0] < piece + chunk[0]
        assert cell[0] <= max(object_bytes, chunk[0])


@given(cuts())
def test_chunks_and_objects_tile_the_array(cut: Cut) -> None:
    for part in (cut.chunk, cut.cell):
        count = np.zeros(cut.shape, np.int32)
        grid = Grid(cut.shape, part)
        for number in range(grid.length):
            count[grid.box(grid.coordinates(number)).slices] += 1
        assert (count == 1).all()


@given(cuts())
def test_small_chunks_are_within_the_limit_or_single_elements(cut: Cut) -> None:
    if math.prod(cut.chunk) * cut.itemsize > cut.chunk_bytes:
        assert cut.chunk == (1,) * len(cut.shape)
    assert all(1 <= c <= p for c, p in zip(cut.chunk, cut.piece, strict=True))


@given(cuts())
def test_small_objects_are_within_the_limit_or_single_chunks(cut: Cut) -> None:
    if math.prod(cut.cell) * cut.itemsize > cut.object_bytes:
        assert cut.cell == cut.chunk


@given(
    st.lists(st.sampled_from(LARGE), min_size=1, max_size=3),
    st.lists(st.integers(1, 3), min_size=3, max_size=3),
    st.sampled_from([1, 2, 4, 8, 16]),
)
def test_chunks_of_large_arrays_are_half_a_mebibyte_at_most_where_they_can_be_cut(
    lengths: list[int], counts: list[int], itemsize: int
) -> None:
    piece = tuple(lengths)
    shape = tuple(n * c for n, c in zip(piece, counts, strict=False))
    chunk = layouts.cut_chunk(piece, itemsize, shape=shape)
    if math.prod(chunk) * itemsize > CHUNK_BYTES:
        for n, p, c in zip(shape, piece, chunk, strict=True):
            assert c == 1 or (n > p and not has_divisor(c, most=4096))
    for n, p, c in zip(shape, piece, chunk, strict=True):
        assert c <= p
        assert n == p or p % c == 0


@given(
    st.lists(st.sampled_from(POWERS), min_size=1, max_size=4),
    st.sampled_from([1, 2, 4, 8, 16]),
)
def test_chunks_of_powers_of_two_fill_at_least_a_quarter_mebibyte(
    lengths: list[int], itemsize: int
) -> None:
    shape = tuple(lengths)
    assume(math.prod(shape) * itemsize >= CHUNK_BYTES)
    chunk = layouts.cut_chunk(shape, itemsize, shape=shape)
    assert CHUNK_BYTES // 2 < math.prod(chunk) * itemsize <= CHUNK_BYTES


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 3, 5, 7, 15, 25]), st.sampled_from(POWERS[1:])),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([1, 2, 4]),
    st.data(),
)
def test_halves_quarters_and_eighths_of_a_dimension_are_chunk_boundaries(
    parts: list[tuple[int, int]], itemsize: int, data: st.DataObject
) -> None:
    shape = tuple(odd * power for odd, power in parts)
    piece = tuple(
        n // data.draw(st.sampled_from([k for k in (1, 2, 4, 8) if power % k == 0]))
        for n, (_, power) in zip(shape, parts, strict=True)
    )
    chunk = layouts.cut_chunk(piece, itemsize, shape=shape)
    for n, c, (_, power) in zip(shape, chunk, parts, strict=True):
        ways = 1
        while ways <= power and n // ways >= c:
            assert n // ways % c == 0
            ways *= 2


@pytest.mark.parametrize(
    ("piece", "shape", "chunk"),
    [
        # 8 MiB pieces of a 64 MiB matrix: half a mebibyte is 2**17 floats.
        ((1024, 2048), (4096, 4096), (256, 512)),
        ((4096, 4096), (4096, 4096), (256, 512)),
        # Eight parts of the columns; then a prime number of rows, 50257 / 64 = 785.3.
        ((50257, 768), (50257, 768), (786, 96)),
        # Eight parts of rows and of heads; of 128 two, down to runs of 256 bytes.
        ((4096, 32, 128), (4096, 32, 128), (512, 4, 64)),
        # Experts are cut from one another.
        ((8, 4096, 4096), (8, 4096, 4096), (1, 256, 512)),
        # Where rows are partitioned, chunks divide the piece: 50257 = 29 * 1733.
        ((50257, 768), (100514, 768), (1733, 48)),
        # 128256 = 256 * 501: halves of 501 would put no boundary on the 256 parts.
        ((128256, 4096), (128256, 4096), (501, 256)),
        # Small odd factors are cut off cleanly: 1000 = 8 * 5 * 25.
        ((1000, 1000, 1000), (1000, 1000, 1000), (25, 25, 125)),
    ],
)
def test_chunk_shapes_of_known_matrices(
    piece: Shape, shape: Shape, chunk: Shape
) -> None:
    found = layouts.cut_chunk(piece, 4, shape=shape)
    assert found == chunk


def test_pieces_with_prime_sides_are_cut_into_rows_rather_than_left_whole() -> None:
    assert layouts.cut_chunk((4093, 4093), 4, shape=(8186, 8186)) == (1, 4093)


def test_a_length_without_factors_of_a_useful_size_is_left_whole() -> None:
    assert layouts.cut_chunk((1000003,), 4, shape=(2000006,)) == (1000003,)


def share(cells: list[int], holders: int) -> float:
    """Return the largest load over the fair one when cells are dealt, largest first."""
    loads = [0] * holders
    for size in sorted(cells, reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads) * holders / sum(cells)


def sizes_of(shape: Shape, cell: Shape) -> list[int]:
    return [
        math.prod(at.stop - at.start for at in index)
        for index in naive_cells(shape, cell)
    ]


@pytest.mark.parametrize("replicas", [1, 2, 4, 8, 16, 32, 64])
def test_an_object_for_each_replica_where_that_is_even(replicas: int) -> None:
    shape = (4096, 4096)
    chunk = layouts.cut_chunk(shape, 4, shape=shape)
    cell = layouts.cut_object(shape, chunk, 4, shape=shape, parts=replicas)
    assert len(list(naive_cells(shape, cell))) == replicas


@pytest.mark.parametrize(
    "shape",
    [
        (8192, 8192),
        (50257, 2048),
        (1 << 27,),
        (999, 257, 513),
        (4096, 4096),
        (640, 640),
    ],
)
def test_replicas_share_a_piece_within_a_tenth_or_two_mebibytes(shape: Shape) -> None:
    chunk = layouts.cut_chunk(shape, 4, shape=shape)
    for replicas in range(2, 65):
        cell = layouts.cut_object(shape, chunk, 4, shape=shape, parts=replicas)
        fair = math.prod(shape) * 4 / replicas
        found = share(sizes_of(shape, cell), replicas)
        assert found <= max(1.1, 1 + (2 << 20) / fair)
        assert math.prod(cell) * 4 >= 1 << 20


@pytest.mark.parametrize("replicas", [2, 3, 5, 8, 64])
@pytest.mark.parametrize(
    ("piece", "shape"),
    [((4096, 4096), (16384, 4096)), ((3000, 4096), (6000, 8192))],
)
def test_replicas_share_the_pieces_of_a_partitioned_array(
    piece: Shape, shape: Shape, replicas: int
) -> None:
    chunk = layouts.cut_chunk(piece, 4, shape=shape)
    cell = layouts.cut_object(piece, chunk, 4, shape=shape, parts=replicas)
    even = [-(-n // c) * c - n for n, c in zip(piece, cell, strict=True)]
    assert even == [0, 0]
    assert share(sizes_of(piece, cell), replicas) <= (1.1 if replicas <= 8 else 2)


def test_objects_that_replicas_share_are_a_mebibyte_at_least() -> None:
    shape = (1024, 1024)
    chunk = layouts.cut_chunk(shape, 4, shape=shape)
    cell = layouts.cut_object(shape, chunk, 4, shape=shape, parts=1000)
    assert math.prod(cell) * 4 == 1 << 20


def test_objects_are_slabs_of_64_mebibytes() -> None:
    shape = (16384, 16384)
    chunk = layouts.cut_chunk(shape, 4, shape=shape)
    assert layouts.cut_object(shape, chunk, 4, shape=shape) == (1024, 16384)
    assert OBJECT_BYTES == 1024 * 16384 * 4
