"""A training that is struck again and again, and what must be true at its end.

The naive model of what it should have become is the same training without a strike: the
same processes for the same steps, in jobs that begin and end in order.
"""

import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import ckpt
from ckpt.resume import goodput
from tests._harness.jobs import Answer, Job, JobServer, wait_until
from tests.resume._jobs import TRAIN, make_spec, start_job
from tests.resume._train import read_log

MODULES = ("ckpt", "ckpt.resume", "tests.resume._train")
SIZES = (2, 1, 2)


@dataclass(frozen=True, slots=True)
class Soak:
    """What was done, and complaints."""

    strikes: int
    starts: int
    steps: int
    lost: int
    share: float
    off: float
    complaints: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.strikes} strikes, {self.starts} starts, {self.steps} steps, "
            f"{self.lost} trained again, goodput {self.share:.1%}, report off the "
            f"clock by {self.off:.2%}, {len(self.complaints)} complaints"
        )


def soak(
    server: JobServer,
    folder: Path,
    *,
    strikes: int,
    seed: int,
    every: int = 4,
    forgets: bool = False,
) -> Soak:
    """Strike a training so often, let it end, and compare.

    One that `forgets` its data's position must be found out.
    """
    chance = random.Random(seed)
    cache = folder / "cache"
    complaints: list[str] = []
    starts: list[tuple[int, int]] = []
    known: set[int] = set()
    until = 1_000_000
    began = 0.0
    for number in range(strikes + 1):
        processes = SIZES[number % len(SIZES)]
        if number == strikes:
            until = max(known, default=0) + 10
        spec = _spec(folder, "run", number, until=until, every=every, pause=0.01)
        spec["forgets"] = forgets
        with start_job(server, processes, cache) as job:
            # The clock begins with the first process that trains, as its log does.
            began = began or time.time()
            job.begin(TRAIN, spec)
            kind = "end"
            if number < strikes:
                _wait_for_steps(job, spec, processes, chance.randrange(1, 3 * every))
                kind = chance.choice(["kill", "term"])
                _strike(job, kind, chance.randrange(processes), processes)
            ends = job.collect(timeout=120)
        complaints += _judge(number, kind, ends)
        now = set(ckpt.steps(spec["run"]))
        if gone := known - now:
            complaints.append(
                f"start {number}: committed steps {sorted(gone)} are gone"
            )
        began_at = _first_step(spec, processes)
        if began_at is not None and began_at != max(known, default=0):
            complaints.append(
                f"start {number}: began behind {began_at}, not {max(known, default=0)}"
            )
        starts.append((processes, max(now, default=0)))
        known = now
    clock = time.time() - began
    report = goodput(str(folder / "run"))
    off = abs(report.wall - clock) / clock
    if off > 0.02:
        complaints.append(f"goodput: {report.wall:.2f} s, the clock: {clock:.2f} s")
    if abs(sum(report.seconds.values()) - report.wall) > 1e-6:
        complaints.append(f"goodput does not add up: {report.seconds}")
    complaints += _compare_with_model(server, folder, starts, cache, every)
    logs = [_spec(folder, "run", number)["log"] for number in range(strikes + 1)]
    trained = sum(len(read_log(log, 0)) for log in logs)
    return Soak(
        strikes,
        report.starts,
        max(known),
        trained - max(known),
        report.goodput,
        off,
        tuple(complaints),
    )


def _spec(folder: Path, name: str, number: int, **more: Any) -> dict[str, Any]:
    spec = make_spec(folder, name, **more)
    return spec | {"log": f"{spec['log']}.{number}"}


def _wait_for_steps(job: Job, spec: dict[str, Any], processes: int, count: int) -> None:
    wait_until(
        lambda: min(len(read_log(spec["log"], n)) for n in range(processes)) >= count,
        timeout=120,
    )


def _strike(job: Job, kind: str, member: int, processes: int) -> None:
    if kind == "term":
        job.tell(member, signal.SIGTERM)
        return
    job.kill(member)
    # As a scheduler does when a process of a job has died.
    time.sleep(0.05)
    for other in range(processes):
        job.kill(other)


def _judge(number: int, kind: str, ends: tuple[Answer, ...]) -> Iterator[str]:
    """Complain of a job that did not end as its strike lets it."""
    for end in ends:
        if kind == "kill":
            if end.status not in ("killed", "aborted", "returned", "raised"):
                yield f"start {number}: killed, found {end}"
        elif end.status != "returned" or end.value["exit"] != 85 * (kind == "term"):
            yield f"start {number}, {kind}: {end} {end.output[-2000:]}"
    if kind == "term" and len({str(e.value and e.value["step"]) for e in ends}) > 1:
        yield f"start {number}: stopped at different steps: {ends}"


def _first_step(spec: dict[str, Any], processes: int) -> int | None:
    found = [read_log(spec["log"], member) for member in range(processes)]
    return min((log[0][0] - 1 for log in found if log), default=None)


def _compare_with_model(
    server: JobServer,
    folder: Path,
    starts: list[tuple[int, int]],
    cache: Path,
    every: int,
) -> Iterator[str]:
    """Train without strikes on the same processes for the same steps; compare."""
    done = 0
    for number, (processes, group) in enumerate(groupby(starts, lambda s: s[0])):
        last = max(step for _, step in group)
        if last == done:
            continue
        done = last
        spec = _spec(folder, "model", number, until=last, every=every * 1000)
        with start_job(server, processes, cache) as job:
            for end in job.run(TRAIN, spec, timeout=120):
                if end.status != "returned":
                    yield f"the model does not train: {end}"
    ends = folder / "run", folder / "model"
    for change in ckpt.diff(*ends, left_step=done, right_step=done).changes:
        if change.path.startswith("state"):
            yield f"the final state is not that of training without a strike: {change}"
