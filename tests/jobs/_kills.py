"""Kill or stop one process of a job while it saves, and look at what is left."""

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests._harness.forkserver import Fault
from tests._harness.jobs import Answer, Job, JobServer, Setup, wait_until
from tests.faults._oracle import find_complaint
from tests.jobs._matrix import WORK, find_failed

How = Literal["kill", "stop"]

BARRIER_SECONDS = 3.0
TRIO = Setup(3)

PATIENCE = 25.0
"""Seconds within which every process that is left must have its answer."""

NAMING = ("BarrierTimeout", "CommitUnknown")
LATE = (*NAMING, "StoreError")
"""What one that was stopped may raise: others may have removed its attempt."""


@dataclass(frozen=True, slots=True)
class Instant:
    """When a process is struck: at a call that changes files, or after a delay."""

    victim: int
    call: int = 0
    delay: float = 0.0

    def __str__(self) -> str:
        when = f"call {self.call}" if self.call else f"{1000 * self.delay:.0f} ms"
        return f"process {self.victim} at {when}"


@dataclass(frozen=True, slots=True)
class Figures:
    """How the processes that were left ended, and what was found wrong."""

    strikes: int
    committed: int
    ends: Counter[str]
    complaints: tuple[str, ...]

    def __str__(self) -> str:
        ends = ", ".join(f"{name} {count}" for name, count in sorted(self.ends.items()))
        return (
            f"{self.strikes} strikes, {self.committed} steps committed all the same; "
            f"others: {ends}; {len(self.complaints)} complaints"
        )


def strike_saves(
    server: JobServer,
    folder: Path,
    how: How,
    *,
    instants: int,
    victims: Sequence[int] = (0, 1, 2),
    setup: Setup = TRIO,
    saver: str = "save_seed",
    seed: int = 0,
    patience: float = PATIENCE,
) -> Figures:
    """Strike each victim at random instants of a save, each in a job of its own."""
    ends: Counter[str] = Counter()
    complaints: list[str] = []
    committed = strikes = 0
    chosen = random.Random(seed)
    calls, seconds = _measure(server, folder / "measured", setup, saver)
    for victim in victims:
        for instant in _instants(chosen, victim, calls[victim], seconds, instants):
            run = folder / f"{how}-{victim}-{strikes}"
            answers, found = strike(
                server, run, how, instant, setup=setup, saver=saver, patience=patience
            )
            strikes += 1
            committed += (run / "steps" / "2.json").exists()
            ends.update(a.error or a.status for a in answers if a.member != victim)
            complaints += [f"{how} {instant}: {complaint}" for complaint in found]
    return Figures(strikes, committed, ends, tuple(complaints))


def _measure(
    server: JobServer, run: Path, setup: Setup, saver: str
) -> tuple[list[int], float]:
    """Return how many calls each process makes in a second save, and its seconds."""
    counting = {n: Fault(str(run)) for n in range(setup.processes)}
    with server.start(setup) as job:
        job.run(f"{WORK}:save_seed", str(run), 1, 1)
        begun = time.monotonic()
        answers = job.run(
            f"{WORK}:{saver}", str(run), 2, 2, BARRIER_SECONDS, faults=counting
        )
        seconds = time.monotonic() - begun
    if failed := find_failed("a save that nobody strikes", answers):
        raise RuntimeError("\n".join(failed))
    return [answer.calls for answer in answers], seconds


def _instants(
    chosen: random.Random, victim: int, calls: int, seconds: float, count: int
) -> Iterator[Instant]:
    for number in range(count):
        if (number + victim) % 2 == 0 and calls:
            yield Instant(victim, call=chosen.randint(1, calls))
        else:
            yield Instant(victim, delay=chosen.uniform(0, seconds))


def strike(
    server: JobServer,
    run: Path,
    how: How,
    instant: Instant,
    *,
    setup: Setup = TRIO,
    saver: str = "save_seed",
    patience: float = PATIENCE,
) -> tuple[tuple[Answer, ...], list[str]]:
    """Save step 1, strike while step 2 is saved; return the ends, and complaints."""
    run.mkdir()
    with server.start(setup) as job:
        first = job.run(f"{WORK}:save_seed", str(run), 1, 1)
        if failed := find_failed("step 1", first):
            return first, failed
        answers = _strike(job, run, how, instant, saver, patience)
        complaints = _judge(answers, run, instant.victim)
        if how == "stop" and len(job.alive) == setup.processes:
            complaints += _go_on(job, run, 3)
    if how == "kill":
        with server.start(setup) as job:
            complaints += _go_on(job, run, 3)
    kept = {1: 1, 3: 3} if (run / "steps" / "3.json").exists() else {1: 1}
    if complaint := find_complaint(run, [kept, {**kept, 2: 2}]):
        complaints.append(complaint)
    return answers, complaints


def _strike(
    job: Job, run: Path, how: How, instant: Instant, saver: str, patience: float
) -> tuple[Answer, ...]:
    victim = instant.victim
    fault = Fault(str(run), at=instant.call, mode=how) if instant.call else None
    job.begin(
        f"{WORK}:{saver}",
        *(str(run), 2, 2, BARRIER_SECONDS),
        faults={victim: fault} if fault else None,
    )
    if not fault:
        time.sleep(instant.delay)
        (job.kill if how == "kill" else job.stop)(victim)
    others = [member for member in job.alive if member != victim]
    answers = job.collect(others, timeout=patience)
    job.resume(victim)
    return (*answers, *job.collect([victim], timeout=patience))


def _judge(answers: Sequence[Answer], run: Path, victim: int) -> list[str]:
    """Say which answers are not what they must be."""
    committed = (run / "steps" / "2.json").exists()
    complaints: list[str] = []
    for answer in answers:
        who = f"process {answer.member}"
        if answer.member == victim and answer.status == "killed":
            continue
        if answer.status == "aborted":
            continue
        if answer.status == "returned":
            if not committed:
                complaints.append(f"{who} returned, and nothing is committed")
        elif answer.status != "raised" or answer.error not in (
            LATE if answer.member == victim else NAMING
        ):
            complaints.append(f"{who} {answer}\n{answer.output[-3000:]}")
        elif answer.error == "BarrierTimeout" and committed:
            complaints.append(f"{who} raised {answer.message!r}, but it is committed")
        elif answer.member != victim and f"process {victim}" not in answer.message:
            complaints.append(f"{who} does not name {victim}: {answer.message}")
    return complaints


def _go_on(job: Job, run: Path, step: int) -> list[str]:
    """Save and restore another step in a job."""
    saved = job.run(f"{WORK}:save_seed", str(run), step, step)
    if failed := find_failed(f"step {step}", saved):
        return failed
    restored = job.run(f"{WORK}:restore_seed", str(run), step, step)
    wrong = [f"step {step}: {a.value}" for a in restored if a.value]
    return find_failed(f"restore of step {step}", restored) or wrong


def wait_for_stop(job: Job, member: int) -> None:
    """Wait until the shim has stopped a member."""
    wait_until(lambda: job.is_stopped(member))
