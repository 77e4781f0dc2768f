"""A report of goodput as a picture: steps over time, and what each start did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._account import KINDS, Curve
from ._render import COLOURS, render_head

if TYPE_CHECKING:
    from ._goodput import Goodput

_MOST_ROWS = 200
"""Starts that have a row of their own: more are drawn in one."""

_UNITS = ((86400 * 3, 86400, "days"), (7200, 3600, "hours"), (120, 60, "minutes"))


def draw(report: Goodput) -> Any:
    """Return a matplotlib figure of a report."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "expected matplotlib for a picture, found none: pip install "
            "'ckpt-jax[plot]'"
        ) from error
    size, unit = next(
        ((size, name) for least, size, name in _UNITS if report.wall >= least),
        (1, "seconds"),
    )
    rows = report.starts if report.starts <= _MOST_ROWS else 1
    height = min(0.8 + 0.22 * rows, 4.5)
    figure: Any = Figure(figsize=(10, 3.6 + height), layout="constrained")
    steps, starts = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": [2.8, height]}
    )
    _draw_steps(steps, report.curves, size)
    _draw_starts(starts, report, size, rows)
    starts.set_xlabel(f"{unit} since the first start")
    starts.set_xlim(0, max(report.wall / size, 1e-9))
    figure.legend(
        *starts.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(KINDS),
        fontsize=8,
        frameon=False,
        handlelength=1,
        columnspacing=1.2,
    )
    figure.suptitle(_shorten(render_head(report)), fontsize=10)
    return figure


def _draw_steps(axes: Any, curves: Sequence[Curve], size: float) -> None:
    for curve in curves:
        kept, lost = _cut(curve)
        for points, kind in ((lost, "lost"), (kept, "productive")):
            x = [seconds / size for seconds, _ in points]
            y = [step for _, step in points]
            axes.plot(x, y, color=COLOURS[kind], linewidth=1.8, solid_capstyle="butt")
    axes.set_ylabel("step")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _cut(curve: Curve) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return the points up to the last step that was kept, and those from there."""
    kept: list[tuple[float, float]] = []
    lost: list[tuple[float, float]] = []
    for now, step in curve.points:
        if step <= curve.kept:
            kept.append((now, step))
            continue
        if not lost and kept:
            before, low = kept[-1]
            share = (curve.kept - low) / (step - low)
            cut = (before + share * (now - before), float(curve.kept))
            kept.append(cut)
            lost.append(cut)
        lost.append((now, step))
    return kept, lost


def _draw_starts(axes: Any, report: Goodput, size: float, rows: int) -> None:
    for kind in KINDS:
        boxes: dict[int, list[tuple[float, float]]] = {}
        for span in report.spans:
            if span.kind == kind:
                row = span.log if rows > 1 else 0
                boxes.setdefault(row, []).append(
                    (span.begin / size, span.seconds / size)
                )
        share = report.seconds[kind] / report.wall if report.wall else 0.0
        label = f"{kind} {share:.1%}"
        colour = COLOURS[kind]
        for row, spans in boxes.items():
            thin = kind == "downtime" and rows > 1
            place = (row + 0.45, 0.1) if thin else (row + 0.08, 0.84)
            axes.broken_barh(spans, place, facecolors=colour, label=label)
            label = "_"
        if not boxes:
            axes.broken_barh([], (0, 0), facecolors=colour, label=label)
    axes.set_ylim(rows, 0)
    axes.set_yticks([])
    axes.set_ylabel("starts" if rows > 1 else "")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _shorten(text: str) -> str:
    """Return a title that fits, and that matplotlib does not read as a formula."""
    shown = text if len(text) <= 110 else f"{text[:50]} ... {text[-55:]}"
    return "".join(c if c.isprintable() else "?" for c in shown).replace("$", r"\$")
