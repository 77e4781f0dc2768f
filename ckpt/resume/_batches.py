"""Batches that are a pure function of a seed and a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batches(Generic[T]):
    """The batches `make(seed, step)` for step 0, 1, 2 and so on, without an end.

    `make` must be a pure function: then the position is a number, a resume costs
    nothing, and any number of hosts goes on where another stopped. `batch_size` counts
    samples over all hosts; with it a resume at another batch size goes on at the same
    sample.

    >>> from ckpt.resume import Batches
    >>> batches = iter(Batches(lambda seed, step: 100 * seed + step, seed=7))
    >>> next(batches), next(batches)
    (700, 701)
    """

    make: Callable[[int, int], T]
    seed: int = 0
    batch_size: int | None = None
    name: str | None = None

    def __iter__(self) -> Iterator[T]:
        """Return an iterator from step 0."""
        return Counted(self.at)

    def at(self, step: int) -> T:
        """Return the batch of a step."""
        return self.make(self.seed, step)


class Counted(Iterator[T]):
    """The values of a function of 0, 1, 2 and so on; its state is that number."""

    __slots__ = ("make", "number")

    def __init__(self, make: Callable[[int], T]) -> None:
        self.make = make
        self.number = 0

    def __next__(self) -> T:
        value = self.make(self.number)
        self.number += 1
        return value

    def get_state(self) -> int:
        """Return the number of the value that comes next."""
        return self.number

    def set_state(self, number: int) -> None:
        """Let the value of that number come next."""
        self.number = number


def shuffle_indices(
    length: int, batch_size: int, *, seed: int, step: int
) -> npt.NDArray[np.int64]:
    """Return which samples of `length` are in the batch of a step, over all hosts.

    Every sample comes once an epoch, in an order of that epoch alone. All batches are
    full: one that begins at the end of an epoch goes on in the next, so batch after
    batch is one sequence whatever the batch size. The numbers are the same with every
    version of numpy. An epoch's order is made once, the last two are kept.

    A host takes its share: `shuffle_indices(..)[process::processes]`.

    >>> from ckpt.resume import shuffle_indices
    >>> [shuffle_indices(5, 2, seed=0, step=step).tolist() for step in range(5)]
    [[3, 2], [1, 0], [4, 4], [1, 2], [0, 3]]
    """
    if length < 1 or batch_size < 1 or step < 0 or seed < 0:
        raise ValueError(
            f"expected length and batch_size of 1 or more, seed and step of 0 or more, "
            f"found length={length}, batch_size={batch_size}, seed={seed}, step={step}"
        )
    return take_shuffled(length, step * batch_size, batch_size, seed=seed)


def take_shuffled(
    length: int, start: int, count: int, *, seed: int | None
) -> npt.NDArray[np.int64]:
    """Return samples `start` to `start + count` of all epochs on end.

    Each epoch is in an order of its own, or in that of the numbers without a seed.
    """
    found = np.empty(count, np.int64)
    done = 0
    while done < count:
        epoch, at = divmod(start + done, length)
        size = min(count - done, length - at)
        if seed is None:
            found[done : done + size] = np.arange(at, at + size)
        else:
            found[done : done + size] = _permute(length, seed, epoch)[at : at + size]
        done += size
    return found


@lru_cache(maxsize=2)
def _permute(length: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    # Generator.permutation may change with the version of numpy; the raw output of a
    # bit generator does not.
    raw = np.random.PCG64([seed, epoch]).random_raw(length)
    order = np.argsort(raw, kind="stable").astype(np.int64, copy=False)
    order.flags.writeable = False
    return order
