"""How the files and objects of event logs are named."""

from __future__ import annotations

import re
from typing import NamedTuple

_NUMBER = r"(0|[1-9]\d{0,14})"
_NAME = re.compile(rf"events/{_NUMBER}-{_NUMBER}(?:-{_NUMBER})?\.jsonl", re.ASCII)


class EventName(NamedTuple):
    """When a log began, in milliseconds since 1970, whose it is, and which piece."""

    began: int
    process: int
    piece: int | None = None


def name_events(began: int, process: int, piece: int | None = None) -> str:
    """Return the name of a log on a disk, or of a piece of one in an object store.

    >>> name_events(1700000000000, 0)
    'events/1700000000000-0.jsonl'
    """
    more = "" if piece is None else f"-{piece}"
    return f"events/{began}-{process}{more}.jsonl"


def parse_name(name: str) -> EventName | None:
    """Return what a name says, None for one that no log has.

    >>> parse_name("events/1700000000000-3-12.jsonl")
    EventName(began=1700000000000, process=3, piece=12)
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    began, process, piece = found.groups()
    return EventName(int(began), int(process), None if piece is None else int(piece))
