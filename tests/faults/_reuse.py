"""Saves that reuse objects and prunes beside them, killed at any call, and races.

The unsafe ones leave out one of the things that keep an object where it is needed.
"""

import contextlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import ckpt
from ckpt._store import open_store
from ckpt._uses import find_needed
from tests._harness.crashpoint import Mode
from tests._harness.forkserver import Fault, ForkServer, Job
from tests.faults._jobs import prune_until
from tests.faults._oracle import State, committed_folders, read_state, strays
from tests.faults._races import Figures as RaceFigures
from tests.faults._sweeps import Figures, end_of, judge
from tests.faults._trees import WrongTree, make_tree

JOBS = "tests.faults._reuse"


def save(run: str, step: int, overwrite: bool = False) -> None:
    """Save the tree of a step, of which half is the same as in any other."""
    tree = make_tree(step, "frozen")
    ckpt.save(tree, None, run, step=step, reuse=True, overwrite=overwrite)


def save_many(run: str, first: int, count: int, stop: str) -> None:
    """Save step after step; every third one overwrites the one before."""
    try:
        for step in range(first, first + count):
            save(run, step)
            if step % 3 == 0:
                save(run, step, overwrite=True)
    finally:
        Path(stop).touch()


def prune(run: str, last: int = 1) -> None:
    """Remove all but the newest steps."""
    ckpt.prune(run, keep=ckpt.Keep(last=last))


def prune_all(run: str, stop: str, last: int) -> int:
    """Prune over and over again; return how many steps that removed."""
    return prune_until(run, stop, last, 24 * 3600.0)


def prune_what_others_need(run: str, last: int = 1) -> None:
    """Unsafe: whole folders go, whoever needs objects of them."""
    with mock.patch("ckpt._commit.find_needed", return_value=frozenset()):
        prune(run, last)


def save_unnoted(run: str, step: int) -> None:
    """Unsafe: nobody can see what this save needs."""
    with unnoted():
        save(run, step)


@contextlib.contextmanager
def unnoted() -> Iterator[None]:
    """Leave out the note of what a save needs."""
    with (
        mock.patch("ckpt._begin.note_use"),
        mock.patch("ckpt._attempt.refuse_unnoted"),
        mock.patch("ckpt._reuse.has_use", return_value=True),
    ):
        yield


def drop(run: str, steps: Sequence[int]) -> None:
    """Remove these steps."""
    ckpt.prune(run, drop=steps)


def drop_as_seen_before(run: str, steps: Sequence[int]) -> None:
    """Unsafe: looks at who needs what before the records are gone."""
    store = open_store(run)
    folders = {path.name for path in Path(run).iterdir() if path.name != "steps"}
    needed = {name: find_needed(store, name) for name in folders}
    # Here it can be stopped without a lock that others wait for.
    Path(run, "looked").touch()
    Path(run, "looked").unlink()
    with mock.patch("ckpt._commit.find_needed", lambda _, name: needed[name]):
        drop(run, steps)


def make_run(folder: Path, steps: int) -> Path:
    """Make a run of steps that all need objects of the first."""
    run = folder / "start"
    for step in range(1, steps + 1):
        save(str(run), step)
    return run


def find_complaint(run: Path, legal: Sequence[State]) -> str:
    """Say what is wrong with a run of reusing steps, "" if nothing is.

    Its state must be legal and stay so, every step whole, whatever is pruned beside;
    and when no step needs anything any more, nothing must be left.
    """
    try:
        state = read_state(run)
        if state not in legal:
            return f"found {state}, expected one of {list(legal)}"
        for keep in (None, ckpt.Keep(last=2), ckpt.Keep(last=1)):
            ckpt.prune(run, keep=keep, orphan_age=0)
            left = read_state(run)
            for step in left:
                report = ckpt.verify(run, step=step)
                if not report.ok or report.orphans:
                    return f"after prune({keep}): {report}"
        if state:
            newest = max(state)
            save(str(run), newest + 1)
            ckpt.prune(run, drop=[newest])
            if read_state(run) != {newest + 1: newest + 1}:
                return f"a later save does not hold without step {newest}"
        ckpt.save(make_tree(999), None, run, step=10**6)
        ckpt.prune(run, keep=ckpt.Keep(last=1), orphan_age=0)
        if found := strays(run):
            return f"prunes left {found}"
    except (ckpt.CkptError, WrongTree) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def sweep_beside(
    server: ForkServer,
    folder: Path,
    *,
    killed: tuple[str, Sequence[object]],
    beside: tuple[str, Sequence[object]] | None,
    legal: Sequence[State],
    steps: int = 2,
    stride: int = 1,
    first: int = 1,
    mode: Mode = "kill",
) -> Figures:
    """Strike a job on a run at each call in turn, while another works on it, too."""
    start = make_run(folder, steps)
    ends: Counter[str] = Counter()
    complaints: list[str] = []
    number, met = first, True
    while met:
        run = folder / "run"
        shutil.copytree(start, run)
        (name, args), fault = killed, Fault(str(run), number, mode)
        jobs = [Job(f"{JOBS}:{name}", (str(run), *args), fault)]
        if beside is not None:
            jobs.append(Job(f"{JOBS}:{beside[0]}", (str(run), *beside[1])))
        outcome, *others = server.run(*jobs)
        met = outcome.faults != 0
        if met:
            ends[end_of(outcome)] += 1
        complaint = judge(outcome, mode) if met else ""
        for other in others:
            if other.status != "returned":
                complaint = complaint or f"{other.error}: {other.message}"
        complaint = complaint or find_complaint(run, legal)
        if complaint:
            complaints.append(f"{mode} at {number}: {complaint}")
        shutil.rmtree(run)
        number += stride
    return Figures(ends.total(), ends, tuple(complaints))


def race(
    server: ForkServer,
    folder: Path,
    *,
    saves: int,
) -> RaceFigures:
    """Save step after step while two others prune; what is left must be whole."""
    run, stop = folder / "run", str(folder / "stop")
    save(str(run), 1)
    outcomes = server.run(
        Job(f"{JOBS}:save_many", (str(run), 2, saves, stop), timeout=300),
        *(
            Job(f"{JOBS}:prune_all", (str(run), stop, last), timeout=300)
            for last in (1, 2)
        ),
    )
    ends: Counter[str] = Counter(end_of(outcome) for outcome in outcomes)
    complaints = [
        f"{outcome.error}: {outcome.message}\n{outcome.stderr}"
        for outcome in outcomes
        if outcome.status != "returned"
    ]
    newest = saves + 1
    legal = [{newest: newest}, {newest - 1: newest - 1, newest: newest}]
    reused = sum(
        bool(
            json.loads((run / name / "manifest.json").read_bytes().splitlines()[1])[
                "reused"
            ]["leaves"]
        )
        for name in committed_folders(run).values()
    )
    ends["reusing"] += reused
    if complaint := find_complaint(run, legal):
        complaints.append(complaint)
    return RaceFigures(ends, tuple(complaints))
