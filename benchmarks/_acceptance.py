"""The figures ckpt is judged by, each with its target where one is set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks._cases import Case, find_case
from benchmarks._overlap import COPY, LOST, RETURN, STALLED
from benchmarks._summary import MIB, Summary, largest_share, read_amplification
from benchmarks._trees import FULL, QUICK, logical_bytes, shape_tree

_PEER = "orbax v0"

# Upper bounds of ckpt's median over the other's, by (medium, case, operation, other).
TIME_TARGETS: dict[tuple[str, str, str, str], float] = {
    ("tmpfs", "a", "save", _PEER): 1 / 2.5,
    ("tmpfs", "a", "restore same", _PEER): 1 / 1.4,
    ("tmpfs", "r", "restore replicated", _PEER): 1 / 1.2,
    ("tmpfs", "b", "save", _PEER): 1 / 25,
    ("tmpfs", "b", "restore same", _PEER): 1 / 10,
    ("tmpfs", "b", "metadata", _PEER): 1 / 50,
    ("tmpfs", "c", "save", _PEER): 1 / 2,
    ("tmpfs", "c", "restore same", _PEER): 1 / 1.4,
    ("disk", "a", "save", _PEER): 1 / 1.4,
    ("disk", "a", "save", "floor"): 1.3,
    ("disk", "a", "restore same", _PEER): 1.0,
    ("disk", "a", "restore same", "floor"): 1.3,
}
# An upper bound of a remesh's median over the same-mesh restore's.
REMESH_TARGET = 1.4
READ_TARGET = 1.05
# Of the largest process of a job over an even share, written or read.
SHARE_TARGET = 1.1
# Less than this lost in 20 steps is noise.
_NOISE_SECONDS = 0.001
SAVE_MEMORY_MIB = 64.0
RESTORE_MEMORY_MIB = 256.0


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
        *_judge_jobs(found),
        *_judge_overlaps(found),
    ]


_Found = dict[tuple[str, str, str, str], Summary]


def _judge_times(found: _Found) -> Iterator[Figure]:
    for key, target in TIME_TARGETS.items():
        medium, case, operation, other = key
        ours = found.get((medium, case, operation, "ckpt"))
        theirs = found.get(key)
        if ours and theirs:
            yield Figure(
                label=f"{medium} ({case}) {operation}: ckpt / {other}",
                value=ours.seconds / theirs.seconds,
                unit="x",
                target=target,
            )


def _judge_remeshes(found: _Found) -> Iterator[Figure]:
    for name in ("r", "d", "e"):
        yield from _judge_case(found, case=find_case(name))


def _judge_case(found: _Found, *, case: Case) -> Iterator[Figure]:
    for medium in ("tmpfs", "disk"):
        same = found.get((medium, case.name, "restore same", "ckpt"))
        for target in case.targets:
            ours = found.get((medium, case.name, f"restore {target}", "ckpt"))
            if ours is None:
                continue
            label = f"{medium} ({case.name}) restore {target}"
            if same and target != "same":
                yield Figure(
                    label=f"{label}: / same mesh",
                    value=ours.seconds / same.seconds,
                    unit="x",
                    target=REMESH_TARGET,
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


def _judge_jobs(found: _Found) -> Iterator[Figure]:
    for (medium, case, operation, contender), ours in found.items():
        if contender != "ckpt" or not case.startswith("j"):
            continue
        label = f"{medium} ({case}) {operation}"
        theirs = found.get((medium, case, operation, _PEER))
        if theirs:
            yield Figure(
                label=f"{label}: ckpt / {_PEER}",
                value=ours.seconds / theirs.seconds,
                unit="x",
                target=1.0,
            )
        wrote = operation == "save"
        share = largest_share(
            ours.process_written_bytes if wrote else ours.process_read_bytes
        )
        if share is not None:
            verb = "written" if wrote else "read"
            yield Figure(
                label=f"{label}: largest / even share {verb}",
                value=share,
                unit="x",
                target=SHARE_TARGET,
            )
        if not wrote:
            yield Figure(
                label=f"{label}: bytes read / stored",
                value=read_amplification(ours) or 0.0,
                unit="x",
                target=READ_TARGET,
            )


def _judge_overlaps(found: _Found) -> Iterator[Figure]:
    for (medium, case, operation, contender), ours in found.items():
        if contender != "ckpt":
            continue
        label = f"{medium} ({case}) {operation}"
        copied = found.get((medium, case, COPY, "ckpt"))
        if operation == RETURN and copied:
            yield Figure(
                label=f"{label}: / plain copy",
                value=ours.seconds / copied.seconds,
                unit="x",
                target=1.0,
            )
        theirs = found.get((medium, case, operation, _PEER))
        if operation in (LOST, STALLED) and theirs:
            yield Figure(
                label=f"{label}: ckpt / {_PEER}",
                value=max(ours.seconds, _NOISE_SECONDS)
                / max(theirs.seconds, _NOISE_SECONDS),
                unit="x",
                target=1.0 if operation == LOST else None,
            )


def format_figures(figures: Sequence[Figure]) -> str:
    """One line for each figure: value, target, verdict."""
    lines = [f"{'acceptance figure':<58} {'value':>10} {'target':>10}  verdict"]
    for figure in figures:
        value = f"{figure.value:.2f} {figure.unit}"
        target = "-" if figure.target is None else f"<= {figure.target:g}"
        lines.append(f"{figure.label:<58} {value:>10} {target:>10}  {figure.verdict}")
    return "\n".join(lines)
