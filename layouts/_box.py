"""Boxes: axis-aligned parts of an array, and the regular grids made of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]


class Box(NamedTuple):
    """The part of an array that begins at `start` and has `shape`.

    >>> Box((2, 0), (3, 4)).stop
    (5, 4)
    """

    start: Shape
    shape: Shape

    @property
    def stop(self) -> Shape:
        """One past the last index, in each dimension."""
        return tuple(a + n for a, n in zip(self.start, self.shape, strict=True))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The numpy index of this box in the whole array."""
        return tuple(
            slice(a, a + n) for a, n in zip(self.start, self.shape, strict=True)
        )

    def within(self, origin: Shape) -> tuple[slice, ...]:
        """The numpy index of this box in an array that begins at `origin`."""
        return tuple(
            slice(a - o, a - o + n)
            for a, n, o in zip(self.start, self.shape, origin, strict=True)
        )


def whole(shape: Shape) -> Box:
    """Return the box that is the whole array."""
    return Box((0,) * len(shape), tuple(shape))


def intersect(left: Box, right: Box) -> Box | None:
    """Return the part common to both boxes, or None where there is none.

    >>> intersect(Box((0,), (4,)), Box((3,), (5,)))
    Box(start=(3,), shape=(1,))
    """
    start = tuple(map(max, left.start, right.start))
    stop = tuple(map(min, left.stop, right.stop))
    shape = tuple(b - a for a, b in zip(start, stop, strict=True))
    return None if any(n <= 0 for n in shape) else Box(start, shape)


def box_of_index(index: tuple[slice, ...], shape: Shape) -> Box:
    """Return the box of a numpy index as JAX shardings give it."""
    bounds = [s.indices(n)[:2] for s, n in zip(index, shape, strict=True)]
    return Box(tuple(a for a, _ in bounds), tuple(max(b - a, 0) for a, b in bounds))


class Grid(NamedTuple):
    """A regular grid of cells over an array; cells at the far edge are clipped.

    >>> Grid((5, 4), (2, 4)).counts
    (3, 1)
    """

    shape: Shape
    cell: Shape

    @property
    def counts(self) -> Shape:
        """The number of cells along each dimension."""
        return tuple(
            [-(-n // c) if n else 0 for n, c in zip(self.shape, self.cell, strict=True)]
        )

    @property
    def length(self) -> int:
        """The number of cells."""
        return math.prod(self.counts)

    def box(self, coordinates: Shape) -> Box:
        """Return the clipped box of one cell."""
        if self.cell == self.shape:
            return Box((0,) * len(self.shape), self.shape)
        start = tuple([i * c for i, c in zip(coordinates, self.cell, strict=True)])
        shape = tuple(
            [
                min(c, n - a)
                for a, c, n in zip(start, self.cell, self.shape, strict=True)
            ]
        )
        return Box(start, shape)

    def slices(self) -> Iterator[tuple[slice, ...]]:
        """Yield the slices of every cell, clipped, in C order.

        >>> [at.stop for (at,) in Grid((5,), (2,)).slices()]
        [2, 4, 5]
        """
        return itertools.product(
            *[
                [slice(a, min(a + c, n)) for a in range(0, n, c)]
                for n, c in zip(self.shape, self.cell, strict=True)
            ]
        )

    def sizes(self) -> NDArray[np.int64]:
        """Return the number of elements of every cell, clipped, in C order.

        >>> Grid((5, 4), (2, 4)).sizes().tolist()
        [8, 8, 4]
        """
        lengths = [
            np.minimum(n - np.arange(0, n, c or 1), c)
            for n, c in zip(self.shape, self.cell, strict=True)
        ]
        return _outer(np.multiply, lengths)

    def parents(self, coarse: Grid) -> NDArray[np.int64]:
        """Return, for every cell in C order, the number of the coarse cell it is in.

        >>> Grid((5, 4), (1, 2)).parents(Grid((5, 4), (2, 4))).tolist()
        [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
        """
        stride, found = 1, list[NDArray[np.int64]]()
        for d in reversed(range(len(self.shape))):
            starts = np.arange(0, self.shape[d], self.cell[d] or 1)
            found.append(starts // max(coarse.cell[d], 1) * stride)
            stride *= coarse.counts[d]
        return _outer(np.add, found[::-1])

    def coordinates(self, number: int) -> Shape:
        """Return the coordinates of the cell with this number in C order."""
        found: list[int] = []
        for count in reversed(self.counts):
            number, i = divmod(number, count)
            found.append(i)
        return tuple(reversed(found))

    def number(self, coordinates: Shape) -> int:
        """Return the number in C order of the cell at these coordinates."""
        number = 0
        for i, count in zip(coordinates, self.counts, strict=True):
            number = number * count + i
        return number

    def ranges(self, box: Box) -> tuple[range, ...]:
        """Return, for each dimension, the coordinates of the cells `box` touches."""
        if 0 in box.shape:
            return (range(0),) * len(self.shape)
        return tuple(
            [
                range(a // c, -(-(a + n) // c))
                for a, n, c in zip(box.start, box.shape, self.cell, strict=True)
            ]
        )

    def numbers(self, box: Box) -> Iterator[int]:
        """Yield the numbers in C order of the cells `box` touches, ascending."""
        if 0 in box.shape:
            return iter(())
        stride = 1
        scaled: list[range] = []
        for axis, count in zip(self.ranges(box)[::-1], self.counts[::-1], strict=True):
            scaled.append(range(axis.start * stride, axis.stop * stride, stride))
            stride *= count
        return map(sum, itertools.product(*reversed(scaled)))


def _outer(combine: np.ufunc, lines: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Combine one value of each line, in C order."""
    if not lines:
        return np.array([1 if combine is np.multiply else 0])
    return reduce(combine.outer, lines).ravel()
