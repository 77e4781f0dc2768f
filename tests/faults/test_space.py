"""A disk that is full, read-only or another's refuses a save and keeps the old ones."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import ckpt
from tests._harness.forkserver import ForkServer, Job, Outcome
from tests._harness.mounts import mount, unmount
from tests.faults._oracle import find_complaint, left_over
from tests.faults._sweeps import JOBS, end_of
from tests.faults._trees import make_tree, restore_seed

SIZE = 4 << 20


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    target = folder / "disk"
    target.mkdir()
    mount("none", target, filesystem="tmpfs", options=f"size={SIZE},mode=755")
    try:
        yield target
    finally:
        unmount(target)


def refusal(outcome: Outcome, run: Path, reason: str) -> str:
    """Say what is wrong with a save that should have been refused for a reason."""
    if end_of(outcome) != "StoreError" or reason not in outcome.message:
        return f"expected StoreError: {reason}, found {outcome}"
    return find_complaint(run, [{1: 1}], thorough=False)


@pytest.mark.root
def test_a_full_disk_refuses_a_save_and_gives_its_space_back(
    server: ForkServer, small_disk: Path
) -> None:
    run = small_disk / "run"
    ckpt.save(make_tree(1), None, run, step=1)
    (outcome,) = server.run(Job(f"{JOBS}:save", (str(run), 2, 2, False, "wide")))
    assert refusal(outcome, run, "No space left on device") == ""
    assert left_over(run) == set()
    assert find_complaint(run, [{1: 1}]) == ""


@pytest.mark.root
def test_a_read_only_disk_refuses_a_save(server: ForkServer, small_disk: Path) -> None:
    run = small_disk / "run"
    ckpt.save(make_tree(1), None, run, step=1)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    (outcome,) = server.run(Job(f"{JOBS}:save", (str(run), 2, 2)))
    assert refusal(outcome, run, "Read-only file system") == ""
    with pytest.raises(ckpt.StoreError, match="Read-only file system"):
        ckpt.prune(run, drop=[1])
    assert restore_seed(run) == 1
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    assert find_complaint(run, [{1: 1}]) == ""


@pytest.mark.root
def test_a_folder_of_another_user_refuses_a_save(
    server: ForkServer, folder: Path
) -> None:
    run = folder / "run"
    ckpt.save(make_tree(1), None, run, step=1)
    (outcome,) = server.run(Job(f"{JOBS}:save_as_nobody", (str(run), 2, 2)))
    assert refusal(outcome, run, "Permission denied") == ""
    assert find_complaint(run, [{1: 1}]) == ""


@pytest.mark.root
def test_a_writer_that_ignores_a_full_disk_is_caught(
    server: ForkServer, small_disk: Path
) -> None:
    run = small_disk / "run"
    ckpt.save(make_tree(1), None, run, step=1)
    job = Job(f"{JOBS}:save_and_ignore_errors", (str(run), 2, 2, False, "wide"))
    (outcome,) = server.run(job)
    assert "expected StoreError" in refusal(outcome, run, "No space left on device")


@pytest.mark.root
def test_a_save_that_nothing_hinders_is_no_refusal(
    server: ForkServer, small_disk: Path
) -> None:
    run = small_disk / "run"
    ckpt.save(make_tree(1), None, run, step=1)
    (outcome,) = server.run(Job(f"{JOBS}:save", (str(run), 2, 2)))
    assert "expected StoreError" in refusal(outcome, run, "Read-only file system")
    assert find_complaint(run, [{1: 1}], thorough=False)
