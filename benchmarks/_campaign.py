"""Plans the rounds and carries them out, one timed part at a time."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._cases import Case
from benchmarks._media import Medium, count_stored_bytes, settle_medium
from benchmarks._pool import Pool, WorkerError
from benchmarks.contenders import Contender

Report = Callable[[str], None]

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
    """One timed part. Round 0 warms up and is checked; medians leave it out."""

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
    able = [x for x in contenders if x.remeshes or not case.remesh]
    turns: list[Turn] = []
    for number in range(rounds + 1):
        order.shuffle(able)
        for contender in able:
            targets = list(case.targets)
            order.shuffle(targets)
            turns.append(Turn(case, contender, number, tuple(targets)))
    return turns


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
    case, contender = turn.case, turn.contender
    home = medium.folder / f"{case.name}-{contender.module.strip('_')}"
    name, devices = contender.name, case.devices

    def ask(do: str, folder: Path, **fields: Any) -> dict[str, Any]:
        request = {"folder": str(folder), "case": case.name, "quick": quick, **fields}
        return pool.ask(name, devices=devices, do=do, **request)

    def record(operation: str, sample: dict[str, Any], *, stored: int) -> Record:
        return Record(
            medium=medium.name,
            case=case.name,
            contender=name,
            operation=operation,
            round=turn.round,
            stored_bytes=stored,
            **sample,
        )

    operation = "prepare"
    _make_empty(home)
    try:
        fresh = turn.round == 0 or not pool.is_running(name, devices=devices)
        # In quick mode the tree is as small as the one that warms up.
        if fresh and not quick:
            ask("warm", home / "warm")
            _make_empty(home)
        folder = home / "run-0"
        ask("prepare", folder, seed=turn.round)
        operation = "save"
        settle_medium(medium)
        sample = ask("save", folder)
        stored = count_stored_bytes(folder)
        yield record(operation, sample, stored=stored)
        for number, (operation, do, fields) in enumerate(_list_reads(turn), start=1):
            # A new name for each part: a cache inside the library (JAX's TensorStore
            # context holds up to 10 GB) must not answer in place of the medium.
            folder = folder.rename(home / f"run-{number}")
            settle_medium(medium)
            yield record(operation, ask(do, folder, **fields), stored=stored)
        operation = "release"
        if ask("release", folder)["resident_bytes"] > _MAX_RESIDENT_BYTES:
            pool.stop(name, devices=devices)
    except WorkerError as error:
        yield Failure(
            medium=medium.name,
            case=case.name,
            contender=name,
            operation=operation,
            round=turn.round,
            reason=str(error),
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _list_reads(turn: Turn) -> list[tuple[str, str, dict[str, Any]]]:
    """What follows a save: (operation, request, its fields)."""
    reads: list[tuple[str, str, dict[str, Any]]] = []
    if turn.contender.describes:
        reads.append(("metadata", "metadata", {}))
    for target in turn.targets:
        fields = {"target": target, "check": turn.round == 0}
        reads.append((f"restore {target}", "restore", fields))
    return reads


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
