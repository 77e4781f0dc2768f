"""Sets a source where the streams of a job stood, on as many hosts or on others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .._errors import CkptError, DataMismatch
from ._kind import Host, Kind, Prefix, set_epoch
from ._moves import ADVICE, Pace, Unit, scale_state
from ._position import Position
from ._state import freeze, thaw


@dataclass(frozen=True, slots=True)
class Placed:
    """An iterator that was set, and the state that was set, as a plain value.

    `is_moved`: it is not the state that was saved.
    """

    iterator: Iterator[Any]
    state: Any
    taken: int | None
    is_moved: bool


def place(
    kind: Kind,
    source: Any,
    saved: Sequence[Position],
    *,
    host: Host,
    batch_size: int | None,
    elastic: bool | Unit | None,
) -> Placed:
    """Set a source behind what all hosts took; DataMismatch when it cannot be."""
    if not saved:
        raise DataMismatch("expected the data positions of a job, found none")
    for position in saved:
        if position.kind != kind.name:
            raise DataMismatch(
                f"expected a source of kind {position.kind} (saved), found one of kind "
                f"{kind.name}"
            )
    sizes = {position.batch_size for position in saved}
    is_same = len(saved) == host.processes and sizes == {batch_size}
    mine = saved[host.process if is_same else 0]
    if not is_same:
        _check_change(kind, saved, host=host, batch_size=batch_size, elastic=elastic)
    try:
        # Before the state is set: an order that is of the epoch is made from both.
        set_epoch(source, mine.epoch)
        if is_same:
            iterator = kind.place(source, thaw(mine.state), host)
            return Placed(iterator, mine.state, mine.taken, is_moved=False)
        if mine.prefix is not None and kind.move is not None:
            iterator = kind.move(source, Prefix(*mine.prefix), host)
            state = freeze(kind.read(source, iterator))
            return Placed(iterator, state, mine.prefix[0], is_moved=True)
        taken, old_size = mine.taken or 0, mine.batch_size or 1
        state = scale_state(
            thaw(mine.state),
            taken=taken,
            old=Pace(old_size, len(saved)),
            new=Pace(batch_size or 1, host.processes),
            unit=None if isinstance(elastic, bool) else elastic,
        )
        iterator = kind.place(source, state, host)
        return Placed(iterator, freeze(state), taken, is_moved=True)
    except CkptError:
        raise
    except Exception as error:
        raise DataMismatch(
            f"expected a {kind.name} that takes the saved position, found "
            f"{type(error).__name__}: {error}: make it as it was when it was saved "
            f"(number of workers, shards, transformations)"
        ) from error


def _check_change(
    kind: Kind,
    saved: Sequence[Position],
    *,
    host: Host,
    batch_size: int | None,
    elastic: bool | Unit | None,
) -> None:
    """Raise DataMismatch unless one common position follows from those saved."""
    mine = saved[0]
    change = (
        f"positions of {len(saved)} hosts with batch_size {mine.batch_size} for "
        f"{host.processes} with {batch_size}"
    )
    if elastic is False:
        raise DataMismatch(f"expected no change (elastic=False), found {change}")
    if (mine.batch_size is None) != (batch_size is None):
        raise DataMismatch(
            f"expected batch_size={mine.batch_size} (saved), found {batch_size}: say "
            f"it to ckpt.resume.Stream"
        )
    is_counted = mine.prefix is not None and kind.move is not None
    is_scaled = elastic and mine.taken is not None and mine.batch_size is not None
    if not is_counted and not is_scaled:
        raise DataMismatch(
            f"expected a pipeline whose hosts take one order in turns, found {change} "
            f"of a {kind.name} of which that is not known: {kind.advice}"
        )
    places = [(p.epoch, p.prefix if is_counted else (p.taken, p.state)) for p in saved]
    if any(spot != places[0] for spot in places):
        raise DataMismatch(
            f"expected all hosts to have taken as much, found {change} at (epoch, "
            f"samples) {places}: {ADVICE}"
        )
