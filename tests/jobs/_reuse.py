"""One process stopped at a call, while another does all of its own work."""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import ckpt
from tests._harness.forkserver import Fault
from tests._harness.jobs import JobServer, Setup, wait_until
from tests.faults._oracle import State
from tests.faults._races import Figures
from tests.faults._reuse import JOBS, drop, find_complaint, make_run, save

_LOCKED_SECONDS = 0.5
"""The one that is stopped may hold the lock that the other waits for."""

_MET_SECONDS = 3.0

Stop = tuple[tuple[str, list[Any]], Callable[[str], object]]

STOPPED: list[State] = [{2: 2}, {1: 1, 2: 2}, {}]
STOPS: dict[str, Stop] = {
    "save": (("save", [2]), lambda run: drop(run, [1])),
    "prune": (("drop", [[1]]), lambda run: save(run, 2)),
    "overwrite": (("save", [1, True]), lambda run: save(run, 2)),
    "save beside an overwrite": (
        ("save", [2]),
        lambda run: save(run, 1, overwrite=True),
    ),
}
"""What is stopped, and what is done meanwhile, in a run of one step."""


def stop_beside(
    server: JobServer,
    folder: Path,
    *,
    stopped: tuple[str, Sequence[Any]],
    beside: Callable[[str], object],
    legal: Sequence[State],
    steps: int = 1,
    stride: int = 1,
    first: int = 1,
) -> Figures:
    """Stop a job at each call in turn, do what is `beside` it, and let it go on."""
    start = make_run(folder, steps)
    ends: Counter[str] = Counter()
    complaints: list[str] = []
    name, args = stopped
    with server.start(Setup(1)) as job:
        shutil.copytree(start, folder / "count")
        fault = Fault(str(folder / "count"))
        (clean,) = job.run(f"{JOBS}:{name}", fault.prefix, *args, faults={0: fault})
        for number in range(first, clean.calls + 1, stride):
            run = folder / f"run{number}"
            shutil.copytree(start, run)
            fault = Fault(str(run), number, "stop")
            job.begin(f"{JOBS}:{name}", str(run), *args, faults={0: fault})
            try:
                wait_until(lambda: job.is_stopped(0), timeout=_MET_SECONDS)
            except TimeoutError:
                # Threads make some calls more or fewer.
                ends["not stopped"] += 1
            errors: list[BaseException] = []
            other = Thread(target=_do, args=(beside, str(run), errors))
            other.start()
            other.join(_LOCKED_SECONDS)
            job.resume(0)
            (answer,) = job.collect()
            other.join()
            ends[answer.error or answer.status] += 1
            complaint = "".join(f"{error!r}" for error in errors)
            if answer.error not in ("", "StoreError"):
                complaint = complaint or f"{answer.error}: {answer.message}"
            complaint = complaint or find_complaint(run, legal)
            if complaint:
                complaints.append(f"stopped at {number}: {complaint}")
            shutil.rmtree(run)
    return Figures(ends, tuple(complaints))


def _do(work: Callable[[str], object], run: str, errors: list[BaseException]) -> None:
    try:
        work(run)
    except ckpt.CkptError as error:
        errors.append(error)
