"""Every tree from every job to every other: values, and what each process moves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests._harness.jobs import Answer, Job, JobServer, Setup

WORK = "tests.jobs._work"
MODULES = ("jax", "ckpt", WORK)

Shape = tuple[int, int]
"""Processes, and devices of each."""

SEED = 7
SLACK = 1.10


@dataclass(frozen=True, slots=True)
class Figures:
    """How many saves and restores there were, the worst shares, and what was wrong."""

    saves: int
    restores: int
    written: float
    read: float
    amplification: float
    complaints: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.saves} saves, {self.restores} restores, at most {self.written:.3f}"
            f" of a fair share written, {self.read:.3f} of a process's own read, "
            f"{self.amplification:.3f} of the whole, {len(self.complaints)} complaints"
        )


def run_matrix(
    server: JobServer,
    folder: Path,
    *,
    saved_by: Sequence[Shape],
    restored_by: Sequence[Shape],
    kinds: Sequence[str],
    ways: Sequence[str] = ("relay",),
) -> Figures:
    """Save each kind in each job, and restore each of these in each other job."""
    shares: dict[str, list[float]] = {"written": [0], "read": [0], "whole": [0]}
    complaints: list[str] = []
    saves = restores = 0
    for shape in saved_by:
        with server.start(Setup(*shape)) as job:
            warm_up(job, folder / f"warm-save-{shape[0]}-{shape[1]}")
            for kind in kinds:
                run = run_of(folder, shape, kind)
                answers = job.run(f"{WORK}:save_kind", str(run), kind, SEED)
                saves += 1
                name = f"{kind} saved by {shape}"
                complaints += find_failed(name, answers) or judge_saved(
                    name, answers, shares
                )
                if len(job.alive) < shape[0]:
                    break
    for shape in restored_by:
        with server.start(Setup(*shape)) as job:
            warm_up(job, folder / f"warm-restore-{shape[0]}-{shape[1]}")
            for name, answers in _restore_all(
                job, folder, saved_by, kinds, ways, by=shape
            ):
                restores += 1
                complaints += find_failed(name, answers) or judge_restored(
                    name, answers, shares
                )
                if len(job.alive) < shape[0]:
                    break
    worst = {name: max(found) for name, found in shares.items()}
    return Figures(
        saves,
        restores,
        worst["written"],
        worst["read"],
        worst["whole"],
        tuple(complaints),
    )


def _restore_all(
    job: Job,
    folder: Path,
    saved_by: Sequence[Shape],
    kinds: Sequence[str],
    ways: Sequence[str],
    *,
    by: Shape,
) -> Iterator[tuple[str, tuple[Answer, ...]]]:
    for shape in saved_by:
        for kind in kinds:
            run = str(run_of(folder, shape, kind))
            for how in ways:
                arguments = (run, kind, SEED, how)
                answers = job.run(f"{WORK}:restore_kind", *arguments)
                yield f"{kind} saved by {shape}, {how} by {by}", answers


def warm_up(job: Job, run: Path) -> None:
    """Have what is imported and compiled on demand behind us before bytes count."""
    job.run(f"{WORK}:save_kind", str(run), "tiny", SEED)
    for how in ("relay", "replicate"):
        job.run(f"{WORK}:restore_kind", str(run), "tiny", SEED, how)


def run_of(folder: Path, shape: Shape, kind: str) -> Path:
    """Return the run in which a job saves a kind."""
    return folder / f"{shape[0]}x{shape[1]}-{kind}"


def find_failed(name: str, answers: Sequence[Answer]) -> list[str]:
    """Say which members did not return."""
    return [
        f"{name}: {answer}\n{answer.output[-3000:]}"
        for answer in answers
        if answer.status != "returned"
    ]


def judge_saved(
    name: str, answers: Sequence[Answer], shares: dict[str, list[float]]
) -> list[str]:
    """Say whose bytes were not within a tenth of a fair share."""
    complaints: list[str] = []
    for answer in answers:
        written, fair = answer.value["written"], answer.value["fair"]
        shares["written"].append(written / fair)
        if not fair / SLACK <= written <= fair * SLACK:
            share = f"{written:,} bytes, a fair share is {fair:,.0f}"
            complaints.append(f"{name}: process {answer.member} wrote {share}")
    return complaints


def judge_restored(
    name: str, answers: Sequence[Answer], shares: dict[str, list[float]]
) -> list[str]:
    """Say what came back wrong, and who read much more than its own bytes."""
    complaints: list[str] = []
    for answer in answers:
        found = answer.value
        complaints += [f"{name}: process {answer.member}: {w}" for w in found["wrong"]]
        shares["read"].append(found["read"] / found["own"])
        if found["read"] > found["own"] * SLACK + 1024:
            share = f"{found['read']:,} bytes, its own are {found['own']:,.0f}"
            complaints.append(f"{name}: process {answer.member} read {share}")
    owned = sum(answer.value["own"] for answer in answers)
    whole = sum(answer.value["read"] for answer in answers) / owned
    shares["whole"].append(whole)
    return complaints
