"""Plans the rounds and carries them out, one timed part at a time."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._cases import Case
from benchmarks._media import Medium, count_stored_bytes, settle_medium
from benchmarks._pool import Job, Pool, WorkerError
from benchmarks.contenders import Contender

Report = Callable[[str], None]
Answers = list[dict[str, Any]]

_TOTALS = ("cpu_seconds", "read_bytes", "device_read_bytes", "written_bytes")

# A worker that keeps more than this after its turn is started anew, so that what one
# library caches doesn't take the memory that the next one is measured with.
_MAX_RESIDENT_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Turn:
    """One contender's save, description and restores of one case in one round."""

    case: Case
    contender: Contender
    round: int
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One timed part. Round 0 warms up and is checked; medians leave it out.

    In a job of several processes, time is that of the slowest, memory that of the
    largest, and the rest the sum; `process_*` has what each process read and wrote.
    """

    medium: str
    case: str
    contender: str
    operation: str
    round: int
    seconds: float
    cpu_seconds: float
    added_bytes: int
    read_bytes: int
    device_read_bytes: int
    written_bytes: int
    stored_bytes: int
    process_read_bytes: list[int] = field(default_factory=list[int])
    process_written_bytes: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True)
class Failure:
    """A part that could not be measured, and why."""

    medium: str
    case: str
    contender: str
    operation: str
    round: int
    reason: str


def plan_turns(
    case: Case, *, contenders: Iterable[Contender], rounds: int, seed: int
) -> list[Turn]:
    """Every contender once a round, each round and its restores in a new order."""
    order = random.Random(f"{seed} {case.name}")
    able = [x for x in contenders if _is_able(x, case=case)]
    turns: list[Turn] = []
    for number in range(rounds + 1):
        order.shuffle(able)
        for contender in able:
            targets = list(case.targets)
            order.shuffle(targets)
            turns.append(Turn(case, contender, number, tuple(targets)))
    return turns


def _is_able(contender: Contender, *, case: Case) -> bool:
    return (
        (contender.remeshes or not case.remesh)
        and (contender.jobs or case.processes == 1)
        and (contender.overlaps or not case.trains)
    )


def run_turns(
    turns: Sequence[Turn],
    *,
    medium: Medium,
    pool: Pool,
    quick: bool,
    report: Report,
) -> Iterator[Record | Failure]:
    """Carries out the turns; a contender that fails sits the case out from there."""
    out: set[str] = set()
    for turn in turns:
        if turn.contender.name in out:
            continue
        for result in _run_turn(turn, medium=medium, pool=pool, quick=quick):
            if isinstance(result, Failure):
                out.add(result.contender)
                report(
                    f"{medium.name} {result.case} {result.contender}"
                    f" {result.operation}: {result.reason}"
                )
            yield result


def _run_turn(
    turn: Turn, *, medium: Medium, pool: Pool, quick: bool
) -> Iterator[Record | Failure]:
    home = medium.folder / f"{turn.case.name}-{turn.contender.module.strip('_')}"
    at = _Part(turn, medium, pool, home, quick=quick)
    _make_empty(home)
    try:
        yield from _train(at) if turn.case.trains else _save_and_restore(at)
    except WorkerError as error:
        yield Failure(
            medium=medium.name,
            case=turn.case.name,
            contender=turn.contender.name,
            operation=at.operation,
            round=turn.round,
            reason=str(error),
        )
        for job in turn.case.jobs(turn.contender.name):
            pool.stop(job)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@dataclass
class _Part:
    """Where a turn has got to."""

    turn: Turn
    medium: Medium
    pool: Pool
    home: Path
    operation: str = "prepare"
    _: KW_ONLY
    quick: bool

    @property
    def saving(self) -> Job:
        return self.turn.case.jobs(self.turn.contender.name)[0]

    def ask(self, job: Job, do: str, folder: Path, **fields: Any) -> Answers:
        return self.pool.ask(
            job,
            do=do,
            folder=str(folder),
            case=self.turn.case.name,
            quick=self.quick,
            **fields,
        )

    def prepare(self, folder: Path, *, again: bool) -> None:
        """Warms what is fresh, and builds what is to be saved: always if `again`."""
        for job in self.turn.case.jobs(self.turn.contender.name):
            fresh = self.turn.round == 0 or not self.pool.is_running(job)
            # In quick mode the tree is as small as the one that warms up.
            if fresh and not self.quick:
                self.ask(job, "warm", self.home / "warm")
                _make_empty(self.home)
            if fresh or again:
                self.ask(job, "prepare", folder, seed=self.turn.round)

    def record(self, operation: str, answers: Answers, *, stored: int) -> Record:
        total = {name: sum(x[name] for x in answers) for name in _TOTALS}
        return Record(
            medium=self.medium.name,
            case=self.turn.case.name,
            contender=self.turn.contender.name,
            operation=operation,
            round=self.turn.round,
            # A job is done when its slowest process is.
            seconds=max(x["seconds"] for x in answers),
            added_bytes=max(x["added_bytes"] for x in answers),
            stored_bytes=stored,
            process_read_bytes=[x["read_bytes"] for x in answers],
            process_written_bytes=[x["written_bytes"] for x in answers],
            **total,
        )


def _save_and_restore(at: _Part) -> Iterator[Record]:
    turn, home = at.turn, at.home
    folder = home / "run-0"
    at.prepare(folder, again=True)
    at.operation = "save"
    settle_medium(at.medium)
    answers = at.ask(at.saving, "save", folder)
    stored = count_stored_bytes(folder)
    yield at.record("save", answers, stored=stored)
    for number, (operation, do, fields) in enumerate(_list_reads(turn), start=1):
        at.operation = operation
        # A new name for each part: a cache inside the library (JAX's TensorStore
        # context holds up to 10 GB) must not answer in place of the medium.
        folder = folder.rename(home / f"run-{number}")
        settle_medium(at.medium)
        job = at.saving
        if "target" in fields:
            job = turn.case.job(
                turn.contender.name, turn.case.targets[fields["target"]]
            )
        yield at.record(operation, at.ask(job, do, folder, **fields), stored=stored)
    at.operation = "release"
    for job in turn.case.jobs(turn.contender.name):
        kept = at.ask(job, "release", folder)
        if max(x["resident_bytes"] for x in kept) > _MAX_RESIDENT_BYTES:
            at.pool.stop(job)


def _train(at: _Part) -> Iterator[Record]:
    folder = at.home / "run-0"
    # The state goes on from round to round, and so does the compiled step.
    at.prepare(folder, again=False)
    at.operation = "train"
    settle_medium(at.medium)
    answers = at.ask(at.saving, "train", folder)
    stored = count_stored_bytes(folder)
    for operation in answers[0]:
        seconds = max(answer[operation] for answer in answers)
        unmeasured = dict.fromkeys((*_TOTALS, "added_bytes"), 0)
        sample = {"seconds": seconds, **unmeasured}
        yield at.record(operation, [sample], stored=stored)


def _list_reads(turn: Turn) -> list[tuple[str, str, dict[str, Any]]]:
    """What follows a save: (operation, request, its fields)."""
    reads: list[tuple[str, str, dict[str, Any]]] = []
    if turn.contender.describes and turn.case.processes == 1:
        reads.append(("metadata", "metadata", {}))
    for target in turn.targets:
        check = turn.round == 0
        fields = {"target": target, "check": check, "seed": turn.round}
        reads.append((f"restore {target}", "restore", fields))
    return reads


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
