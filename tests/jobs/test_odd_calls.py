"""Calls that differ between the processes of a job never give wrong values."""

from pathlib import Path
from typing import Any

import pytest

import ckpt
from tests._harness.jobs import JobServer, Setup
from tests.jobs._matrix import find_failed

ODD = "tests.jobs._odd_calls"
SMALL, LARGE = 64, 1 << 16


@pytest.mark.parametrize("rows", [SMALL, LARGE])
@pytest.mark.parametrize("names", [["a", "b"], ["ab", "a"]])
def test_processes_that_select_other_leaves_are_refused(
    server: JobServer, folder: Path, rows: int, names: list[str]
) -> None:
    run = str(folder / "run")
    with server.start(Setup(2)) as job:
        assert find_failed("save", job.run(f"{ODD}:save_two", run, rows)) == []
        each = [[list(mine)] for mine in names]
        answers = job.run(f"{ODD}:restore_some", run, rows, each=each, timeout=20)
        assert [a.status for a in answers] == ["raised"] * 2, answers


@pytest.mark.parametrize("rows", [SMALL, LARGE])
def test_threads_that_restore_at_once_never_get_wrong_values(
    server: JobServer, folder: Path, rows: int
) -> None:
    run = str(folder / "run")
    with server.start(Setup(2)) as job:
        assert find_failed("save", job.run(f"{ODD}:save_two", run, rows)) == []
        for _ in range(3):
            answers = job.run(f"{ODD}:restore_in_threads", run, rows)
            assert [answer.value for answer in answers] == [[True] * 4] * 2


def test_an_interrupt_in_an_exchange_leaves_no_process_waiting(
    server: JobServer, folder: Path
) -> None:
    run = str(folder / "run")
    with server.start(Setup(2)) as job:
        assert find_failed("save", job.run(f"{ODD}:save_two", run, SMALL)) == []
        answers = job.run(f"{ODD}:exchange_interrupted", run, SMALL, timeout=30)
        assert [a.status for a in answers] == ["raised"] * 2, answers
        assert answers[1].error == "KeyboardInterrupt"
        assert "process 1" in answers[0].message, answers
        answers = job.run(f"{ODD}:restore_some", run, SMALL, ["a", "b"])
        assert [a.value for a in answers] == [[True, True]] * 2, answers


@pytest.mark.parametrize("form", ["sharded", "zeros"])
def test_a_dtype_that_differs_is_refused(
    server: JobServer, folder: Path, form: str
) -> None:
    run = str(folder / "run")
    with server.start(Setup(2)) as job:
        each = [["float32", form], ["int32", form]]
        answers = job.run(f"{ODD}:save_as", run, each=each)
        assert [a.error for a in answers] == ["Unsupported"] * 2, answers
        assert all("`leaf`" in answer.message for answer in answers)
    assert ckpt.steps(run) == []


def test_arrays_of_one_process_are_restored_and_saved_again(
    server: JobServer, folder: Path
) -> None:
    with server.start(Setup(2)) as job:
        answers = job.run(f"{ODD}:save_own_arrays_twice", str(folder / "run"))
        assert find_failed("save twice", answers) == []
        assert [answer.value for answer in answers] == [[0, 1, 2], [1, 2, 3]]


def test_what_is_not_read_of_a_per_process_is_absent_with_like_too(
    server: JobServer, folder: Path
) -> None:
    with server.start(Setup(2)) as job:
        answers = job.run(f"{ODD}:restore_own_like", str(folder / "run"))
        assert [a.value for a in answers] == [[False, True], [True, False]]


@pytest.mark.parametrize(
    "options",
    [{"cast": "x"}, {"max_host_bytes": 1}, {"missing": "keep"}, {"barrier_timeout": 0}],
)
def test_wrong_arguments_of_one_process_do_not_part_the_job(
    server: JobServer, folder: Path, options: dict[str, Any]
) -> None:
    run = str(folder / "run")
    with server.start(Setup(2)) as job:
        assert find_failed("save", job.run(f"{ODD}:save_two", run, SMALL)) == []
        each = [[["a"], {}], [["a"], options]]
        answers = job.run(f"{ODD}:restore_some", run, SMALL, each=each)
        assert [a.status for a in answers] == ["raised"] * 2
        # What comes next is everybody's next call.
        job.run(f"{ODD}:save_two", run, SMALL)
        assert find_failed("save", job.run(f"{ODD}:save_two", run, SMALL)) == []


@pytest.mark.parametrize("processes", [[1, 2], [2]])
def test_processes_without_devices_in_a_mesh_restore_too(
    server: JobServer, folder: Path, processes: list[int]
) -> None:
    run = str(folder / "run")
    with server.start(Setup(4)) as job:
        assert find_failed("save", job.run(f"{ODD}:save_two", run, SMALL)) == []
        answers = job.run(f"{ODD}:restore_on", run, SMALL, processes)
        assert find_failed("restore", answers) == []
        assert [answer.value for answer in answers] == [[True] * 2] * 4


def test_like_on_devices_of_one_process_is_the_same_call_for_all(
    server: JobServer, folder: Path
) -> None:
    run = str(folder / "run")
    with server.start(Setup(2)) as job:
        assert find_failed("save", job.run(f"{ODD}:save_two", run, SMALL)) == []
        answers = job.run(f"{ODD}:restore_like_on", run, SMALL, 1)
        assert find_failed("restore", answers) == []
        assert find_failed("save", job.run(f"{ODD}:save_two", run, SMALL)) == []


@pytest.mark.parametrize("who", [0, 1])
def test_the_others_learn_of_an_interrupted_restore(
    server: JobServer, folder: Path, who: int
) -> None:
    run = str(folder / "run")
    with server.start(Setup(2)) as job:
        assert find_failed("save", job.run(f"{ODD}:save_two", run, SMALL)) == []
        answers = job.run(f"{ODD}:restore_interrupted", run, who)
        assert answers[who].error == "KeyboardInterrupt"
        assert "KeyboardInterrupt" in answers[1 - who].message


def test_an_array_on_another_process_alone_is_refused_by_its_name(
    server: JobServer, folder: Path
) -> None:
    with server.start(Setup(2)) as job:
        answers = job.run(f"{ODD}:save_foreign", str(folder / "run"))
        assert [answer.error for answer in answers] == ["Unsupported"] * 2
        assert all("process 1 alone - at `w`" in answer.message for answer in answers)


def test_the_others_do_not_deny_a_commit_that_process_0_was_interrupted_in(
    server: JobServer, folder: Path
) -> None:
    run = folder / "run"
    with server.start(Setup(2)) as job:
        answers = job.run(f"{ODD}:save_interrupted_after_the_commit", str(run))
    assert [answer.status for answer in answers] == ["raised", "returned"]
    assert answers[0].error == "KeyboardInterrupt"
    assert ckpt.steps(run) == [1]
    assert ckpt.verify(run).ok


def test_a_plan_gives_what_processes_have_for_themselves_to_each(
    server: JobServer, folder: Path
) -> None:
    with server.start(Setup(2)) as job:
        answers = job.run(f"{ODD}:save_own_and_plan", str(folder / "run"))
    own = 64 * 16 * 4
    assert [answer.value for answer in answers] == [[[own, own], 2 * own]] * 2


def test_a_run_begins_with_keys_and_arrays_of_one_process(
    server: JobServer, folder: Path
) -> None:
    with server.start(Setup(2)) as job:
        answers = job.run(f"{ODD}:resume_lone", str(folder / "run"))
        assert find_failed("resume", answers) == []
        assert [answer.value for answer in answers] == [[True] * 5] * 2
