"""The figures ckpt is judged by, each with its target where one is set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks._cases import Case, find_case
from benchmarks._summary import MIB, Summary, read_amplification
from benchmarks._trees import FULL, QUICK, logical_bytes, shape_tree

_PEER = "orbax v0"

# Upper bounds of ckpt's median over the other's, by (medium, case, operation, other).
# A pair without an entry is printed without a target.
TIME_TARGETS: dict[tuple[str, str, str, str], float] = {}
# Upper bounds of a remesh's median over the same-mesh restore's, by target mesh.
REMESH_TARGETS: dict[str, float] = {}
READ_TARGET = 1.05
SAVE_MEMORY_MIB = 64.0
RESTORE_MEMORY_MIB = 256.0

_TIMES = (
    ("tmpfs", "a", "save", _PEER),
    ("tmpfs", "a", "restore same", _PEER),
    ("tmpfs", "r", "restore replicated", _PEER),
    ("tmpfs", "b", "save", _PEER),
    ("tmpfs", "b", "restore same", _PEER),
    ("tmpfs", "b", "metadata", _PEER),
    ("tmpfs", "c", "save", _PEER),
    ("tmpfs", "c", "restore same", _PEER),
    ("disk", "a", "save", _PEER),
    ("disk", "a", "save", "floor"),
    ("disk", "a", "restore same", _PEER),
    ("disk", "a", "restore same", "floor"),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure; `target` is an upper bound, None when none is set."""

    label: str
    value: float
    unit: str
    target: float | None

    @property
    def verdict(self) -> str:
        if self.target is None:
            return "no target"
        return "met" if self.value <= self.target else "MISSED"


def judge_summaries(summaries: Sequence[Summary], *, quick: bool) -> list[Figure]:
    """Every figure whose parts were measured."""
    found = {(x.medium, x.case, x.operation, x.contender): x for x in summaries}
    return [
        *_judge_times(found),
        *_judge_remeshes(found),
        *_judge_memory(found, quick=quick),
    ]


_Found = dict[tuple[str, str, str, str], Summary]


def _judge_times(found: _Found) -> Iterator[Figure]:
    for key in _TIMES:
        medium, case, operation, other = key
        ours = found.get((medium, case, operation, "ckpt"))
        theirs = found.get(key)
        if ours and theirs:
            yield Figure(
                label=f"{medium} ({case}) {operation}: ckpt / {other}",
                value=ours.seconds / theirs.seconds,
                unit="x",
                target=TIME_TARGETS.get(key),
            )


def _judge_remeshes(found: _Found) -> Iterator[Figure]:
    for case in (find_case("d"), find_case("e")):
        yield from _judge_case(found, case=case)


def _judge_case(found: _Found, *, case: Case) -> Iterator[Figure]:
    for medium in ("tmpfs", "disk"):
        same = found.get((medium, case.name, "restore same", "ckpt"))
        for target in case.targets:
            ours = found.get((medium, case.name, f"restore {target}", "ckpt"))
            if ours is None or same is None:
                continue
            label = f"{medium} ({case.name}) restore {target}"
            if target != "same":
                yield Figure(
                    label=f"{label}: / same mesh",
                    value=ours.seconds / same.seconds,
                    unit="x",
                    target=REMESH_TARGETS.get(target),
                )
            yield Figure(
                label=f"{label}: bytes read / stored",
                value=read_amplification(ours) or 0.0,
                unit="x",
                target=READ_TARGET,
            )


def _judge_memory(found: _Found, *, quick: bool) -> Iterator[Figure]:
    shapes = shape_tree("matrices", scale=QUICK if quick else FULL)
    data = logical_bytes(shapes) / MIB
    for medium in ("tmpfs", "disk"):
        saved = found.get((medium, "a", "save", "ckpt"))
        if saved:
            yield Figure(
                label=f"{medium} (a) save: memory added",
                value=saved.added_bytes / MIB,
                unit="MiB",
                target=SAVE_MEMORY_MIB,
            )
        restored = found.get((medium, "a", "restore same", "ckpt"))
        if restored:
            yield Figure(
                label=f"{medium} (a) restore: memory added over the data",
                value=restored.added_bytes / MIB - data,
                unit="MiB",
                target=RESTORE_MEMORY_MIB,
            )


def format_figures(figures: Sequence[Figure]) -> str:
    """One line for each figure: value, target, verdict."""
    lines = [f"{'acceptance figure':<52} {'value':>10} {'target':>10}  verdict"]
    for figure in figures:
        value = f"{figure.value:.2f} {figure.unit}"
        target = "-" if figure.target is None else f"<= {figure.target:g}"
        lines.append(f"{figure.label:<52} {value:>10} {target:>10}  {figure.verdict}")
    return "\n".join(lines)
