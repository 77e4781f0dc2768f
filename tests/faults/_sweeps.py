"""Sweeps: one fault at call 1, 2, 3 ... of a piece of work, and a look after each."""

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ckpt
from tests._harness.crashpoint import Mode
from tests._harness.forkserver import Fault, ForkServer, Job, Outcome, sweep
from tests.faults._oracle import State, find_complaint
from tests.faults._trees import make_tree

JOBS = "tests.faults._jobs"
MODULES = ("jax", "numpy", "tensorstore", "ckpt", JOBS)


@dataclass(frozen=True, slots=True)
class Work:
    """A job on a run, the states that it may leave, and a run to start from.

    `states` begins with the state before and ends with the one after the job. What
    raises StoreError must have changed nothing if it is `atomic`.
    """

    job: str
    args: Sequence[Any]
    states: Sequence[State]
    start: Path | None = None
    atomic: bool = True


@dataclass(frozen=True, slots=True)
class Figures:
    """How many faults were met, how the jobs ended, and what was found wrong."""

    faults: int
    ends: Counter[str]
    complaints: tuple[str, ...]

    def __str__(self) -> str:
        ends = ", ".join(f"{name} {count}" for name, count in sorted(self.ends.items()))
        return f"{self.faults} faults ({ends}), {len(self.complaints)} complaints"


def run_sweep(
    server: ForkServer,
    work: Work,
    mode: Mode,
    folder: Path,
    *,
    stride: int = 1,
    thorough: bool = True,
) -> Figures:
    """Do the work with the fault at every call (every `stride`-th) in turn."""

    def make(turn: int) -> Job:
        number = 1 + (turn - 1) * stride
        run = folder / f"run{turn}"
        if work.start is not None:
            shutil.copytree(work.start, run)
        return Job(
            f"{JOBS}:{work.job}",
            (str(run), *work.args),
            Fault(str(run), number, mode),
        )

    ends: Counter[str] = Counter()
    complaints: list[str] = []
    for turn, job, outcome in sweep(server, make):
        ends[end_of(outcome)] += 1
        run = Path(job.args[0])
        complaint = judge(outcome, mode)
        if not complaint:
            legal = legal_states(outcome, work)
            complaint = find_complaint(run, legal, thorough=thorough)
        if complaint:
            complaints.append(f"{mode} at {1 + (turn - 1) * stride}: {complaint}")
        shutil.rmtree(run, ignore_errors=True)
    return Figures(ends.total(), ends, tuple(complaints))


def end_of(outcome: Outcome) -> str:
    """Name the way a job ended, by its error if it raised one."""
    return outcome.error if outcome.status == "raised" else outcome.status


def judge(outcome: Outcome, mode: Mode) -> str:
    """Say what is wrong with the way a job ended, "" if nothing is."""
    end = end_of(outcome)
    legal = {"kill": ["killed"], "torn": ["killed"], "short": ["returned"]}
    if end not in legal.get(mode, ["returned", "StoreError", "CommitUnknown"]):
        return f"ended with {end}: {outcome.message}\n{outcome.stderr}"
    reason = "Input/output error" if mode == "eio" else "No space left"
    if end == "StoreError" and reason not in outcome.message:
        return f"expected {reason!r} in the message, found {outcome.message}"
    return ""


def legal_states(outcome: Outcome, work: Work) -> Sequence[State]:
    """Return the states that a reader may find after a job that ended so."""
    match end_of(outcome):
        case "returned":
            return work.states[-1:]
        case "StoreError" if work.atomic:
            return work.states[:1]
        case _:
            return work.states


def first_save(folder: Path, job: str = "save", more: Sequence[Any] = ()) -> Work:
    """Save into a run that does not exist."""
    return Work(job, (1, 1, False, *more), ({}, {1: 1}))


def second_save(folder: Path, job: str = "save", more: Sequence[Any] = ()) -> Work:
    """Save into a run that has one step."""
    states = ({1: 1}, {1: 1, 2: 2})
    return Work(job, (2, 2, False, *more), states, make_run(folder, {1: 1}))


def overwriting(folder: Path, job: str = "save", more: Sequence[Any] = ()) -> Work:
    """Save another tree over the newer of two steps."""
    states = ({1: 1, 2: 2}, {1: 1, 2: 22})
    return Work(job, (2, 22, True, *more), states, make_run(folder, states[0]))


def pruning(folder: Path, job: str = "prune") -> Work:
    """Remove two of three steps, one after the other."""
    states = ({1: 1, 2: 2, 3: 3}, {2: 2, 3: 3}, {3: 3})
    return Work(job, (1,), states, make_run(folder, states[0]), atomic=False)


def make_run(folder: Path, state: State) -> Path:
    """Make a run of such steps to start from."""
    run = folder / "start"
    for step, seed in state.items():
        ckpt.save(make_tree(seed), None, run, step=step)
    return run
