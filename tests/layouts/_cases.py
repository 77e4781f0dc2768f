"""Random layouts, and naive models of them made of numpy index arrays."""

import math
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import layouts
from layouts import Box, Chunked, Leaf, MeshLayout, Packed, Pieces, Spec

Array = np.ndarray[Any, Any]
Slices = tuple[slice, ...]
Shape = tuple[int, ...]

LENGTHS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 30, 32]
DTYPES = ["uint8", "float16", "float32", "complex128", "bfloat16", "int4"]


class Layout(NamedTuple):
    """An array of some shape on some mesh."""

    shape: Shape
    mesh: MeshLayout
    spec: Spec


@st.composite
def meshes(draw: st.DrawFn, largest: int = 12) -> MeshLayout:
    sizes = draw(
        st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(
            lambda sizes: math.prod(sizes) <= largest
        )
    )
    return layouts.mesh_layout(dict(zip("xyz", sizes, strict=False)))


@st.composite
def specs(
    draw: st.DrawFn, shape: Shape, mesh: MeshLayout, *, even: bool = True
) -> Spec:
    """Give each axis to a dimension, or none; `even` ones as jax demands them."""
    groups: list[tuple[str, ...]] = [()] * len(shape)
    for axis in draw(st.permutations(list(mesh.sizes))):
        choices = [
            d
            for d, n in enumerate(shape)
            if not even
            or n % (math.prod([mesh.sizes[a] for a in (*groups[d], axis)])) == 0
        ]
        d = draw(st.sampled_from([None, *choices]))
        if d is not None:
            groups[d] = (*groups[d], axis)
    return tuple(groups)


def shapes(max_rank: int = 3) -> st.SearchStrategy[Shape]:
    lengths = st.lists(st.sampled_from(LENGTHS), max_size=max_rank)
    return lengths.map(tuple).filter(lambda shape: math.prod(shape) <= 4096)


@st.composite
def placed(draw: st.DrawFn, shape: Shape | None = None, *, largest: int = 12) -> Layout:
    """Draw a layout: prime and odd lengths, 0-d, zero-size, few and many devices."""
    shape = draw(shapes()) if shape is None else shape
    mesh = draw(meshes(largest))
    return Layout(shape, mesh, draw(specs(shape, mesh)))


@st.composite
def stored(draw: st.DrawFn, layout: Layout, path: str = "w") -> Leaf:
    """Draw how a leaf of this layout is stored: packed, or chunked by small limits."""
    shape = layout.shape
    piece = naive_piece(layout)
    dtype = draw(st.sampled_from(DTYPES))
    leaf = Leaf(path, "jax", dtype, shape)
    if not shape or 0 in shape or draw(st.booleans()):
        return Leaf(path, "jax", dtype, shape, store=Packed(piece))
    chunk = layouts.cut_chunk(
        piece, leaf.itemsize, shape=shape, limit=draw(st.integers(1, 200))
    )
    cell = layouts.cut_object(
        piece,
        chunk,
        leaf.itemsize,
        shape=shape,
        limit=draw(st.integers(1, 2000)),
        parts=draw(st.integers(1, 4)),
        least=1,
    )
    return Leaf(path, "jax", dtype, shape, store=Chunked(path, cell, chunk))


def naive_piece(layout: Layout) -> Shape:
    """Return the shape of a shard, as jax's NamedSharding.shard_shape does."""
    return tuple(
        n // math.prod([layout.mesh.sizes[a] for a in axes])
        for n, axes in zip(layout.shape, layout.spec, strict=True)
    )


def naive_device_slices(layout: Layout) -> list[Slices]:
    """Return each device's index by splitting the array one mesh axis at a time."""
    names = list(layout.mesh.sizes)
    found: list[Slices] = []
    for place in product(*[range(n) for n in layout.mesh.sizes.values()]):
        at = dict(zip(names, place, strict=True))
        ranges = [range(n) for n in layout.shape]
        for d, axes in enumerate(layout.spec):
            for axis in axes:
                size = len(ranges[d]) // layout.mesh.sizes[axis]
                ranges[d] = ranges[d][size * at[axis] : size * (at[axis] + 1)]
        found.append(tuple(slice(r.start, r.stop) for r in ranges))
    return found


def naive_cells(shape: Shape, cell: Shape) -> Iterator[Slices]:
    """Yield the clipped cells of a grid in C order, as numpy indices."""
    starts = [range(0, n, max(c, 1)) for n, c in zip(shape, cell, strict=True)]
    for corner in product(*starts):
        yield tuple(
            slice(a, min(a + c, n)) for a, c, n in zip(corner, cell, shape, strict=True)
        )


def cell_of(leaf: Leaf) -> Shape:
    """Return the shape of what is written at once."""
    if isinstance(leaf.store, Chunked):
        return leaf.store.object
    assert isinstance(leaf.store, Packed)
    return leaf.store.piece


def label_cells(shape: Shape, cell: Shape) -> Array:
    """Return an array that holds, at each element, the number of its cell."""
    labels = np.full(shape, -1, np.int64)
    for number, index in enumerate(naive_cells(shape, cell)):
        labels[index] = number
    return labels


def naive_holders(layout: Layout, processes: Sequence[int]) -> layouts.Holders:
    """Return the holders of each piece, given each device's process."""
    held = hold_elements(layout, processes)
    return tuple(
        tuple(p for p in sorted(held) if held[p][index].all())
        for index in naive_cells(layout.shape, naive_piece(layout))
    )


def hold_elements(layout: Layout, processes: Sequence[int]) -> dict[int, Array]:
    """Return which elements each process holds."""
    held = {p: np.zeros(layout.shape, bool) for p in set(processes)}
    for process, index in zip(processes, naive_device_slices(layout), strict=True):
        held[process][index] = True
    return held


def pieces_of(layout: Layout, processes: Sequence[int]) -> Pieces:
    return Pieces(naive_piece(layout), naive_holders(layout, processes))


def box_of(index: Slices) -> Box:
    return Box(
        tuple(s.start for s in index), tuple(max(s.stop - s.start, 0) for s in index)
    )


def has_divisor(n: int, *, most: int) -> bool:
    """Tell whether any number from 2 to `most` divides n."""
    return any(n % p == 0 for p in range(2, min(n, most) + 1))


def all_layouts(shape: Shape, sizes: dict[str, int]) -> list[Layout]:
    """Return every valid placement of a shape on a mesh."""
    mesh = layouts.mesh_layout(sizes)
    found: set[Spec] = set()
    for order in permutations(sizes):
        for homes in product([None, *range(len(shape))], repeat=len(order)):
            groups: list[tuple[str, ...]] = [()] * len(shape)
            for axis, d in zip(order, homes, strict=True):
                if d is not None:
                    groups[d] = (*groups[d], axis)
            found.add(tuple(groups))
    return [
        Layout(shape, mesh, spec)
        for spec in sorted(found)
        if all(
            n % math.prod([sizes[a] for a in axes]) == 0
            for n, axes in zip(shape, spec, strict=True)
        )
    ]
