"""Positions for another number of hosts: which sample comes next, in other units."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, cast

from .._errors import DataMismatch

ADVICE = (
    "resume on as many hosts and with the same batch size, or use ckpt.resume.Batches, "
    "whose position is a number"
)


MEANING = '"samples": those of each host, "global": those of all hosts'

Unit: TypeAlias = Literal["batches", "samples", "global"]
"""What a position counts: `samples` are one host's, `global` ones those of all."""


class Pace(NamedTuple):
    """How many samples a batch takes over all hosts, and how many hosts there are."""

    batch_size: int
    processes: int


def divide(count: int, unit: int, what: str) -> int:
    """Return how many units a count of samples is; DataMismatch unless it is whole."""
    if count % unit:
        raise DataMismatch(
            f"expected the {count} samples that were taken to be whole {what}, found a "
            f"rest of {count % unit}: choose a number of hosts and a batch size that "
            f"divide {count}"
        )
    return count // unit


def scale_state(
    state: Any, *, taken: int, old: Pace, new: Pace, unit: Unit | None = None
) -> Any:
    """Return a state that holds one number for the new hosts and batch size.

    What the number counts is `unit`, or follows from how many samples `taken` says all
    hosts took. DataMismatch when it counts nothing of that, or when what it counts
    makes a difference and cannot be told.
    """
    found = find_numbers(state)
    if len(found) != 1:
        raise DataMismatch(
            f"expected a position of one number, found {len(found)} in {state!r}, "
            f"which cannot be set for other hosts or another batch size: {ADVICE}"
        )
    (number,) = found
    units: dict[Unit, tuple[int, int]] = {
        "batches": (old.batch_size, new.batch_size),
        "samples": (old.processes, new.processes),
        "global": (1, 1),
    }
    fits = {
        name: after
        for name, (before, after) in units.items()
        if number * before == taken and unit in (None, name)
    }
    if not fits:
        raise DataMismatch(
            f"expected the position {number} of {old.processes} hosts to count "
            f"{unit or 'batches or samples'}, found that {taken} samples were taken in "
            f"batches of {old.batch_size}: {ADVICE}"
        )
    if taken and len(set(fits.values())) > 1:
        raise DataMismatch(
            f"expected to know what the position {number} counts, found that it may be "
            f"{' or '.join(fits)}: pass that as elastic= to ckpt.resume.Stream "
            f"({MEANING})"
        )
    name, after = next(iter(fits.items()))
    what = f"batches of {after}" if name == "batches" else f"samples for {after} hosts"
    return _replace(state, divide(taken, after, what))


def find_numbers(state: Any) -> list[int]:
    """Return all integers of a state."""
    if isinstance(state, dict):
        values = cast("dict[str, Any]", state).values()
        return [number for value in values for number in find_numbers(value)]
    if isinstance(state, list | tuple):
        items = cast("list[Any]", state)
        return [number for item in items for number in find_numbers(item)]
    return [state] if isinstance(state, int) and not isinstance(state, bool) else []


def _replace(state: Any, number: int) -> Any:
    if isinstance(state, dict):
        found = cast("dict[str, Any]", state)
        return {key: _replace(value, number) for key, value in found.items()}
    if isinstance(state, list | tuple):
        items = [_replace(item, number) for item in cast("list[Any]", state)]
        return tuple(items) if isinstance(state, tuple) else items
    is_number = isinstance(state, int) and not isinstance(state, bool)
    return number if is_number else state
