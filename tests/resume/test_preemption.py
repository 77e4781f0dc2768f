"""One process of a job is told to stop: all save the same step, and end with 85."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ckpt
from tests._harness.jobs import Job, JobServer, wait_until
from tests.resume._jobs import TRAIN, make_spec, run_job, start_job, values_of
from tests.resume._train import read_log


def train_until(job: Job, spec: dict[str, Any], step: int, members: int) -> None:
    """Wait until all members have trained a step."""

    def reached() -> bool:
        logs = [read_log(spec["log"], member) for member in range(members)]
        return all(log and log[-1][0] >= step for log in logs)

    wait_until(reached, timeout=60)


@pytest.mark.parametrize(
    ("number", "service"),
    [(signal.SIGTERM, True), (signal.SIGUSR1, False), (signal.SIGTERM, False)],
    ids=["term", "usr1, no service", "term, no service"],
)
def test_all_save_the_same_step_when_one_is_told(
    server: JobServer, folder: Path, cache: Path, number: int, *, service: bool
) -> None:
    spec = make_spec(folder, "run", every=None, until=100_000, pause=0.01)
    with start_job(server, 3, cache, jax_enable_preemption_service=service) as job:
        job.begin(TRAIN, spec)
        train_until(job, spec, 5, 3)
        job.tell(1, number)
        ends = values_of(job.collect(timeout=30))
    assert [end["exit"] for end in ends] == [85] * 3
    assert len({end["step"] for end in ends}) == 1
    assert ckpt.steps(spec["run"]) == [ends[0]["step"]]
    # What was saved is what each had then.
    again = spec | {"until": ends[0]["step"] + 1}
    for end in values_of(run_job(server, 3, again, cache)):
        assert end["begun"] == ends[0]["step"]
        assert end["there"] == ends[0]["state"]


@pytest.mark.campaign
def test_a_run_that_goes_on_can_be_told_again(
    server: JobServer, folder: Path, cache: Path
) -> None:
    options = {"on_notice": "continue"}
    spec = make_spec(
        folder, "run", every=None, until=100_000, pause=0.01, options=options
    )
    with start_job(server, 3, cache) as job:
        job.begin(TRAIN, spec)
        for count, member in enumerate([1, 2, 1], start=1):
            last = max(ckpt.steps(spec["run"]), default=0)
            train_until(job, spec, last + 5, 3)
            job.tell(member, signal.SIGTERM)
            wait_until(lambda n=count: len(ckpt.steps(spec["run"])) == n)
    for step in ckpt.steps(spec["run"]):
        assert ckpt.verify(spec["run"], step=step).ok


def test_a_file_tells_all(server: JobServer, folder: Path, cache: Path) -> None:
    file = folder / "maintenance"
    spec = make_spec(
        folder, "run", every=None, until=100_000, options={"notice": str(file)}
    )
    with start_job(server, 2, cache) as job:
        job.begin(TRAIN, spec | {"pause": 0.01})
        train_until(job, spec, 3, 2)
        file.touch()
        ends = values_of(job.collect(timeout=30))
    assert [end["exit"] for end in ends] == [85, 85]
    assert ckpt.steps(spec["run"]) == [ends[0]["step"]]


@pytest.mark.campaign
def test_a_clock_saves_the_same_step_everywhere(
    server: JobServer, folder: Path, cache: Path
) -> None:
    spec = make_spec(folder, "run", every=None, until=60, pause=0.02, seconds=0.3)
    with start_job(server, 3, cache) as job:
        job.begin(TRAIN, spec)
        values_of(job.collect(timeout=60))
    steps = ckpt.steps(spec["run"])
    assert len(steps) > 2
    assert steps[-1] == 60
    assert all(ckpt.verify(spec["run"], step=step).ok for step in steps)


def test_a_process_that_fails_does_not_save(
    server: JobServer, folder: Path, cache: Path
) -> None:
    spec = make_spec(folder, "run", every=3, until=20, raise_at=8)
    with start_job(server, 1, cache) as job:
        (end,) = job.run(TRAIN, spec, timeout=120)
        assert (end.status, end.error) == ("raised", "ArithmeticError")
        # What was begun before goes on in the background.
        wait_until(lambda: 6 in ckpt.steps(spec["run"]))
    assert ckpt.steps(spec["run"]) == [3, 6]


@pytest.mark.campaign
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_may_be_entered_before_or_after_the_job_is_joined(
    folder: Path, when: str
) -> None:
    """jax.distributed takes SIGTERM for its own service when it is initialised."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    run = str(folder / "run")
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.resume._late", port, str(n), when, run],
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        started[1].send_signal(signal.SIGTERM)
        assert [process.wait(30) for process in started] == [85] * 3
    finally:
        for process in started:
            process.kill()
            process.communicate()
    (step,) = ckpt.steps(run)
    assert ckpt.restore(run)["state"] == {"done": step}


def test_without_a_listener_nothing_is_saved(
    server: JobServer, folder: Path, cache: Path
) -> None:
    spec = make_spec(
        folder, "run", every=None, until=100_000, pause=0.01, options={"signals": []}
    )
    with start_job(server, 2, cache, jax_enable_preemption_service=False) as job:
        job.begin(TRAIN, spec)
        train_until(job, spec, 3, 2)
        for member in range(2):
            job.tell(member, signal.SIGTERM)
        ends = job.collect(timeout=30)
    assert {end.status for end in ends} <= {"died", "aborted"}
    assert ckpt.steps(spec["run"]) == []
