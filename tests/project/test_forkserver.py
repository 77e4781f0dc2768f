"""The warm process reports how each of its children ended, and outlives them all."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests._harness.forkserver import ForkServer, Job

HERE = "tests.project.test_forkserver"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("jax", "tests.project.test_forkserver", devices=2) as started:
        yield started


def add_on_devices(a: float, b: float) -> list[object]:
    import jax

    return [len(jax.devices()), float(jax.device_put(a) + jax.device_put(b))]


def meet_at(mine: str, other: str) -> bool:
    open(mine, "w").close()
    while not os.path.exists(other):
        time.sleep(0.001)
    return True


def fail(message: str) -> None:
    raise ValueError(message)


def end(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def leave(status: int) -> None:
    print("noise on standard output")
    os._exit(status)


def test_a_child_starts_a_backend_of_its_own(server: ForkServer) -> None:
    jobs = [Job(f"{HERE}:add_on_devices", (1, number)) for number in range(3)]
    values = [outcome.value for outcome in server.run(*jobs)]
    assert values == [[2, 1.0], [2, 2.0], [2, 3.0]]


def test_jobs_of_one_call_run_at_the_same_time(
    server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("meeting")
    a, b = str(folder / "a"), str(folder / "b")
    outcomes = server.run(
        Job(f"{HERE}:meet_at", (a, b)), Job(f"{HERE}:meet_at", (b, a))
    )
    assert [outcome.value for outcome in outcomes] == [True, True]


def test_an_error_is_reported_with_its_type_and_trace(server: ForkServer) -> None:
    (outcome,) = server.run(Job(f"{HERE}:fail", ("no such luck",)))
    assert (outcome.status, outcome.error) == ("raised", "ValueError")
    assert outcome.message == "no such luck"
    assert "in fail" in outcome.stderr


@pytest.mark.parametrize(
    ("job", "status"),
    [
        (Job(f"{HERE}:end", (signal.SIGKILL,)), "killed"),
        (Job(f"{HERE}:end", (signal.SIGSEGV,)), "died"),
        (Job(f"{HERE}:leave", (3,)), "died"),
        (Job(f"{HERE}:leave", (0,)), "died"),
        (Job(f"{HERE}:no_such_function"), "died"),
        (Job("time:sleep", (60,), timeout=1), "hung"),
    ],
)
def test_the_end_of_a_child_is_named_and_the_next_job_runs(
    server: ForkServer, job: Job, status: str
) -> None:
    first, second = server.run(job)[0], server.run(Job("operator:add", (1, 2)))[0]
    assert (first.status, second.value) == (status, 3)


def test_a_warm_process_that_cannot_import_says_so() -> None:
    with (
        ForkServer("no_such_module") as server,
        pytest.raises(RuntimeError, match="The warm process ended: 1"),
    ):
        server.run(Job("operator:add", (1, 2)))
