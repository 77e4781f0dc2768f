"""Following a run yields every commit once, in order, and waits for those to come."""

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ckpt
from ckpt import _follow


def save(run: Path | str, *steps: int, overwrite: bool = False) -> None:
    for step in steps:
        ckpt.save({"x": step}, None, run, step=step, overwrite=overwrite)


def now(found: Iterator[ckpt.Checkpoint]) -> list[int]:
    return [ck.step for ck in found]


def follow_now(run: Path | str, after: int | None = None) -> list[int]:
    return now(ckpt.follow(run, after=after, timeout=0))


def test_it_begins_with_the_newest_or_after_a_step(memory_run: Path) -> None:
    save(memory_run, 1, 5, 10, 20)
    assert follow_now(memory_run) == [20]
    assert follow_now(memory_run, after=20) == []
    assert follow_now(memory_run, after=0) == [1, 5, 10, 20]
    assert follow_now(memory_run, after=5) == [10, 20]


def test_step_0_comes_without_after(memory_run: Path) -> None:
    save(memory_run, 0)
    assert follow_now(memory_run) == [0]


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_new_steps_come_oldest_first_and_once(memory_run: Path, kind: str) -> None:
    run = memory_run if kind == "folder" else f"memory://{memory_run.parent.name}"
    save(run, 1, 2)
    found = ckpt.follow(run, poll=0.001)
    assert next(found).step == 2
    save(run, 30, 4)
    assert [next(found).step for _ in range(2)] == [4, 30]
    save(run, 31)
    assert next(found).step == 31


def test_a_run_that_does_not_exist_is_waited_for(memory_run: Path) -> None:
    trainer = threading.Timer(0.2, save, (memory_run, 1, 2))
    trainer.start()
    found = ckpt.follow(memory_run, poll=0.001)
    assert [next(found).step for _ in range(2)] == [1, 2]
    trainer.join()


def test_an_overwritten_step_comes_again_and_is_the_new_one(memory_run: Path) -> None:
    ckpt.save({"x": "old"}, None, memory_run, step=1)
    save(memory_run, 2)
    found = ckpt.follow(memory_run, poll=0.001)
    assert next(found).step == 2
    ckpt.save({"x": "new"}, None, memory_run, step=1, overwrite=True)
    assert ckpt.restore(next(found).url) == {"x": "new"}
    ckpt.prune(memory_run, drop=[1])
    save(memory_run, 1)
    assert ckpt.restore(next(found).url) == {"x": 1}


def test_every_overwrite_is_found_in_a_run_of_many_steps(
    memory_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_follow, "_LOOKS", 2)
    save(memory_run, *range(9))
    found = ckpt.follow(memory_run, after=0, poll=0.001)
    assert [next(found).step for _ in range(8)] == list(range(1, 9))
    for step in (8, 1, 4):
        save(memory_run, step, overwrite=True)
        assert next(found).step == step


def test_what_is_pruned_before_its_turn_is_left_out(memory_run: Path) -> None:
    save(memory_run, 1, 2, 3, 4)
    found = ckpt.follow(memory_run, after=0, timeout=0)
    assert next(found).step == 1
    ckpt.prune(memory_run, drop=[2, 3])
    assert now(found) == [4]


def test_it_ends_after_the_timeout_and_looks_once_more(memory_run: Path) -> None:
    save(memory_run, 1)
    found = ckpt.follow(memory_run, poll=3600, timeout=0.05)
    assert next(found).step == 1
    save(memory_run, 2)
    assert now(found) == [2]
    assert follow_now(memory_run / "nothing") == []


def test_the_callers_time_is_not_counted(memory_run: Path) -> None:
    save(memory_run, 1)
    found = ckpt.follow(memory_run, poll=0.001, timeout=2)
    next(found)
    time.sleep(2.1)
    trainer = threading.Timer(0.1, save, (memory_run, 2))
    trainer.start()
    assert next(found).step == 2
    trainer.join()


def test_followers_share_nothing(memory_run: Path) -> None:
    save(memory_run, 1)
    first, second = (ckpt.follow(memory_run, timeout=0) for _ in range(2))
    assert now(itertools.chain(first, second)) == [1, 1]


def test_wrong_arguments_are_refused_at_once(memory_run: Path) -> None:
    save(memory_run, 1)
    for poll in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="expected poll"):
            ckpt.follow(memory_run, poll=poll)
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="expected timeout"):
            ckpt.follow(memory_run, timeout=timeout)
    with pytest.raises(ValueError, match="found -2"):
        ckpt.follow(memory_run, after=-2)
    with pytest.raises(ValueError, match="found a checkpoint"):
        ckpt.follow(ckpt.open(memory_run).url)


def test_damage_is_reported(memory_run: Path) -> None:
    save(memory_run, 1)
    (memory_run / "steps" / "1.json").write_text("{}")
    with pytest.raises(ckpt.Damaged, match="expected"):
        follow_now(memory_run)
