"""Who writes what: cells are shared evenly by the processes that hold them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ._box import Grid, Shape
from ._leaf import Leaf
from ._writers import Runs, Writers, merge_writers

Holders = tuple[tuple[int, ...], ...]
"""For each piece in C order, the processes that hold it, ascending."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """How a leaf lies on the job: the shape of its pieces, and who holds each.

    No holders: process 0 alone holds everything.
    """

    piece: Shape
    holders: Holders | None = None


class _Group(NamedTuple):
    """Cells of one size that the same processes hold, ascending."""

    elements: int
    holders: tuple[int, ...]
    cells: list[int]


@dataclass(frozen=True, slots=True)
class _Shares:
    """Who may write the cells of the leaves of one layout.

    `alone` has the writer of each cell, -1 for one that several hold; `elements` the
    elements that each process writes of those; `groups` the other cells.
    """

    alone: list[int]
    elements: dict[int, int]
    groups: list[_Group]


def assign_writers(
    leaves: Sequence[Leaf], pieces: Sequence[Pieces | None]
) -> tuple[Leaf, ...]:
    """Give every cell to one of the processes that hold it, evenly over the tree.

    What only one process holds is counted first; then cells go, the largest first, to
    the holder with the fewest bytes so far, the lowest number first: every process
    finds the same answer without asking another. Leaves of one layout share their
    Writers.
    """
    known: dict[tuple[int, Shape, Shape, Shape], _Shares] = {}
    seen: dict[int, Holders] = {}
    equal: dict[Holders, Holders] = {}
    shares: list[_Shares | None] = []
    loads: dict[int, int] = {0: 0}
    weights: dict[int, int] = {}
    for leaf, held in zip(leaves, pieces, strict=True):
        if leaf.store is None:
            shares.append(None)
            continue
        if held is None or held.holders is None:
            loads[0] += leaf.nbytes
            shares.append(None)
            continue
        # `pieces` keeps the holders alive: what has their id is the same tuple, and
        # what is equal to another, which takes longer to tell, is asked only once.
        holders = seen.get(id(held.holders))
        if holders is None:
            holders = equal.setdefault(held.holders, held.holders)
            seen[id(held.holders)] = holders
        key = id(holders), leaf.shape, held.piece, leaf.cells.cell
        share = known.get(key)
        if share is None:
            share = known[key] = _share(leaf, held.piece, holders)
        weights[id(share)] = weights.get(id(share), 0) + leaf.itemsize
        shares.append(share)
    for share in known.values():
        for process, elements in share.elements.items():
            loads[process] = loads.get(process, 0) + elements * weights[id(share)]
    return _name_writers(leaves, shares, _deal(leaves, shares, loads))


def give_to(leaf: Leaf, process: int) -> Leaf:
    """Return a stored leaf with all its cells written by one process."""
    store = leaf.store
    if store is None or process == 0 or not leaf.cells.length:
        return leaf
    writers = Writers(((process, leaf.cells.length),))
    return replace(leaf, store=replace(store, writers=writers))


def _share(leaf: Leaf, piece: Shape, holders: Holders) -> _Shares:
    cells = leaf.cells
    sizes: list[int] = cells.sizes().tolist()
    places: list[int] = cells.parents(Grid(leaf.shape, piece)).tolist()
    alone: list[int] = []
    loads: dict[int, int] = {}
    groups: dict[tuple[int, int], _Group] = {}
    for cell, (elements, place) in enumerate(zip(sizes, places, strict=True)):
        held = holders[place]
        if len(held) == 1:
            alone.append(held[0])
            loads[held[0]] = loads.get(held[0], 0) + elements
            continue
        alone.append(-1)
        group = groups.get((elements, place))
        if group is None:
            group = groups[elements, place] = _Group(elements, held, [])
        group.cells.append(cell)
    return _Shares(alone, loads, list(groups.values()))


def _deal(
    leaves: Sequence[Leaf], shares: Sequence[_Shares | None], loads: dict[int, int]
) -> dict[int, list[tuple[_Group, list[int]]]]:
    """Return, by leaf, the writers of each group of cells, in ascending order.

    A heap for each set of holders has (load, process); loads only grow, so what is
    stale there is too small, and is refreshed when it comes up.
    """
    heaps: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    entries = [
        (-group.elements * leaf.itemsize, number, at, group)
        for number, (leaf, share) in enumerate(zip(leaves, shares, strict=True))
        if share
        for at, group in enumerate(share.groups)
    ]
    dealt: dict[int, list[tuple[_Group, list[int]]]] = {}
    for size, number, _, group in sorted(entries, key=lambda entry: entry[:3]):
        heap = heaps.get(group.holders)
        if heap is None:
            heap = [(loads.get(process, 0), process) for process in group.holders]
            heapq.heapify(heap)
            heaps[group.holders] = heap
        writers: list[int] = []
        for _ in group.cells:
            while (load := loads.get(heap[0][1], 0)) != heap[0][0]:
                heapq.heapreplace(heap, (load, heap[0][1]))
            writer = heap[0][1]
            loads[writer] = load - size
            writers.append(writer)
        writers.sort()
        dealt.setdefault(number, []).append((group, writers))
    return dealt


def _name_writers(
    leaves: Sequence[Leaf],
    shares: Sequence[_Shares | None],
    dealt: dict[int, list[tuple[_Group, list[int]]]],
) -> tuple[Leaf, ...]:
    """Return the leaves with their writers, those with equal ones sharing them."""
    made: dict[Runs, Writers | None] = {(): None}
    fixed: dict[int, Writers | None] = {}
    named: list[Leaf] = []
    for number, (leaf, share) in enumerate(zip(leaves, shares, strict=True)):
        if share is None or leaf.store is None:
            named.append(leaf)
            continue
        if not share.groups and id(share) in fixed:
            writers = fixed[id(share)]
        else:
            processes = list(share.alone)
            for group, chosen in dealt.get(number, ()):
                for cell, process in zip(group.cells, chosen, strict=True):
                    processes[cell] = process
            runs = merge_writers(processes)
            if len(runs) == 1 and runs[0][0] == 0:
                runs = ()
            if runs not in made:
                made[runs] = Writers(runs)
            writers = fixed[id(share)] = made[runs]
        if writers:
            leaf = replace(leaf, store=replace(leaf.store, writers=writers))
        named.append(leaf)
    return tuple(named)
