"""Positions for another number of hosts: which sample comes next, in other units."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from .._errors import DataMismatch

ADVICE = (
    "resume on as many hosts and with the same batch size, or use ckpt.resume.Batches, "
    "whose position is a number"
)


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


def scale_state(state: Any, *, taken: int, old: Pace, new: Pace) -> Any:
    """Return a state that holds one number for the new hosts and batch size.

    The number counts batches, or one host's samples, or those of all: which of them
    follows from how many samples `taken` says all hosts took. DataMismatch when it is
    none of them, or more than one with different outcomes.
    """
    found = find_numbers(state)
    if len(found) != 1:
        raise DataMismatch(
            f"expected a position of one number, found {len(found)} in {state!r}, "
            f"which cannot be set for other hosts or another batch size: {ADVICE}"
        )
    (number,) = found
    units = {
        "batches": (old.batch_size, new.batch_size),
        "rows on each host": (old.processes, new.processes),
        "samples": (1, 1),
    }
    fits = [(what, *unit) for what, unit in units.items() if number * unit[0] == taken]
    if taken and len({after for *_, after in fits}) > 1 and old.processes == 1 < number:
        # One host's samples are those of all there: hosts that stride count their own.
        fits = [fit for fit in fits if fit[0] != "samples"]
    if not fits:
        raise DataMismatch(
            f"expected the position {number} to count the {taken} samples taken (as "
            f"batches of {old.batch_size}, or on each of {old.processes} hosts), found "
            f"that it does not: {ADVICE}"
        )
    if taken and len({after for *_, after in fits}) > 1:
        raise DataMismatch(
            f"expected the position {number} to count one thing, found that it may "
            f"count {' or '.join(what for what, *_ in fits)}: {ADVICE}"
        )
    what, _, unit = fits[0]
    whole = f"batches of {unit}" if what == "batches" else what
    return _replace(state, divide(taken, unit, whole))


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
