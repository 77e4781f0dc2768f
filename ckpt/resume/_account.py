"""What each second of a run went to: spans of time, of one kind each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ._lineage import Stretch
from ._log import Log

_POINTS = 200

KINDS = (
    "productive",
    "lost",
    "stall",
    "restore",
    "startup",
    "downtime",
    "other",
)


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds from the first event of the first log, all of one kind."""

    begin: float
    end: float
    kind: str
    log: int

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Curve:
    """Points (seconds, step) of a stretch of training, and up to where it was kept."""

    points: tuple[tuple[float, int], ...]
    kept: int


def lay_out(logs: Sequence[Log]) -> list[float]:
    """Return when each log begins, in seconds from the first.

    Logs lie one after another; where two overlap, by their clocks, each has its whole
    time, so that what runs twice is counted twice.
    """
    begins: list[float] = []
    now = 0.0
    for number, log in enumerate(logs):
        if number:
            before = logs[number - 1]
            now += max(0.0, log.began - before.began - before.seconds)
        begins.append(now)
        now += log.seconds
    return begins


def account(
    logs: Sequence[Log], stretches: Sequence[Stretch], begins: Sequence[float]
) -> list[Span]:
    """Return spans that follow each other, from the first log's begin without a gap."""
    spans: list[Span] = []
    now = 0.0
    of_log: list[list[Stretch]] = [[] for _ in logs]
    for one in stretches:
        of_log[one.log].append(one)
    for number, log in enumerate(logs):
        now = _extend(spans, now, begins[number] - now, "downtime", number)
        for seconds, kind in _split(log, of_log[number]):
            now = _extend(spans, now, seconds, kind, number)
    return spans


def trace(
    logs: Sequence[Log], stretches: Sequence[Stretch], begins: Sequence[float]
) -> Iterator[Curve]:
    """Yield how the steps went on over time, by few points for each stretch."""
    for one in stretches:
        log, begin = logs[one.log], begins[one.log]
        rows = range(one.first, one.stop)
        chosen = [*rows[:: max(1, len(rows) // _POINTS)], rows[-1]]
        points = tuple((begin + log.at[row], log.steps[row]) for row in chosen)
        yield Curve(points, one.kept)


def _extend(
    spans: list[Span], now: float, seconds: float, kind: str, log: int
) -> float:
    if seconds <= 0:
        return now
    end = now + seconds
    if spans and (spans[-1].kind, spans[-1].log) == (kind, log):
        spans[-1] = Span(spans[-1].begin, end, kind, log)
    else:
        spans.append(Span(now, end, kind, log))
    return end


def _split(log: Log, stretches: Sequence[Stretch]) -> Iterator[tuple[float, str]]:
    """Yield what a log's time went to, in order; together it is all of its time."""
    before = 0.0
    trained = False
    for one in stretches:
        done = one.base
        extra = _first_extra(log, one)
        for row in range(one.first, one.stop):
            whole = log.at[row] - before
            before = log.at[row]
            stall = min(log.stalls[row], whole)
            rest = whole - stall
            yield stall, "stall"
            if row in log.resumes:
                took = min(log.resumes[row], rest)
                yield rest - took, "other" if trained else "startup"
                yield took, "restore"
                continue
            trained = True
            compiled = min(extra, rest)
            extra = 0.0
            yield compiled, "startup"
            step = log.steps[row]
            share = (min(step, max(one.kept, done)) - done) / (step - done)
            kept = (rest - compiled) * share
            yield kept, "productive"
            yield rest - compiled - kept, "lost"
            done = step
    stall = min(log.stall_after, log.seconds - before)
    yield stall, "stall"
    yield log.seconds - before - stall, "other" if trained else "startup"


def _first_extra(log: Log, one: Stretch) -> float:
    """Return how much longer a first step took than the shorter of the next two."""
    if one.first not in log.resumes:
        return 0.0
    rows = range(one.first, min(one.stop, one.first + 4))
    each = [
        (log.at[b] - log.at[a] - min(log.stalls[b], log.at[b] - log.at[a]))
        / (log.steps[b] - log.steps[a])
        for a, b in pairwise(rows)
    ]
    if len(each) < 2:
        return 0.0
    first = log.steps[one.first + 1] - log.steps[one.first]
    return max(0.0, (each[0] - min(each[1:])) * first)
