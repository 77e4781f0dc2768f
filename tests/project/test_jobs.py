"""A job of processes reports how each of them ended, and counts what each reads."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests._harness.forkserver import Fault
from tests._harness.jobmain import count_file_bytes
from tests._harness.jobs import JobServer, Setup, wait_until

HERE = "tests.project.test_jobs"


@pytest.fixture(scope="module")
def server() -> Iterator[JobServer]:
    with JobServer("jax", "tests.project.test_jobs") as started:
        yield started


def count_devices(more: int) -> list[int]:
    import jax

    return [jax.process_index(), jax.process_count(), jax.device_count(), more]


def sum_over_job(x: float) -> float:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    shape = (jax.device_count(),)
    values = jax.make_array_from_callback(shape, sharding, lambda _: np.full(1, x))
    return float(jax.jit(lambda a: a.sum())(values))


def end(numbers: list[int]) -> None:
    import jax

    if number := numbers[jax.process_index()]:
        os.kill(os.getpid(), number)
        time.sleep(60)


def fail(message: str) -> None:
    raise ValueError(message)


def wait_for_all() -> None:
    from jax.experimental.multihost_utils import sync_global_devices

    sync_global_devices("all")


def make_files(folder: str, mine: int) -> list[str]:
    for number in range(5):
        Path(folder, f"{mine}-{number}").touch()
    return sorted(os.listdir(folder))


def count_traffic(folder: str, size: int) -> dict[str, list[int]]:
    """Count what writing, reading, key-values and a gather of `size` bytes add."""
    import jax
    from jax._src import distributed
    from jax.experimental.multihost_utils import process_allgather

    me: int = jax.process_index()
    client: Any = distributed.global_state.client
    found: dict[str, list[int]] = {}

    def measure(name: str, call: Callable[[], object]) -> None:
        before = count_file_bytes()
        call()
        after = count_file_bytes()
        found[name] = [b - a for a, b in zip(before, after, strict=True)]

    data = os.urandom(size)
    values = np.frombuffer(data, np.uint8)
    process_allgather(values)
    measure("write", lambda: Path(folder, str(me)).write_bytes(data))
    measure("read", lambda: Path(folder, str(me)).read_bytes())
    measure("put", lambda: client.key_value_set_bytes(f"key/{me}", data))
    other = f"key/{1 - me}"
    measure("get", lambda: client.blocking_key_value_get_bytes(other, 30_000))
    measure("gather", lambda: process_allgather(values))
    return found


def test_members_form_one_job(server: JobServer) -> None:
    with server.start(Setup(2, devices=3, config={"jax_enable_x64": True})) as job:
        answers = job.run(f"{HERE}:count_devices", each=[[7], [8]])
        assert [a.value for a in answers] == [[0, 2, 6, 7], [1, 2, 6, 8]]
        answers = job.run(f"{HERE}:sum_over_job", 0.1)
        assert [a.value for a in answers] == [0.6, 0.6]
        assert job.end() == (0, 0)


def test_a_job_of_one_needs_no_service(server: JobServer) -> None:
    with server.start(Setup(1, devices=2)) as job:
        assert job.run(f"{HERE}:count_devices", 1)[0].value == [0, 1, 2, 1]
        assert job.end() == (0,)


def test_errors_are_answers_and_the_job_goes_on(server: JobServer) -> None:
    with server.start(Setup(2)) as job:
        for answer in job.run(f"{HERE}:fail", "no such luck"):
            assert (answer.status, answer.error) == ("raised", "ValueError")
            assert answer.message == "no such luck"
            assert "in fail" in answer.output
        missing = job.run(f"{HERE}:no_such_function")
        assert [a.error for a in missing] == ["AttributeError"] * 2
        assert [a.output for a in job.run(f"{HERE}:count_devices", 0)] == ["", ""]


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGKILL, "killed"), (signal.SIGABRT, "aborted"), (signal.SIGSEGV, "died")],
)
def test_the_end_of_a_member_is_named(
    server: JobServer, number: int, status: str
) -> None:
    with server.start(Setup(2)) as job:
        answers = job.run(f"{HERE}:end", [0, number])
        assert [a.status for a in answers] == ["returned", status]
        assert job.alive == (0,)


def test_members_are_ended_by_jax_when_process_0_is_killed(server: JobServer) -> None:
    with server.start(Setup(3)) as job:
        job.begin(f"{HERE}:wait_for_all")
        job.stop(0)
        job.kill(0)
        answers = job.collect()
        assert [a.status for a in answers] == ["killed", "aborted", "aborted"]


def test_a_member_past_its_deadline_says_where_it_hangs(server: JobServer) -> None:
    with server.start(Setup(2)) as job:
        job.stop(1)
        job.begin(f"{HERE}:wait_for_all")
        answers = job.collect(timeout=1)
        assert [a.status for a in answers] == ["hung", "hung"]
        assert "in wait_for_all" in answers[0].output


def test_a_member_is_killed_or_stopped_at_its_call(
    server: JobServer, tmp_path: Path
) -> None:
    with server.start(Setup(3)) as job:
        job.begin(
            f"{HERE}:make_files",
            str(tmp_path),
            each=[[0], [1], [2]],
            faults={
                0: Fault(str(tmp_path)),
                1: Fault(str(tmp_path), at=3, mode="kill"),
                2: Fault(str(tmp_path), at=4, mode="stop"),
            },
        )
        assert [(a.status, a.calls) for a in job.collect([0])] == [("returned", 5)]
        assert [a.status for a in job.collect([1])] == ["killed"]
        wait_until(lambda: job.is_stopped(2))
        assert sorted(p.name for p in tmp_path.iterdir()) == [
            *(f"0-{n}" for n in range(5)),
            *("1-0", "1-1", "2-0", "2-1", "2-2"),
        ]
        job.resume(2)
        (answer,) = job.collect([2])
        assert (answer.status, answer.faults, len(answer.value)) == ("returned", 1, 12)


@pytest.mark.root
def test_a_private_folder_is_each_members_own(
    server: JobServer, tmp_path: Path
) -> None:
    with server.start(Setup(2, private=str(tmp_path))) as job:
        answers = job.run(f"{HERE}:make_files", str(tmp_path), each=[[0], [1]])
        assert [a.value for a in answers] == [
            [f"{n}-{k}" for k in range(5)] for n in range(2)
        ]
    assert list(tmp_path.iterdir()) == []


def test_a_job_whose_members_cannot_join_says_why(server: JobServer) -> None:
    with pytest.raises(RuntimeError, match="no_such_option"):
        server.start(Setup(2, config={"no_such_option": 1}))


def test_file_bytes_are_counted_and_messages_are_not(
    server: JobServer, tmp_path: Path
) -> None:
    size, little = 4 << 20, 64 << 10
    with server.start(Setup(2)) as job:
        for answer in job.run(f"{HERE}:count_traffic", str(tmp_path), size):
            found = answer.value
            assert size <= found["write"][1] < size + little
            assert size <= found["read"][0] < size + little
            for name in ("put", "get"):
                assert max(found[name]) < little
            assert found["gather"][0] < little
