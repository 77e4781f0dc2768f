"""Draws the results: times, remeshes and memory, one PNG each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

from benchmarks._campaign import Record
from benchmarks._cases import find_case
from benchmarks._overlap import RETURN, STALLED
from benchmarks._summary import MIB, Summary, read_amplification
from benchmarks.contenders import CONTENDERS

_COLORS = {
    "ckpt": "#1f6feb",
    "orbax v0": "#d9822b",
    "orbax v0 zarr3": "#e8a962",
    "orbax v1": "#b5561c",
    "jax": "#7b5ea7",
    "safetensors": "#4c9f70",
    "torch dcp": "#c0455e",
    "floor": "#9aa0a6",
}
_ORDER = [contender.name for contender in CONTENDERS]
_TIMES = (
    ("a", "save"),
    ("a", "restore same"),
    ("r", "restore replicated"),
    ("b", "save"),
    ("b", "restore same"),
    ("b", "metadata"),
    ("c", "save"),
    ("c", "restore same"),
    ("j4", "save"),
    ("j4", "restore same"),
    ("j4", "restore 4->2"),
    ("j4", "restore 4->1"),
    ("j2", "restore 2->4"),
    ("j1", "restore 1->4"),
    ("s1", RETURN),
    ("s1", STALLED),
    ("s2", RETURN),
    ("s2", STALLED),
)


def draw_plots(
    records: Sequence[Record], summaries: Sequence[Summary], *, out: Path
) -> Iterator[Path]:
    """Writes the figures that the results allow, and yields their paths."""
    for medium in dict.fromkeys(x.medium for x in summaries):
        chosen = [x for x in summaries if x.medium == medium]
        timed = [x for x in records if x.medium == medium and x.round]
        for name, draw in (("times", _draw_times), ("memory", _draw_memory)):
            figure = draw(chosen, timed)
            if figure is not None:
                yield _write(figure, out / f"{name}-{medium}.png")
        for case in ("d", "e"):
            figure = _draw_remeshes([x for x in chosen if x.case == case], case=case)
            if figure is not None:
                yield _write(figure, out / f"remesh-{case}-{medium}.png")


def _write(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _draw_times(summaries: Sequence[Summary], records: Sequence[Record]) -> Any:
    panels = [
        (case, operation, rows)
        for case, operation in _TIMES
        if (rows := _pick(summaries, case=case, operation=operation))
    ]
    if not panels:
        return None
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.6 * columns, 2.6 * lines), squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (case, operation, rows) in zip(axes.flat, panels, strict=False):
        _draw_bars(axis, rows, [row.seconds for row in rows], unit="s")
        for place, row in enumerate(rows):
            dots = [
                x.seconds
                for x in records
                if (x.case, x.operation, x.contender)
                == (case, operation, row.contender)
            ]
            axis.plot(dots, [place] * len(dots), ".", color="black", ms=3, alpha=0.5)
        axis.set_title(f"({case}) {operation}", loc="left")
        axis.set_xlabel("seconds, median (dots: rounds)")
    _title(figure, f"Time on {summaries[0].medium}; shorter is better")
    return figure


def _draw_memory(summaries: Sequence[Summary], _: Sequence[Record]) -> Any:
    panels = [
        (operation, rows)
        for operation in ("save", "restore same")
        if (rows := _pick(summaries, case="a", operation=operation))
    ]
    if not panels:
        return None
    figure, axes = plt.subplots(
        1, len(panels), figsize=(5.6 * len(panels), 3.2), squeeze=False
    )
    for axis, (operation, rows) in zip(axes.flat, panels, strict=True):
        _draw_bars(axis, rows, [row.added_bytes / MIB for row in rows], unit="MiB")
        axis.set_title(f"(a) {operation}", loc="left")
        axis.set_xlabel("peak resident memory added, MiB")
    stored = panels[0][1][0].stored_bytes / MIB
    _title(figure, f"Memory beside the live state, {stored:.4g} MiB stored")
    return figure


def _draw_remeshes(summaries: Sequence[Summary], *, case: str) -> Any:
    targets = list(find_case(case).targets)
    names = [x for x in _ORDER if any(row.contender == x for row in summaries)]
    if not names:
        return None
    found = {(x.contender, x.operation): x for x in summaries}
    figure, (times, reads) = plt.subplots(
        2, 1, figsize=(max(8.0, 1.7 * len(targets)), 6.4), sharex=True
    )
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        places: list[float] = []
        seconds: list[float] = []
        ratios: list[float] = []
        for place, target in enumerate(targets):
            row = found.get((name, f"restore {target}"))
            if row is not None:
                places.append(place + (number - (len(names) - 1) / 2) * width)
                seconds.append(row.seconds)
                ratios.append(read_amplification(row) or 0.0)
        color = _COLORS.get(name)
        times.bar(places, seconds, width * 0.92, color=color, label=name)
        reads.bar(places, ratios, width * 0.92, color=color)
    times.set_ylabel("seconds, median")
    times.legend(ncols=len(names), frameon=False, loc="upper left", fontsize=8)
    times.set_ylim(top=times.get_ylim()[1] * 1.15)
    reads.axhline(1.0, color="black", lw=0.8, ls=":")
    reads.set_ylabel("bytes read / bytes stored")
    reads.set_xticks(range(len(targets)), targets)
    reads.set_xlabel("restored onto (no bar below: read through mmap, not counted)")
    for axis in (times, reads):
        _strip(axis)
    _title(figure, f"{find_case(case).title}, {summaries[0].medium}")
    return figure


def _pick(summaries: Sequence[Summary], *, case: str, operation: str) -> list[Summary]:
    rows = [x for x in summaries if (x.case, x.operation) == (case, operation)]
    return sorted(rows, key=lambda x: _ORDER.index(x.contender))


def _draw_bars(
    axis: Any, rows: Sequence[Summary], values: Sequence[float], *, unit: str
) -> None:
    places = list(range(len(rows)))
    colors = [_COLORS.get(row.contender, "#9aa0a6") for row in rows]
    axis.barh(places, values, color=colors, height=0.7)
    axis.set_yticks(places, [row.contender for row in rows])
    axis.invert_yaxis()
    reach = max([*values, *(row.slowest for row in rows if unit == "s")])
    axis.set_xlim(0, reach * 1.3 or 1.0)
    for place, value in zip(places, values, strict=True):
        axis.annotate(
            f"{value:.3g}",
            (reach * 1.03, place),
            va="center",
            fontsize=8,
            annotation_clip=False,
        )
    _strip(axis)


def _strip(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)


def _title(figure: Any, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontweight="bold")
    figure.tight_layout()
