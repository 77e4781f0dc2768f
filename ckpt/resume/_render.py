"""A report of goodput as people read it: a table, on a terminal or in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._goodput import Goodput

COLOURS = {
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

_BAR = 24


def render_text(report: Goodput) -> str:
    """Return a table of what the time went to, with shares and bars."""
    wall = report.wall
    lines = [render_head(report)]
    for kind, seconds in report.seconds.items():
        share = seconds / wall if wall else 0.0
        bar = "#" * round(share * _BAR)
        line = f"{kind:<10} {render_duration(seconds):>12} {share:>7.2%}  {bar}"
        lines.append(line.rstrip())
    lines.append(f"{'wall':<10} {render_duration(wall):>12}")
    return "\n".join([*lines, *_notes(report)])


def render_html(report: Goodput) -> str:
    """Return the same for a notebook, with the meaning of each kind."""
    wall = report.wall or 1.0
    parts = [(k, s, s / wall) for k, s in report.seconds.items()]
    bar = "".join(
        f'<div title="{kind}" style="width:{share:.4%};background:{COLOURS[kind]}">'
        "</div>"
        for kind, _, share in parts
    )
    rows = "".join(
        f'<tr><td><span style="color:{COLOURS[kind]}">&#9632;</span> {kind}</td>'
        f"<td>{render_duration(seconds)}</td><td>{share:.2%}</td>"
        f'<td style="text-align:left">{_MEANINGS[kind]}</td></tr>'
        for kind, seconds, share in parts
    )
    head = "; ".join([render_head(report), *_notes(report)])
    head = head.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<p>{head}</p><div style="display:flex;height:1em;width:40em">{bar}</div>'
        f"<table><tr><th>kind</th><th>time</th><th>share</th><th></th></tr>{rows}"
        "</table>"
    )


def render_head(report: Goodput) -> str:
    """Return the report in one line."""
    counts = (
        _count(report.steps, "step"),
        _count(report.starts, "start"),
        _count(report.failures, "failure"),
    )
    return (
        f"goodput {report.goodput:.1%} of {render_duration(report.wall)}: "
        f"{', '.join(counts)} - {report.url}"
    )


def render_duration(seconds: float) -> str:
    """Return a time as people read it.

    >>> [render_duration(x) for x in (0.25, 75, 7325, 200000)]
    ['0.25 s', '1 min 15 s', '2 h 02 min', '2 d 08 h']
    """
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 24:
        return f"{hours} h {minutes:02} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days:,} d {hours:02} h"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _notes(report: Goodput) -> list[str]:
    notes: list[str] = []
    if report.overlap:
        shown = render_duration(report.overlap)
        notes.append(f"by their clocks, starts overlap for {shown}: all of it counts")
    if report.skipped:
        lines = _count(report.skipped, "line")
        notes.append(f"{lines} of the logs could not be read")
    return notes
