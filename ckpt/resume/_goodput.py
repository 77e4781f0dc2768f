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
from ._account import KINDS, Curve, Span, account, lay_out, trace
from ._history import read_history
from ._lineage import find_stretches
from ._log import Log
from ._render import render_html, render_text


@dataclass(frozen=True, slots=True)
class Goodput:
    """What the seconds of a run went to, from the first event to the last.

    `productive`, `lost`, `stall`, `restore`, `startup`, `downtime` and `other` are
    seconds, and add up to `wall`. Of two starts at the same time both count, and
    `overlap` is how long that was. `steps` is how many steps the newest state
    descends from that the logs know, `starts` how many logs there are, `failures` how
    many starts ended by a kill or an error. `began` and `ended` are when the first and
    the last event was, `last_commit` the last commit, in seconds since 1970.
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
    ended: float
    overlap: float
    skipped: int
    spans: tuple[Span, ...] = field(repr=False)
    curves: tuple[Curve, ...] = field(repr=False)

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
            "ended": self.ended,
            "overlap": self.overlap,
            "skipped": self.skipped,
        }

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw steps over time, and below what each start did; return the figure.

        Written to `path` if one is given (PNG, SVG or PDF by its name). Needs
        matplotlib: `pip install 'ckpt-jax[plot]'`.
        """
        from ._plot import draw

        figure = draw(self)
        if path is not None:
            figure.savefig(path, dpi=130)
        return figure

    def __str__(self) -> str:
        return render_text(self)

    def _repr_html_(self) -> str:
        return render_html(self)


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
    begins = lay_out(logs)
    spans = account(logs, stretches, begins)
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
        ended=logs[-1].began + logs[-1].seconds,
        overlap=_overlap(logs),
        skipped=history.skipped,
        spans=tuple(spans),
        curves=tuple(trace(logs, stretches, begins)),
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
