"""Flat partitions of DeepSpeed: tensors that lie in them, cut without copying."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from layouts import DTYPES

from .._errors import Damaged, Untrusted
from ._entry import Blob, Block, Shape, Tensor, cut_run, tiles


@dataclass(frozen=True, slots=True)
class Run:
    """Items that follow one another in a blob, the first at `offset`."""

    blob: Blob
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class Flat:
    """Runs of one dtype, end to end; `ends` says where each stops, in items."""

    dtype: str
    runs: tuple[Run, ...]
    ends: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of items."""
        return self.ends[-1] if self.ends else 0

    def cut(self, start: int, stop: int) -> Iterator[Run]:
        """Yield the runs that hold items `start` to `stop`, which must be there."""
        size = DTYPES[self.dtype].itemsize
        n = bisect_right(self.ends, start)
        while start < stop:
            run = self.runs[n]
            skip = start - (self.ends[n] - run.count)
            count = min(run.count - skip, stop - start)
            yield Run(run.blob, run.offset + skip * size, count)
            start, n = start + count, n + 1


def join(tensors: Sequence[object], *, what: str) -> Flat:
    """Return flat tensors end to end; Untrusted for others."""
    runs: list[Run] = []
    dtypes: set[str] = set()
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or not isinstance(tensor.data, tuple):
            raise Untrusted(f"expected tensors as {what}, found other values")
        (block,) = tensor.data
        if len(tensor.shape) != 1 or block.strides is not None:
            raise Untrusted(f"expected flat tensors as {what}, found other shapes")
        runs.append(Run(block.blob, block.offset, tensor.shape[0]))
        dtypes.add(tensor.dtype)
    if len(dtypes) != 1:
        raise Untrusted(f"expected one dtype of {what}, found {sorted(dtypes)}")
    ends = tuple(accumulate(run.count for run in runs))
    return Flat(dtypes.pop(), tuple(runs), ends)


def shape_runs(runs: Sequence[Run], *, dtype: str, shape: Shape, name: str) -> Tensor:
    """Return a tensor of a shape whose items, in C order, are those of the runs."""
    size = DTYPES[dtype].itemsize
    blocks: list[Block] = []
    at = 0
    for run in runs:
        for box, ahead in cut_run(shape, at, at + run.count):
            blocks.append(Block(box, run.blob, run.offset + ahead * size))
        at += run.count
    if at != math.prod(shape) or not tiles(shape, [block.box for block in blocks]):
        raise Damaged(f"expected {math.prod(shape)} items of `{name}`, found {at}")
    return Tensor(dtype, shape, tuple(blocks))


def align(count: int, step: int) -> int:
    """Return the next multiple of `step`."""
    return -(-count // step) * step
