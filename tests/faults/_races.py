"""Races of processes on one run: writers for a step, and writers, pruners, readers."""

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests._harness.forkserver import ForkServer, Job
from tests.faults._oracle import find_complaint, left_over
from tests.faults._sweeps import JOBS, end_of


@dataclass(frozen=True, slots=True)
class Figures:
    """How the processes ended, and what was found wrong."""

    ends: Counter[str]
    complaints: tuple[str, ...]

    def __str__(self) -> str:
        ends = ", ".join(f"{name} {count}" for name, count in sorted(self.ends.items()))
        return f"{ends}, {len(self.complaints)} complaints"


def race_for_a_step(
    server: ForkServer,
    folder: Path,
    *,
    rounds: int,
    writers: int = 6,
    saver: str = "save",
) -> Figures:
    """Let writers save one step at the same time: one commits, the others are told."""
    ends: Counter[str] = Counter()
    complaints: list[str] = []
    for turn in range(rounds):
        run, meeting = folder / f"run{turn}", folder / f"meeting{turn}"
        meeting.mkdir()
        jobs = [
            Job(
                f"{JOBS}:save_when_all_are_ready",
                (saver, str(run), 1, seed, str(meeting), writers),
            )
            for seed in range(writers)
        ]
        outcomes = [end_of(outcome) for outcome in server.run(*jobs)]
        ends.update(outcomes)
        winners = [n for n, end in enumerate(outcomes) if end == "returned"]
        expected = {"returned": 1, "StepExists": writers - 1}
        if Counter(outcomes) != expected:
            complaints.append(f"round {turn}: {outcomes}")
        elif found := left_over(run):
            complaints.append(f"round {turn}: left {found}")
        elif complaint := find_complaint(run, [{1: winners[0]}]):
            complaints.append(f"round {turn}: {complaint}")
        shutil.rmtree(run)
    return Figures(ends, tuple(complaints))


def race_on_a_run(
    server: ForkServer,
    folder: Path,
    *,
    saves: int,
    jobs: Sequence[tuple[str, Sequence[object]]] | None = None,
) -> Figures:
    """Save step after step while others prune and read; both writers' steps stay.

    By default one process prunes and two read. `jobs` replaces them.
    """
    run, stop = str(folder / "run"), str(folder / "stop")
    others = jobs or (
        ("prune_until", (2, 24 * 3600.0)),
        ("read_until", ()),
        ("read_until", ()),
    )
    outcomes = server.run(
        Job(f"{JOBS}:save_many", (run, 1, saves, stop), timeout=300),
        *(
            Job(f"{JOBS}:{name}", (run, stop, *more), timeout=300)
            for name, more in others
        ),
    )
    ends: Counter[str] = Counter(end_of(outcome) for outcome in outcomes)
    complaints = [
        f"{outcome.error}: {outcome.message}\n{outcome.stderr}"
        for outcome in outcomes
        if outcome.status != "returned"
    ]
    for outcome in outcomes:
        if isinstance(outcome.value, dict):
            ends.update(outcome.value)
        if isinstance(outcome.value, int):
            ends["pruned"] += outcome.value
    newest = {saves - 1: saves - 1, saves: saves}
    full = {step: step for step in range(1, saves + 1)}
    legal = [{s: s for s in full if s >= first} for first in range(1, saves)]
    if complaint := find_complaint(folder / "run", [newest, *legal]):
        complaints.append(complaint)
    return Figures(ends, tuple(complaints))
