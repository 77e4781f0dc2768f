"""Reading the event logs of a run: what is damaged or too large is counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from .._errors import Damaged, LimitExceeded, NotFound, Untrusted
from .._store import Store
from .._write import run_all
from ._event_names import EventName, name_events, parse_name
from ._log import Log

_MAX_LINE = 64 << 10
_PIECE_BYTES = 8 << 20
_FILE_BYTES = 128 << 20
_ALL_BYTES = 512 << 20
_MAX_LOGS = 20_000
_READ_BYTES = 1 << 20

_SKIPPED = (NotFound, Damaged, Untrusted, LimitExceeded)

_SAME_START = 60.0
"""Seconds by which the processes of a job may begin apart, and their clocks differ."""


@dataclass(frozen=True, slots=True)
class History:
    """The logs of a run, one for each start; how many lines or objects were skipped."""

    logs: tuple[Log, ...]
    skipped: int


def read_history(run: Store) -> History:
    """Read the logs of process 0, and others' of the starts of which it has none.

    StoreError when the store fails; no log at all is an empty history.
    """
    named = [n for n in map(parse_name, run.list("events")) if n is not None]
    order = sorted(named, key=lambda n: (n.process, n.began, n.piece or 0))
    groups = [list(g) for _, g in groupby(order, key=lambda n: (n.process, n.began))]
    chosen: list[Log] = []
    skipped, room = max(0, len(groups) - _MAX_LOGS), _ALL_BYTES
    for pieces in groups[:_MAX_LOGS]:
        first = pieces[0]
        if first.process and _is_known(first.began / 1000, chosen):
            continue
        log = Log(first)
        size, bad = _read_log(run, pieces, log, most=min(_FILE_BYTES, room))
        room -= size
        skipped += bad
        if log.lines and not (first.process and _is_covered(log, chosen)):
            chosen.append(log)
    chosen.sort(key=lambda log: (log.name.began, log.name.process))
    return History(tuple(chosen), skipped)


def _is_known(began: float, logs: Sequence[Log]) -> bool:
    return any(
        log.began - _SAME_START <= began <= log.began + log.seconds for log in logs
    )


def _is_covered(log: Log, logs: Sequence[Log]) -> bool:
    """Tell whether most of a log's time is in others: it is of the same starts."""
    end = log.began + log.seconds
    shared = (
        min(end, other.began + other.seconds) - max(log.began, other.began)
        for other in logs
    )
    return sum(max(0.0, seconds) for seconds in shared) > log.seconds / 2


def _read_log(
    run: Store, pieces: Sequence[EventName], log: Log, *, most: int
) -> tuple[int, int]:
    """Read a log's pieces; return how many bytes that was, and what was skipped."""
    done = bad = 0
    for line in _read_lines(run, pieces):
        if line is None:
            bad += 1
            continue
        done += len(line) + 1
        if done > most:
            return most, bad + 1
        bad += not log.take(line)
    return done, bad


def _read_lines(run: Store, pieces: Sequence[EventName]) -> Iterator[bytes | None]:
    """Yield line by line, None for a line or an object that is not to be had."""
    parallel = run.parallel if run.is_remote else 1
    for first in range(0, len(pieces), parallel):
        batch = pieces[first : first + parallel]
        for chunks in run_all(lambda n: _read(run, n), batch, parallel=parallel):
            yield from _split(chunks)


def _read(run: Store, name: EventName) -> Iterable[bytes | None]:
    # A piece is small; a file may be a month's, and is not held at once.
    if not run.is_remote:
        return _read_chunks(run, name_events(*name))
    try:
        return [run.read(name_events(*name), limit=_PIECE_BYTES)]
    except _SKIPPED:
        return [None]


def _read_chunks(run: Store, name: str) -> Iterator[bytes | None]:
    try:
        with run.open(name) as reader:
            for offset in range(0, reader.size, _READ_BYTES):
                chunk = bytearray(min(_READ_BYTES, reader.size - offset))
                reader.read_into(offset, chunk)
                yield bytes(chunk)
    except _SKIPPED:
        yield None


def _split(chunks: Iterable[bytes | None]) -> Iterator[bytes | None]:
    rest: bytes | None = b""
    for chunk in chunks:
        if chunk is None:
            yield None
            continue
        first, *others = chunk.split(b"\n")
        # None: the line has been too long already.
        rest = None if rest is None else rest + first
        for line in others:
            if rest != b"":
                yield rest if rest is not None and len(rest) <= _MAX_LINE else None
            rest = line
        if rest is not None and len(rest) > _MAX_LINE:
            rest = None
    if rest != b"":
        yield rest
