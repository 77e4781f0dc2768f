"""Which steps the newest state of a run descends from: all others were lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ._log import Log

_LOOK_BACK = 10_000


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows `first` to `stop` of a log: training on from step `base` without a break.

    The steps above `base` up to `kept` are those that the newest state descends from.
    """

    log: int
    first: int
    stop: int
    base: int
    reached: int
    kept: int


def find_stretches(logs: Sequence[Log]) -> list[Stretch]:
    """Return all stretches in the order of time, with what was kept of each.

    The newest stretch is kept. It went on from a step of one before it: the last that
    saved this step, else the last that trained it, else the last that began before
    it. That one is kept up to there, and so on; what is passed over is lost. So a
    start that restored and did nothing costs nothing that a later one goes on from,
    and of two jobs at once only the one counts on which another went on.
    """
    found = [one for number, log in enumerate(logs) for one in _cut(log, number)]
    kept = [one.base for one in found]
    at = len(found) - 1
    upto = found[at].reached if found else 0
    while at >= 0:
        kept[at] = min(upto, found[at].reached)
        upto = found[at].base
        at = _find_parent(found, at, logs) if upto else -1
    return [
        Stretch(one.log, one.first, one.stop, one.base, one.reached, upto)
        for one, upto in zip(found, kept, strict=True)
    ]


def _find_parent(found: Sequence[Stretch], child: int, logs: Sequence[Log]) -> int:
    step = found[child].base
    trained = before = -1
    for at in range(child - 1, max(-1, child - 1 - _LOOK_BACK), -1):
        one = found[at]
        if one.base >= step:
            continue
        if one.reached >= step:
            if step in logs[one.log].saved:
                return at
            trained = max(trained, at)
        before = max(before, at)
    return trained if trained >= 0 else before


def _cut(log: Log, number: int) -> list[Stretch]:
    """Return the stretches of one log: each begins with a resume, or by going back."""
    found: list[Stretch] = []
    first, base, last = 0, None, -1

    def end(stop: int) -> None:
        if base is not None:
            found.append(Stretch(number, first, stop, base, max(base, last), base))

    for row, step in enumerate(log.steps):
        if row in log.resumes or step <= last or base is None:
            end(row)
            first, base = row, step if row in log.resumes else max(step - 1, 0)
        last = step
    end(len(log.steps))
    return found
