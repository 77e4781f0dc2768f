"""A crash or an error at any call leaves the old state or the new one, and no more."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests._harness.crashpoint import Mode, read_calls
from tests._harness.forkserver import Fault, ForkServer, Job
from tests.faults._oracle import find_complaint
from tests.faults._sweeps import (
    JOBS,
    Work,
    first_save,
    overwriting,
    pruning,
    run_sweep,
    second_save,
)

MakeWork = Callable[..., Work]


@pytest.mark.campaign
@pytest.mark.parametrize("mode", ["kill", "torn", "short"])
@pytest.mark.parametrize("make", [first_save, second_save])
def test_a_save_killed_at_any_call_leaves_old_or_new(
    server: ForkServer, folder: Path, make: MakeWork, mode: Mode
) -> None:
    figures = run_sweep(server, make(folder), mode, folder)
    assert figures.complaints == ()
    assert figures.faults > (10 if mode != "kill" else 60)


@pytest.mark.campaign
@pytest.mark.parametrize("mode", ["eio", "enospc", "full"])
@pytest.mark.parametrize("make", [first_save, second_save])
def test_a_save_that_meets_an_error_leaves_old_or_new(
    server: ForkServer, folder: Path, make: MakeWork, mode: Mode
) -> None:
    figures = run_sweep(server, make(folder), mode, folder, stride=6)
    assert figures.complaints == ()
    assert figures.ends["StoreError"] >= 9


@pytest.mark.campaign
@pytest.mark.parametrize("mode", ["kill", "eio"])
@pytest.mark.parametrize("make", [overwriting, pruning])
def test_an_overwrite_or_a_prune_that_fails_loses_nothing(
    server: ForkServer, folder: Path, make: MakeWork, mode: Mode
) -> None:
    stride = 4 if mode == "kill" else 6
    figures = run_sweep(server, make(folder), mode, folder, stride=stride)
    assert figures.complaints == ()
    assert figures.faults >= 10


@pytest.mark.parametrize(
    ("make", "job", "mode"),
    [
        (first_save, "save_record_first", "kill"),
        (second_save, "save_record_first", "kill"),
        (second_save, "save_and_ignore_errors", "eio"),
        (second_save, "save_and_ignore_errors", "enospc"),
        (overwriting, "overwrite_by_removal", "kill"),
        (pruning, "prune_data_first", "kill"),
    ],
)
def test_a_sweep_catches_unsafe_work(
    server: ForkServer, folder: Path, make: MakeWork, job: str, mode: Mode
) -> None:
    work = make(folder, job)
    figures = run_sweep(server, work, mode, folder, stride=7, thorough=False)
    assert figures.complaints


def test_a_commit_whose_sync_fails_is_not_acknowledged(
    server: ForkServer, folder: Path
) -> None:
    """Once a sync has failed, the kernel may call lost pages clean."""

    def save(run: str, fault: Fault) -> str:
        job = Job(f"{JOBS}:save", (str(folder / run), 1, 1), fault)
        (outcome,) = server.run(job)
        return outcome.error

    log = folder / "log"
    assert save("clean", Fault(str(folder / "clean"), log=str(log))) == ""
    # Threads interleave, but not from the record's link on.
    names = [(call.name, Path(call.path).name) for call in read_calls(log)]
    link = names.index(("link", "1.json.tmp")) + 1
    at = link + names[link:].index(("fsync", "steps")) + 1
    assert save("run", Fault(str(folder / "run"), at, "eio")) == "CommitUnknown"
    assert find_complaint(folder / "run", [{1: 1}]) == ""
