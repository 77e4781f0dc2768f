"""Which process writes which parts of a set of files, and who hands it what of them.

A pure function of what all processes know, so that all of them plan alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import layouts
from layouts import Box, Handover, Need, Share

from .._source import Source
from ._safetensors_items import Item
from ._safetensors_plan import File, assign_files, cut_item
from ._safetensors_write import PIECE_BYTES

_HANDED_BYTES = 64 << 20
"""What is held for a step at most: larger buffers the system maps anew each time."""

_COPIES = 4
"""How often what is handed over in a step is held: here and on a device, out and in."""

_LEAST_BYTES = 4096
"""What a process hands another in a step, or more, however many there are."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the set a box of an array goes."""

    file: int
    offset: int
    item: Item
    box: Box


@dataclass(frozen=True, slots=True)
class Plan:
    """The files and who writes each; the boxes of all of them, and how they are met."""

    files: list[File]
    owners: list[int]
    places: list[Place]
    needs: list[Need]
    steps: list[Handover]


def plan_parts(files: list[File], processes: int, budget: int | None) -> Plan:
    """Return who writes which files of a set, and in which steps."""
    owners = assign_files(files, processes)
    held = min(budget or _HANDED_BYTES, _HANDED_BYTES) // _COPIES
    most = max(_LEAST_BYTES, held // processes)
    places: list[Place] = []
    needs: list[Need] = []
    for number, (file, owner) in enumerate(zip(files, owners, strict=True)):
        at = len(file.header)
        for item in file.items:
            size = min(held, PIECE_BYTES) if _has_whole(item, owner) else most
            # A float4 is a whole byte in memory.
            for box in cut_item(item, most=size * min(item.bits, 8) // 8):
                if box.size:
                    shares = _share(item, box, owner)
                    itemsize = max(item.bits, 8) // 8
                    needs.append(Need(owner, shares, itemsize, number))
                    places.append(Place(number, at, item, box))
                at += box.size * item.bits // 8
    return Plan(files, owners, places, needs, layouts.plan_handovers(needs, most=most))


def _holders(item: Item) -> layouts.Holders | None:
    """Return who holds each piece of an array; None where all have all of it."""
    if not isinstance(item.source, Source) or item.source.is_on_host:
        return None
    pieces = item.source.pieces
    assert pieces is not None
    count = layouts.Grid(item.shape, pieces.piece).length
    return pieces.holders or ((0,),) * count


def _has_whole(item: Item, process: int) -> bool:
    return all(process in found for found in _holders(item) or ())


def _share(item: Item, box: Box, owner: int) -> tuple[Share, ...]:
    holders = _holders(item)
    if holders is None or not isinstance(item.source, Source):
        return (Share(box, (owner,)),)
    pieces = item.source.pieces
    assert pieces is not None
    return layouts.share_box(box, item.shape, pieces.piece, holders)
