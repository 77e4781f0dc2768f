"""What a job does not agree on is refused everywhere, and two jobs never mix."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import ckpt
from tests._harness.crashpoint import read_calls
from tests._harness.forkserver import Fault
from tests._harness.jobs import Answer, Job, JobServer, Setup, wait_until
from tests.faults._oracle import find_complaint
from tests.jobs._matrix import WORK, find_failed

pytestmark = pytest.mark.campaign


def test_of_two_jobs_that_save_one_step_exactly_one_commits(
    server: JobServer, folder: Path
) -> None:
    with server.start(Setup(2)) as first, server.start(Setup(2)) as second:
        for turn in range(4):
            run, meeting = folder / f"run{turn}", folder / f"meeting{turn}"
            meeting.mkdir()
            for seed, job in enumerate((first, second)):
                job.begin(
                    f"{WORK}:save_seed_when_all_are_ready",
                    *(str(run), 1, seed, str(meeting), 4),
                    each=[[f"{seed}-{member}"] for member in range(2)],
                )
            ends = [ends_of(job.collect()) for job in (first, second)]
            assert sorted(ends) == [["StepExists"] * 2, ["returned"] * 2]
            winner = ends.index(["returned"] * 2)
            assert find_complaint(run, [{1: winner}]) == ""


@pytest.mark.parametrize("at", [2, 6])
def test_late_writes_of_an_old_job_change_nothing(
    server: JobServer, folder: Path, at: int
) -> None:
    run = folder / "run"
    with server.start(Setup(2)) as old:
        assert ends_of(old.run(f"{WORK}:save_seed", str(run), 1, 1)) == ["returned"] * 2
        fault = Fault(str(run), at=at, mode="stop")
        old.begin(f"{WORK}:save_seed", str(run), 2, 2, 2.0, faults={1: fault})
        wait_until(lambda: old.is_stopped(1))
        (answer,) = old.collect([0])
        assert answer.error == "BarrierTimeout"
        assert "process 1 " in answer.message
        with server.start(Setup(2)) as new:
            saved = new.run(f"{WORK}:save_seed", str(run), 2, 22)
            assert find_failed("the new job", saved) == []
        old.resume(1)
        (late,) = old.collect([1])
        assert late.status == "raised"
    assert find_complaint(run, [{1: 1, 2: 22}]) == ""


def test_late_writes_of_process_0_change_nothing(
    server: JobServer, folder: Path
) -> None:
    run = folder / "run"
    with server.start(Setup(2)) as old:
        for step, name in [(2, "manifest.json"), (3, "parts/0.json")]:
            fault = stop_at(old, run, folder / f"log{step}", "open", name)
            old.begin(f"{WORK}:save_seed", str(run), step, 1, 1.5, faults={0: fault})
            wait_until(lambda: old.is_stopped(0))
            (answer,) = old.collect([1])
            assert answer.error == "BarrierTimeout"
            assert "process 0 " in answer.message
            with server.start(Setup(2)) as new:
                theirs = new.run(f"{WORK}:save_seed", str(run), step, 22)
                assert find_failed("the new job", theirs) == []
            old.resume(0)
            assert ends_of(old.collect([0])) == ["BarrierTimeout"]
    assert find_complaint(run, [{1: 1, 2: 22, 3: 22}]) == ""


@pytest.mark.parametrize(
    ("call", "end"), [("link", "CommitUnknown"), ("unlink", "returned")]
)
def test_the_commit_of_a_process_0_that_is_stopped_in_it_is_not_denied(
    server: JobServer, folder: Path, call: str, end: str
) -> None:
    run = folder / "run"
    with server.start(Setup(2)) as job:
        fault = stop_at(job, run, folder / "log", call, "steps/1.json.tmp")
        job.begin(f"{WORK}:save_seed", str(run), 2, 2, 1.5, faults={0: fault})
        wait_until(lambda: job.is_stopped(0))
        assert ends_of(job.collect([1])) == [end]
        job.resume(0)
        assert ends_of(job.collect([0])) == ["returned"]
        saved = job.run(f"{WORK}:save_seed", str(run), 3, 3)
        assert find_failed("the next save", saved) == []
    assert find_complaint(run, [{1: 1, 2: 2, 3: 3}]) == ""


def stop_at(job: Job, run: Path, log: Path, call: str, name: str) -> Fault:
    """Save step 1, and return the fault that stops process 0 at its last such call.

    The calls are those of a save of step 1 beside a step 0, in a run of its own.
    """
    if not ckpt.steps(run):
        saved = job.run(f"{WORK}:save_seed", str(run), 1, 1)
        assert find_failed("the first save", saved) == []
    elsewhere = run.with_name(f"{run.name}-counted-{log.name}")
    fault = Fault(str(elsewhere), log=str(log))
    for number in (0, 1):
        counted = job.run(
            f"{WORK}:save_seed",
            *(str(elsewhere), number, 1),
            faults={0: fault} if number else None,
        )
        assert find_failed("a save that is counted", counted) == []
    calls = [c for c in read_calls(log) if c.name == call and c.path.endswith(name)]
    return Fault(str(run), at=calls[-1].number, mode="stop")


@pytest.mark.root
def test_a_folder_that_is_not_shared_is_refused_by_all(
    server: JobServer, folder: Path
) -> None:
    with server.start(Setup(2, private=str(folder))) as job:
        run = str(folder / "run")
        for answer in job.run(f"{WORK}:save_seed", run, 1, 1):
            assert answer.error == "Unsupported", answer.output
            assert "folder that all processes share" in answer.message
        steps = job.run("ckpt:steps", run)
        assert [answer.value for answer in steps] == [[], []]


EQUAL: dict[str, Any] = {"numpy": [1.0, 2.0], "count": 3, "single": [1.0], "text": "x"}


@pytest.mark.parametrize(
    ("mine", "named"),
    [
        ([{"numpy": [1.0, 2.0]}, {"numpy": [1.0, 2.5]}], "numpy"),
        ([{"numpy_odd": [1.0, 2.0]}, {"numpy_odd": [1.0]}], "numpy_odd"),
        ([{"count": 3}, {"count": 4}], "count"),
        ([{"text": "x"}, {"text": "y"}], "text"),
        ([{"single": [1.0]}, {"single": [-1.0]}], "single"),
        ([{"numpy_zero": 0.0}, {"numpy_zero": -0.0}], "numpy_zero"),
        ([{"kind": 1}, {"kind": 1.0}], "kind"),
        ([{}, {"extra": 1}], "extra"),
        ([{"late": [1], "early": 2}, {"early": 2, "late": [1]}], ""),
    ],
)
def test_what_differs_on_the_hosts_is_named_by_all(
    server: JobServer, folder: Path, mine: Sequence[dict[str, Any]], named: str
) -> None:
    run = str(folder / "run")
    with server.start(Setup(2)) as job:
        answers = job.run(f"{WORK}:save_host", run, EQUAL, each=[[m] for m in mine])
        for answer in answers:
            assert answer.status == "raised", answer
            assert issubclass(getattr(ckpt, answer.error), ckpt.CkptError)
            assert f"`{named}`" in answer.message or not named
        assert ckpt.steps(run) == []
        same = job.run(f"{WORK}:save_host", run, EQUAL, {"numpy_nan": [float("nan")]})
        assert find_failed("equal trees", same) == []
    assert ckpt.restore(run)["numpy"].tolist() == [1.0, 2.0]


def test_what_each_process_has_for_itself_comes_back_to_it(
    server: JobServer, folder: Path
) -> None:
    run, both = str(folder / "run"), [[100, [0]], [101, [0, 10]]]
    with server.start(Setup(2)) as job:
        assert find_failed("save", job.run(f"{WORK}:save_own", run)) == []
        answers = job.run(f"{WORK}:restore_own", run)
        assert find_failed("restore", answers) == []
        assert [a.value["value"] for a in answers] == both
        # What a process has no use for it does not read.
        assert answers[0].value["values"] == [both[0], [None, None]]
    for processes in (1, 3):
        with server.start(Setup(processes)) as job:
            answers = job.run(f"{WORK}:restore_own", run)
            assert find_failed("restore", answers) == []
            assert [a.value["values"] for a in answers] == [both] * processes
            assert all("expected" in a.value["value"] for a in answers)
    own = ckpt.restore(run)["own"]
    assert [v["row"] for v in own.values] == [100, 101]
    assert [v["order"].tolist() for v in own.values] == [[0], [0, 10]]


def test_processes_that_call_with_other_arguments_are_refused(
    server: JobServer, folder: Path
) -> None:
    run = str(folder / "run")
    with server.start(Setup(2)) as job:
        answers = job.run(f"{WORK}:save_step", run, each=[[1], [2]])
        assert Counter(a.status for a in answers) == {"raised": 2}
        assert all("same call" in answer.message for answer in answers)
        assert find_failed("next", job.run(f"{WORK}:save_step", run, 1)) == []
    assert ckpt.steps(run) == [1]


def ends_of(answers: Sequence[Answer]) -> list[str]:
    return [answer.error or answer.status for answer in answers]
