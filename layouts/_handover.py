"""Who hands which bytes to whom, where one process writes what several of them have.

A pure function of what is written and of who holds it, so that every process finds the
same answer without asking another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ._box import Box, Grid, Shape, intersect
from ._read_share import align, round_up
from ._share import Holders


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a box that the same processes hold, ascending."""

    box: Box
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Need:
    """A box that `receiver` writes: the shares fill it, a value is `itemsize` bytes.

    Needs of a later `group` of its receiver are met after those of an earlier one.
    """

    receiver: int
    shares: tuple[Share, ...]
    itemsize: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class Parcel:
    """A share of a need, which `sender` puts at `offset` of what it sends there."""

    need: int
    share: int
    sender: int
    nbytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Handover:
    """Needs, by number, that are met together, and the parcels that this takes.

    Every process sends each one a buffer of `length` bytes; of 0, none sends any.
    """

    needs: tuple[int, ...]
    parcels: tuple[Parcel, ...]
    length: int


def share_box(
    box: Box, shape: Shape, piece: Shape, holders: Holders
) -> tuple[Share, ...]:
    """Return the parts of a box of an array that lies in pieces, in C order.

    >>> both = share_box(Box((1,), (2,)), (4,), (2,), ((0,), (1,)))
    >>> [(share.box.start, share.holders) for share in both]
    [((1,), (0,)), ((2,), (1,))]
    """
    grid = Grid(shape, piece)
    found: list[Share] = []
    for number in grid.numbers(box):
        common = intersect(box, grid.box(grid.coordinates(number)))
        if common is not None:
            found.append(Share(common, holders[number]))
    return tuple(found)


def plan_handovers(needs: Sequence[Need], *, most: int) -> list[Handover]:
    """Return in which steps needs are met, none with more than `most` bytes to one.

    That is from one process to one other, and more only where one need takes more. What
    a receiver holds itself it is not sent; of other holders the one that has sent the
    fewest bytes sends it, the lowest number first. A need is met in one step: the
    first, not before those of an earlier group, in which each of its senders has room,
    or has sent that receiver nothing yet. So all senders are busy at once, whatever
    they hold.

    >>> here = Need(0, (Share(Box((0,), (4,)), (0,)),), 1)
    >>> there = Need(0, (Share(Box((4,), (4,)), (1,)),), 1)
    >>> [(step.needs, step.length) for step in plan_handovers([here, there], most=64)]
    [((0, 1), 1024)]
    """
    met: list[list[int]] = []
    parcels: list[list[Parcel]] = []
    sent: dict[int, int] = {}
    # For each sender and receiver: the step it has come to, and the bytes in it.
    filled: dict[tuple[int, int], tuple[int, int]] = {}
    # For each receiver: its group, the step from which that goes on, and the last one.
    groups: dict[int, tuple[int, int, int]] = {}
    for number, need in enumerate(needs):
        to = need.receiver
        group, first, last = groups.get(to, (need.group, 0, 0))
        if group != need.group:
            first = last
        sends = _choose_senders(need, sent)
        at = first
        for sender, load in _sum_loads(sends).items():
            step, used = filled.get((sender, to), (0, 0))
            at = max(at, step + (used > 0 and used + load > most))
        groups[to] = need.group, first, max(at, last)
        while len(met) <= at:
            met.append([])
            parcels.append([])
        met[at].append(number)
        for share, sender, nbytes in sends:
            step, used = filled.get((sender, to), (0, 0))
            offset = used if step == at else 0
            parcels[at].append(Parcel(number, share, sender, nbytes, offset))
            filled[sender, to] = at, offset + align(nbytes)
    return [
        Handover(tuple(numbers), tuple(sends), _length(sends))
        for numbers, sends in zip(met, parcels, strict=True)
    ]


def _choose_senders(need: Need, sent: dict[int, int]) -> list[tuple[int, int, int]]:
    """Return who sends what: the number of each share, its sender and its bytes."""
    found: list[tuple[int, int, int]] = []
    for number, share in enumerate(need.shares):
        if need.receiver not in share.holders:
            sender = min(share.holders, key=lambda p: (sent.get(p, 0), p))
            nbytes = share.box.size * need.itemsize
            sent[sender] = sent.get(sender, 0) + nbytes
            found.append((number, sender, nbytes))
    return found


def _sum_loads(sends: Sequence[tuple[int, int, int]]) -> dict[int, int]:
    loads: dict[int, int] = {}
    for _, sender, nbytes in sends:
        loads[sender] = loads.get(sender, 0) + align(nbytes)
    return loads


def _length(parcels: Sequence[Parcel]) -> int:
    ends = (parcel.offset + align(parcel.nbytes) for parcel in parcels)
    longest = max(ends, default=0)
    return round_up(longest) if longest else 0
