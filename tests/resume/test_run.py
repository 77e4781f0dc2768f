"""What a Run resumes, saves, refuses and warns of, in one process."""

import contextlib
import itertools
import shutil
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ckpt
from ckpt.resume import Batches, Last, Stream, choose_interval, every
from tests.resume._counter import batch_of, train


def test_a_run_begins_saves_and_goes_on(memory_run: Path) -> None:
    state, seen = train(memory_run, 5)
    assert seen == [1000, 1001, 1002, 1003, 1004]
    assert ckpt.steps(memory_run) == [2, 4, 5]
    assert ckpt.open(memory_run).metrics == {"sum": int(state["sum"])}
    state, seen = train(memory_run, 7)
    assert seen == [1005, 1006]
    assert state["sum"] == sum(range(1000, 1007))
    assert type(state["sum"]) is np.int64
    # There is nothing left to do.
    assert train(memory_run, 7)[1] == []


def test_the_state_can_be_read_without_a_run(memory_run: Path) -> None:
    state, _ = train(memory_run, 4)
    assert ckpt.restore(memory_run, select="state/**")["state"] == state


def test_a_source_in_the_place_of_its_stream_saves_no_other_position(
    memory_run: Path,
) -> None:
    source = Batches(batch_of, seed=1)
    with ckpt.Run(memory_run, save=None, signals=()) as run:
        _, data = run.resume({"sum": np.int64(0)}, source)
        for step in run.steps(until=2):
            next(data)
            run.saved(step, {"sum": np.int64(0)}, source)
    assert train(memory_run, 3)[1] == [1002]


def test_old_steps_are_pruned(memory_run: Path) -> None:
    train(memory_run, 9, keep=ckpt.Keep(last=2))
    assert ckpt.steps(memory_run) == [8, 9]


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (Batches(batch_of, seed=2), r"seed: expected 1 \(saved\), found 2"),
        (
            Batches(batch_of, seed=1, batch_size=8),
            r"batch_size: expected None \(saved\), found 8",
        ),
        (
            Batches(batch_of, seed=1, name="other"),
            r"name: expected None \(saved\), found 'other'",
        ),
    ],
)
def test_another_data_pipeline_is_refused(
    memory_run: Path, now: Any, line: str
) -> None:
    train(memory_run, 2)
    with pytest.raises(ckpt.DataMismatch, match=line):
        train(memory_run, 4, data=now)


def test_another_seed_is_taken_on_request(memory_run: Path) -> None:
    train(memory_run, 2)
    now = Batches(batch_of, seed=2)
    with pytest.warns(UserWarning, match=r"seed: expected 1 \(saved\), found 2"):
        _, seen = train(memory_run, 4, data=now, resume={"check_data": False})
    assert seen == [2002, 2003]


def test_another_config_is_warned_of(memory_run: Path) -> None:
    train(memory_run, 2, config={"optimizer": "adamw", "rate": 0.1, "betas": (0.9, 1)})
    told = r"optimizer: expected 'adamw' \(saved\), found 'sgd'; rate: expected 0.1"
    with pytest.warns(UserWarning, match=told):
        train(memory_run, 4, config={"optimizer": "sgd", "betas": (0.9, 1)})


def test_settings_that_change_numbers_are_warned_of(memory_run: Path) -> None:
    train(memory_run, 2)
    told = r"jax_default_matmul_precision: expected 'None' \(saved\), found 'float32'"
    with (
        jax.default_matmul_precision("float32"),
        pytest.warns(UserWarning, match=told),
    ):
        train(memory_run, 4)


def test_another_optimizer_is_refused_by_its_leaves(memory_run: Path) -> None:
    params = {"w": jnp.ones(3)}
    before, after = optax.adam(0.1), optax.sgd(0.1, momentum=0.9)
    with ckpt.Run(memory_run, save=None) as run:
        state, _ = run.resume({"params": params, "opt": before.init(params)})
        for step in run.steps(until=1):
            run.saved(step, state)
    with (
        ckpt.Run(memory_run, save=None) as run,
        pytest.raises(ckpt.StructureMismatch) as found,
    ):
        run.resume({"params": params, "opt": after.init(params)})
    assert "at `state/opt/0/mu/w`" in str(found.value)
    assert "the model or the optimizer is not the one" in str(found.value)


def test_what_may_differ_can_be_said(memory_run: Path) -> None:
    with ckpt.Run(memory_run, save=None) as run:
        state, _ = run.resume({"old": jnp.ones(3), "gone": jnp.zeros(2)})
        for step in run.steps(until=1):
            run.saved(step, state)
    like = {"new": jnp.zeros(3), "more": jnp.full(2, 7.0)}
    with ckpt.Run(memory_run, save=None) as run:
        state, _ = run.resume(
            like, rename={"old": "new"}, missing="keep", extra="ignore"
        )
    np.testing.assert_array_equal(state["new"], np.ones(3))
    np.testing.assert_array_equal(state["more"], np.full(2, 7.0))


def test_a_step_that_is_not_told_of_is_warned_of(memory_run: Path) -> None:
    def train_silently() -> None:
        with ckpt.Run(memory_run, save=every(steps=2)) as run:
            run.resume({"x": 1})
            for step in run.steps(until=3):
                if step == 2:
                    run.saved(step, {"x": 2})

    with pytest.warns(UserWarning, match=r"after step 3 .* came after step 2 is lost"):
        train_silently()
    assert ckpt.steps(memory_run) == [2]


def test_a_step_that_no_run_saved_is_refused(memory_run: Path) -> None:
    ckpt.save({"w": jnp.ones(2)}, None, memory_run, step=1)
    with (
        ckpt.Run(memory_run) as run,
        pytest.raises(ckpt.StructureMismatch, match=r"that ckpt.Run saved .*, found w"),
    ):
        run.resume({"w": jnp.ones(2)})


def test_calls_out_of_order_are_refused(memory_run: Path) -> None:
    run = ckpt.Run(memory_run, save=every(steps=1))
    with pytest.raises(RuntimeError, match="expected a run that was entered, found on"):
        run.resume({"x": 1})
    with run:
        with pytest.raises(RuntimeError, match=r"expected resume\(\) before this"):
            run.saved(1, {})
        run.resume({"x": 1})
        run.saved(1, {"x": 2})
        with pytest.raises(ValueError, match="expected a step after 1, found 0"):
            run.saved(0, {"x": 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"save": 5}, "expected save=ckpt.every"),
        ({"keep": 3}, "expected keep=ckpt.Keep"),
        ({"config": {"a": 1, "f": print}}, "at `f`"),
    ],
)
def test_options_that_mean_nothing_are_refused_at_once(
    memory_run: Path, options: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        ckpt.Run(memory_run, **options)


def put_a_file_in_the_place_of(folder: Path) -> None:
    """Move a folder away; a save under way may make it again, and again."""
    for number in itertools.count():
        folder.rename(folder.with_name(f"gone-{number}"))
        with contextlib.suppress(FileExistsError):
            folder.touch(exist_ok=False)
            return


def test_a_save_that_failed_in_the_background_is_raised(memory_run: Path) -> None:
    def train_on_a_broken_disk() -> None:
        with ckpt.Run(memory_run, save=every(steps=1)) as run:
            run.resume({"x": 1})
            for step in run.steps(until=50):
                if step == 3:
                    put_a_file_in_the_place_of(memory_run / "steps")
                run.saved(step, {"x": step})

    with pytest.raises(ckpt.StoreError):
        train_on_a_broken_disk()


def test_a_mirror_has_all_at_the_end(memory_run: Path, disk_run: Path) -> None:
    train(memory_run, 5, mirror=disk_run, keep_local=1)
    assert ckpt.steps(disk_run) == [2, 4, 5]
    assert ckpt.steps(memory_run) == [5]
    for file in memory_run.rglob("*"):
        if file.is_file():
            file.unlink()
    assert train(memory_run, 6, mirror=disk_run)[1] == [1005]


def test_a_mirror_that_is_gone_does_not_keep_a_stopped_run_from_saying_so(
    memory_run: Path, disk_run: Path
) -> None:
    def train_until_told() -> None:
        notices = iter([False, True])
        with ckpt.Run(
            memory_run,
            save=None,
            mirror=disk_run,
            signals=(),
            notice=lambda: next(notices, False),
        ) as run:
            run.resume({"x": 0})
            shutil.rmtree(disk_run, ignore_errors=True)
            disk_run.touch()
            for step in run.steps():
                time.sleep(0.01)
                run.saved(step, {"x": step})

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with pytest.raises(SystemExit) as stopped:
            train_until_told()
    assert "the next start goes on" in str(found[-1].message)
    assert stopped.value.code == 85
    assert len(ckpt.steps(memory_run)) == 1


def test_failures_that_the_log_tells_of_make_saves_more_frequent(
    memory_run: Path,
) -> None:
    def fail() -> None:
        with ckpt.Run(memory_run) as run:
            run.resume({"x": 0})
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    clock = itertools.count(0.0, 50.0)
    with ckpt.Run(memory_run, save="auto", clock=clock.__next__) as run:
        run.resume({"x": 0})
        with mock.patch(
            "ckpt.resume._auto.choose_interval", wraps=choose_interval
        ) as chosen:
            for step in run.steps(until=40):
                run.saved(step, {"x": step})
    assert {call.kwargs["failures"] for call in chosen.mock_calls if call.kwargs} == {1}
    # The first after a minute; then as the stall of that, which is short, has it.
    assert 2 in ckpt.steps(memory_run)


def test_a_policy_is_a_function_of_its_arguments() -> None:
    policy = every(steps=10, minutes=1)
    told = [(9, 59.0), (10, 0.0), (11, 59.9), (11, 60.0), (20, 100.0)]
    found = [policy(step, now, Last(0, 0.0)) for step, now in told]
    assert found == [False, True, False, True, True]
    assert not every(steps=10)(11, 1e9, Last(0, 0.0))
    with pytest.raises(ValueError, match="expected minutes= or seconds=, found both"):
        every(minutes=1, seconds=1)


def test_any_function_can_be_the_policy(memory_run: Path) -> None:
    train(memory_run, 7, save=lambda step, now, last: step - last.step == 3)
    assert ckpt.steps(memory_run) == [3, 6, 7]


def test_a_clock_is_an_argument(memory_run: Path) -> None:
    times = iter(range(0, 10_000, 10))
    train(memory_run, 8, save=every(seconds=25), clock=lambda: float(next(times)))
    # A step asks once, a save asks again: 30 seconds behind the last save is enough.
    assert ckpt.steps(memory_run) == [3, 6, 8]


def test_a_loader_that_ends_begins_its_next_epoch(memory_run: Path) -> None:
    data = Stream(range(3), batch_size=1)
    _, first = train(memory_run, 4, data=data)
    _, second = train(memory_run, 8, data=Stream(range(3), batch_size=1))
    assert [x for batch in first + second for x in batch] == [0, 1, 2, 0, 1, 2, 0, 1]


def test_auto_measures_once_and_then_saves_as_often_as_pays(memory_run: Path) -> None:
    times = itertools.count(0.0, 20.0)
    train(memory_run, 30, save="auto", clock=lambda: next(times))
    # The first after a minute, to measure; then minutes apart, as little ever fails.
    found = ckpt.steps(memory_run)
    assert (found[0], found[-1]) == (3, 30)
    assert found[1] > 4
