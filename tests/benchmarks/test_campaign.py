from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks._campaign import Failure, Record, plan_turns, run_turns
from benchmarks._cases import find_case
from benchmarks._media import count_stored_bytes, find_file_system, find_medium
from benchmarks._overlap import ALONE, BESIDE, COPY, LOST, RETURN, STALLED
from benchmarks._pool import Job, Pool, WorkerError
from benchmarks.contenders import CONTENDERS, Contender, find_contender


def test_every_contender_has_one_turn_in_every_round() -> None:
    turns = plan_turns(find_case("a"), contenders=CONTENDERS, rounds=3, seed=0)
    names = sorted(x.name for x in CONTENDERS)
    for number in range(4):
        assert sorted(x.contender.name for x in turns if x.round == number) == names


def test_rounds_differ_in_order_and_follow_the_seed() -> None:
    def order(seed: int) -> list[list[str]]:
        turns = plan_turns(find_case("a"), contenders=CONTENDERS, rounds=5, seed=seed)
        return [[x.contender.name for x in turns if x.round == n] for n in range(6)]

    assert order(0) == order(0)
    assert order(0) != order(1)
    assert len({tuple(x) for x in order(0)}) > 1


def test_every_target_is_restored_once_a_turn() -> None:
    case = find_case("d")
    turns = plan_turns(case, contenders=CONTENDERS, rounds=2, seed=0)
    assert all(sorted(x.targets) == sorted(case.targets) for x in turns)


def test_the_floor_has_no_turn_where_the_mesh_changes() -> None:
    turns = plan_turns(find_case("d"), contenders=CONTENDERS, rounds=1, seed=0)
    assert "floor" not in {x.contender.name for x in turns}


def test_a_medium_must_be_what_its_name_says(tmp_path: Path) -> None:
    assert find_file_system(Path("/proc/self")) == "proc"
    with pytest.raises(ValueError, match="Expected a tmpfs at /proc, found proc"):
        find_medium("tmpfs", folder=Path("/proc"), pause=0.0)
    with pytest.raises(ValueError, match="Expected tmpfs or disk"):
        find_medium("tape", folder=tmp_path, pause=0.0)


def test_stored_bytes_are_those_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "x").write_bytes(b"123")
    (tmp_path / "a" / "b" / "y").write_bytes(b"4567")
    assert count_stored_bytes(tmp_path) == 7


def test_a_turn_is_measured_checked_and_cleaned_up(tmp_path: Path) -> None:
    results = _run(tmp_path, find_contender("floor"), rounds=1)
    assert all(isinstance(x, Record) for x in results)
    operations = [x.operation for x in results if x.round == 1]
    assert operations == ["save", "restore same"]
    stored = {x.stored_bytes for x in results if isinstance(x, Record)}
    assert stored == {4 * 512 * 512 * 4}
    read = [
        x.read_bytes
        for x in results
        if isinstance(x, Record) and x.operation == "restore same"
    ]
    assert all(4 * 512 * 512 * 4 <= x < 5 * 512 * 512 * 4 for x in read)
    assert [x.name for x in tmp_path.iterdir()] == ["log"]


def test_a_contender_that_cannot_start_is_a_failure_and_not_a_hang(
    tmp_path: Path,
) -> None:
    broken = Contender("no such library", "_nothing", ())
    (failure,) = _run(tmp_path, broken, rounds=2)
    assert isinstance(failure, Failure)
    assert (failure.operation, failure.round) == ("prepare", 0)
    assert failure.reason == "the worker stopped (exit 1)"


def test_a_request_that_fails_is_an_error_and_the_worker_lives_on(
    tmp_path: Path,
) -> None:
    job = Job("floor", devices=8)
    with Pool(tmp_path / "log", timeout=60.0) as pool:
        with pytest.raises(WorkerError, match="Expected a known request, found 'fly'"):
            pool.ask(job, do="fly")
        assert pool.is_running(job)
        (answer,) = pool.ask(job, do="release")
        assert answer["resident_bytes"] > 0


def test_a_process_that_fails_ends_its_job_and_not_the_campaign(tmp_path: Path) -> None:
    job = Job("floor", devices=2, processes=2)
    with Pool(tmp_path / "log", timeout=60.0) as pool:
        with pytest.raises(WorkerError, match="Expected a known request, found 'fly'"):
            pool.ask(job, do="fly")
        assert not pool.is_running(job)


def test_only_contenders_that_can_have_turns_in_jobs_and_beside_training() -> None:
    for name, able in (("j4", "jobs"), ("s1", "overlaps"), ("s2", "overlaps")):
        turns = plan_turns(find_case(name), contenders=CONTENDERS, rounds=1, seed=0)
        expected = {x.name for x in CONTENDERS if getattr(x, able)}
        assert {x.contender.name for x in turns} == expected
        assert {"ckpt", "orbax v0"} <= expected


def test_a_job_saves_and_a_larger_one_restores_and_checks(tmp_path: Path) -> None:
    results = _run(tmp_path, find_contender("ckpt"), rounds=1, case="j2")
    records = [x for x in results if isinstance(x, Record)]
    assert len(records) == len(results)
    saved, restored = (x for x in records if x.round == 1)
    assert (saved.operation, restored.operation) == ("save", "restore 2->4")
    assert len(saved.process_written_bytes) == 2
    assert len(restored.process_read_bytes) == 4
    # Four matrices with their biases, and four tables, in f32.
    values = 4 * (4 * (256 * 256 + 256) + 4 * 32 * 1024)
    assert values <= saved.written_bytes == sum(saved.process_written_bytes)
    assert values <= restored.read_bytes == sum(restored.process_read_bytes)


def test_training_beside_a_save_is_measured(tmp_path: Path) -> None:
    results = _run(tmp_path, find_contender("ckpt"), rounds=1, case="s1")
    assert all(isinstance(x, Record) for x in results)
    operations = {x.operation for x in results if x.round == 1}
    assert operations >= {COPY, RETURN, ALONE, BESIDE, LOST, STALLED, "durable after"}


def _run(
    folder: Path, contender: Contender, *, rounds: int, case: str = "a"
) -> list[Record | Failure]:
    name = "tmpfs" if find_file_system(folder) == "tmpfs" else "disk"
    medium = find_medium(name, folder=folder, pause=0.0)
    turns = plan_turns(find_case(case), contenders=[contender], rounds=rounds, seed=0)
    with Pool(folder / "log", timeout=120.0) as pool:
        return list(
            run_turns(turns, medium=medium, pool=pool, quick=True, report=print)
        )
