"""Goodput: the share of a run's time that went into steps it still has."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .._catalog import locate
from .._errors import NotFound
from .._store_options import GivenOptions
from ._account import KINDS, Span, account
from ._history import read_history
from ._lineage import find_stretches
from ._log import Log

_BAR = 24

_COLOURS = {
    "productive": "#2a78c2",
    "lost": "#d1495b",
    "stall": "#edae49",
    "restore": "#66a182",
    "startup": "#8d96a3",
    "downtime": "#3b3b3b",
    "other": "#cfd4da",
}

_MEANINGS = {
    "productive": "steps that the newest state descends from",
    "lost": "steps that were trained and do not count any more",
    "stall": "saves, as far as training waited for them",
    "restore": "reading the state back",
    "startup": "from the start to the resume, and compilation",
    "downtime": "between the end of one start and the next",
    "other": "after the last step, and going back by hand",
}


@dataclass(frozen=True, slots=True)
class Goodput:
    """What the seconds of a run went to, from the first event to the last.

    `productive`, `lost`, `stall`, `restore`, `startup`, `downtime` and `other` are
    seconds, and add up to `wall`. Of two starts at the same time both count, and
    `overlap` is how long that was. `steps` is how many steps the newest state
    descends from that the logs know, `starts` how many logs there are, `failures` how
    many starts ended by a kill or an error. `last_commit` is in seconds since 1970.
    `skipped` lines of the logs could not be read.
    """

    url: str
    productive: float
    lost: float
    stall: float
    restore: float
    startup: float
    downtime: float
    other: float
    steps: int
    starts: int
    failures: int
    last_step: int | None
    last_commit: float | None
    began: float
    overlap: float
    skipped: int
    spans: tuple[Span, ...] = field(repr=False)

    @property
    def wall(self) -> float:
        """All seconds: the sum of those of each kind."""
        return math.fsum(self.seconds.values())

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by kind."""
        return {kind: getattr(self, kind) for kind in KINDS}

    @property
    def goodput(self) -> float:
        """The productive share, 0 to 1; 0 where no time has passed."""
        wall = self.wall
        return self.productive / wall if wall else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a dict that JSON can hold."""
        return {
            "run": self.url,
            "goodput": self.goodput,
            "wall": self.wall,
            **self.seconds,
            "steps": self.steps,
            "starts": self.starts,
            "failures": self.failures,
            "last_step": self.last_step,
            "last_commit": self.last_commit,
            "began": self.began,
            "overlap": self.overlap,
            "skipped": self.skipped,
        }

    def __str__(self) -> str:
        wall = self.wall
        lines = [self._head()]
        for kind, seconds in self.seconds.items():
            share = seconds / wall if wall else 0.0
            bar = "#" * round(share * _BAR)
            shown = f"{kind:<10} {_duration(seconds):>12} {share:>7.2%}  {bar}"
            lines.append(shown.rstrip())
        lines.append(f"{'wall':<10} {_duration(wall):>12}")
        return "\n".join([*lines, *self._notes()])

    def _repr_html_(self) -> str:
        wall = self.wall or 1.0
        parts = [(k, s, s / wall) for k, s in self.seconds.items()]
        bar = "".join(
            f'<div title="{kind}" style="width:{share:.4%};background:'
            f'{_COLOURS[kind]}"></div>'
            for kind, _, share in parts
        )
        rows = "".join(
            f'<tr><td><span style="color:{_COLOURS[kind]}">&#9632;</span> {kind}</td>'
            f"<td>{_duration(seconds)}</td><td>{share:.2%}</td>"
            f'<td style="text-align:left">{_MEANINGS[kind]}</td></tr>'
            for kind, seconds, share in parts
        )
        head = _html("; ".join([self._head(), *self._notes()]))
        return (
            f'<p>{head}</p><div style="display:flex;height:1em;width:40em">{bar}</div>'
            f"<table><tr><th>kind</th><th>time</th><th>share</th><th></th></tr>{rows}"
            f"</table>"
        )

    def _head(self) -> str:
        return (
            f"goodput {self.goodput:.1%} of {_duration(self.wall)}: {self.steps:,} "
            f"steps, {self.starts} starts, {self.failures} failures - {self.url}"
        )

    def _notes(self) -> list[str]:
        notes: list[str] = []
        if self.overlap:
            shown = _duration(self.overlap)
            notes.append(f"two starts ran at once for {shown}, and both count")
        if self.skipped:
            notes.append(f"{self.skipped:,} lines of the logs could not be read")
        return notes


def goodput(
    path: str | os.PathLike[str] | None = None,
    *,
    store_options: GivenOptions | None = None,
) -> Goodput:
    """Read the event logs of a run and say what its time went to.

    The logs are those of process 0, and others' where it left none. A run that is
    still training is reported up to its last event; its steps count until another
    start goes back behind them. Evaluation between steps counts as their time. Where
    clocks of hosts differ, only the downtime between two starts is wrong by that.

    NotFound if the run has no events; StoreError if they cannot be read.

    >>> import itertools
    >>> from ckpt._store import open_store
    >>> from ckpt.resume import EventLog
    >>> run = open_store("memory://doc-goodput")
    >>> times = {"clock": itertools.count(1e9).__next__,
    ...          "monotonic": itertools.count(5.0).__next__}
    >>> with EventLog.open(run, process=0, **times) as log:
    ...     log.add("resume", step=0, seconds=0, fresh=True)
    >>> report = goodput("memory://doc-goodput")
    >>> report.starts, report.steps
    (1, 0)
    """
    run = locate(path, store_options)
    history = read_history(run)
    if not history.logs:
        raise NotFound(
            f"expected event logs (events/*.jsonl), found none - in {run.url}"
            f"{run.absence_hint}: pass the path that ckpt.Run was given"
        )
    logs = history.logs
    stretches = find_stretches(logs)
    spans = account(logs, stretches)
    commits = [log.commit for log in logs if log.commit is not None]
    return Goodput(
        url=run.url,
        **{kind: _total(spans, kind) for kind in KINDS},
        steps=sum(one.kept - one.base for one in stretches),
        starts=len(logs),
        failures=count_failures(logs),
        last_step=stretches[-1].reached if stretches else None,
        last_commit=commits[-1] if commits else None,
        began=logs[0].began,
        overlap=_overlap(logs),
        skipped=history.skipped,
        spans=tuple(spans),
    )


def count_failures(logs: tuple[Log, ...]) -> int:
    """Return how many starts failed or were killed: the last one may still train."""
    killed = sum(log.stop is None for log in logs[:-1])
    return killed + sum(log.stop == "failed" for log in logs)


def _total(spans: list[Span], kind: str) -> float:
    return math.fsum(span.seconds for span in spans if span.kind == kind)


def _overlap(logs: tuple[Log, ...]) -> float:
    return math.fsum(
        max(0.0, before.began + before.seconds - log.began)
        for before, log in pairwise(logs)
    )


def _duration(seconds: float) -> str:
    """Return a time as people read it.

    >>> [_duration(x) for x in (0.25, 75, 7325, 200000)]
    ['0.25 s', '1 min 15 s', '2 h 02 min', '2 d 07 h']
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes:02} min"
    days, hours = divmod(hours, 24)
    return f"{days:,} d {hours:02} h"


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
