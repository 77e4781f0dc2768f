"""A report of goodput in the text format that Prometheus scrapes."""

from __future__ import annotations

import os
from collections.abc import Mapping

from .._store_options import GivenOptions
from ._goodput import Goodput, goodput

Series = Mapping[str, float]
"""Values by kind, "" for a metric without kinds."""


def prometheus(
    report: Goodput | str | os.PathLike[str],
    *,
    store_options: GivenOptions | None = None,
) -> str:
    """Return a report, or that of the run at a path, as Prometheus text.

    Seconds are gauges, since a rollback turns productive time into lost time. Let a
    timer write it into a node exporter's folder of text files, or serve it.

    >>> from ckpt._store import open_store
    >>> from ckpt.resume import EventLog
    >>> EventLog.open(open_store("memory://doc-prometheus"), process=0).close()
    >>> print(prometheus("memory://doc-prometheus").splitlines()[2])
    ckpt_goodput_ratio{run="memory://doc-prometheus"} 0.0
    """
    if not isinstance(report, Goodput):
        report = goodput(report, store_options=store_options)
    run = _escape(report.url)
    lines: list[str] = []

    def add(name: str, kind: str, text: str, values: Series) -> None:
        lines.append(f"# HELP {name} {text}")
        lines.append(f"# TYPE {name} {kind}")
        for key, value in values.items():
            more = f',kind="{key}"' if key else ""
            lines.append(f'{name}{{run="{run}"{more}}} {value!r}')

    add(
        "ckpt_goodput_ratio",
        "gauge",
        "Share of the time that went into steps the newest state descends from.",
        {"": report.goodput},
    )
    add("ckpt_seconds", "gauge", "What the time went to.", report.seconds)
    add("ckpt_wall_seconds", "gauge", "All time.", {"": report.wall})
    add("ckpt_steps", "gauge", "Steps that were not lost.", {"": report.steps})
    add("ckpt_starts_total", "counter", "Starts of the training.", {"": report.starts})
    add(
        "ckpt_failures_total",
        "counter",
        "Starts that ended by a kill or an error.",
        {"": report.failures},
    )
    add(
        "ckpt_last_event_timestamp_seconds",
        "gauge",
        "When the run was last heard of, in seconds since 1970.",
        {"": report.ended},
    )
    if report.last_step is not None:
        text = "The newest step that was trained."
        add("ckpt_last_step", "gauge", text, {"": report.last_step})
    if report.last_commit is not None:
        name = "ckpt_last_commit_timestamp_seconds"
        text = "When the newest checkpoint was committed, in seconds since 1970."
        add(name, "gauge", text, {"": report.last_commit})
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    """Return a label's value: quoted as the format says, without control characters."""
    quoted = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return "".join(c if c.isprintable() else "\ufffd" for c in quoted)
