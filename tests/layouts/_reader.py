"""A naive disk of chunks and pieces, and a reader that does only what a plan says."""

import math
from collections import Counter
from typing import NamedTuple

import numpy as np

import layouts
from layouts import Box, Chunked, Leaf, LeafRead
from tests.layouts._cases import Array, Slices, cell_of, label_cells, naive_cells

Disk = dict[tuple[int, int], tuple[Slices, Array]]
"""By (cell, chunk in the cell): where the values belong, and the values."""


class Naive(NamedTuple):
    """What a reader of whole chunks must read to fill some boxes."""

    chunks: int
    nbytes: int
    cells: set[int]


def store_array(leaf: Leaf, array: Array) -> Disk:
    """Cut an array as its leaf says, with nothing but ranges."""
    disk: Disk = {}
    store = leaf.store
    for number, index in enumerate(naive_cells(leaf.shape, cell_of(leaf))):
        part = array[index]
        chunk = store.chunk if isinstance(store, Chunked) else part.shape
        for inner, small in enumerate(naive_cells(part.shape, chunk)):
            place = tuple(
                slice(a.start + b.start, a.start + b.stop)
                for a, b in zip(index, small, strict=True)
            )
            disk[number, inner] = place, part[small].copy()
    return disk


def fill_boxes(plan: LeafRead, disk: Disk) -> tuple[list[Array], Counter[object]]:
    """Carry out a plan: fill its boxes, and count how often each chunk is read."""
    filled = [np.full(box.shape, -1, np.int64) for box in plan.targets]
    reads: Counter[object] = Counter()
    for cell in plan.cells:
        for chunk in cell.chunks or (0,):
            place, values = disk[cell.cell, chunk]
            reads[cell.cell, chunk] += 1
            for target in cell.targets:
                _paste(filled[target], plan.targets[target], place, values)
    return filled, reads


def _paste(target: Array, box: Box, place: Slices, values: Array) -> None:
    common = [
        (max(s.start, a), min(s.stop, b))
        for s, a, b in zip(place, box.start, box.stop, strict=True)
    ]
    if any(a >= b for a, b in common):
        return
    into = tuple(
        slice(a - o, b - o) for (a, b), o in zip(common, box.start, strict=True)
    )
    source = tuple(
        slice(a - s.start, b - s.start) for (a, b), s in zip(common, place, strict=True)
    )
    target[into] = values[source]


def naive_read(leaf: Leaf, boxes: list[Box]) -> Naive:
    """Return what filling the boxes must read, by labels of every element."""
    store = leaf.store
    cells = label_cells(leaf.shape, cell_of(leaf))
    chunked = isinstance(store, Chunked)
    chunks = label_cells(leaf.shape, store.chunk) if chunked else cells
    touched = np.zeros(leaf.shape, bool)
    for box in boxes:
        touched[box.slices] = True
    numbers = set(chunks[touched].ravel().tolist())
    if chunked:
        whole = math.prod(store.chunk) * leaf.itemsize + layouts.CHECKSUM_BYTES
        nbytes = len(numbers) * whole
    else:
        nbytes = int(np.isin(chunks, list(numbers)).sum()) * leaf.itemsize
    return Naive(len(numbers), nbytes, set(cells[touched].ravel().tolist()))
