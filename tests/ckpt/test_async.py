"""Saves in the background: isolated from the caller, in order, never forgotten."""

import gc
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import ckpt
from ckpt import _hold, _staging


def sharded(value: np.ndarray[Any, Any]) -> jax.Array:
    mesh = jax.make_mesh((8,), ("x",))
    return jax.device_put(value, NamedSharding(mesh, PartitionSpec("x")))


def test_two_hundred_donating_steps_save_what_each_step_held(tmp_path: Path) -> None:
    """Every third step is saved while the next ones reuse its memory."""

    def advance(state: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {"w": state["w"] * 3 + 1, "b": state["b"] + state["w"][:8, 0]}

    step = jax.jit(advance, donate_argnums=0)
    w = np.arange(8 * 4096, dtype=np.uint32).reshape(8, 4096)
    state: Any = {"w": sharded(w), "b": sharded(np.zeros(8, np.uint32))}
    b = np.zeros(8, np.uint32)
    expected: dict[int, tuple[Any, Any]] = {}
    for number in range(200):
        if number % 3 == 0:
            ckpt.save_async(state, None, tmp_path, step=number, max_pending=3)
            expected[number] = w, b
        state = step(state)
        w, b = w * np.uint32(3) + np.uint32(1), b + w[:8, 0]
    ckpt.save_async({"end": 0}, None, tmp_path, step=999).result()
    assert ckpt.steps(tmp_path) == [*expected, 999]
    for number, (w, b) in expected.items():
        found = ckpt.restore(tmp_path, step=number)
        np.testing.assert_array_equal(found["w"], w)
        np.testing.assert_array_equal(found["b"], b)


def test_views_in_the_place_of_copies_would_fail_that_test() -> None:
    """On CPU devices numpy sees the buffer itself, and in-place changes show."""
    array = np.arange(4)
    view = array[:]
    array += 1
    assert view[0] == 1


def test_the_caller_may_mutate_and_delete_at_once(tmp_path: Path) -> None:
    host, device = np.arange(300_000.0), sharded(np.arange(800_000.0))
    nested: dict[str, Any] = {"list": [host], "device": device, "text": "t" * 5000}
    pending = ckpt.save_async(nested, None, tmp_path)
    host *= 0
    device.delete()
    nested["list"].clear()
    pending.result()
    found = ckpt.restore(tmp_path)
    np.testing.assert_array_equal(found["list"][0], np.arange(300_000.0))
    np.testing.assert_array_equal(found["device"], np.arange(800_000.0))
    assert found["text"] == "t" * 5000


def test_saves_of_a_run_number_themselves_in_the_order_of_the_calls(
    tmp_path: Path,
) -> None:
    pending = [
        ckpt.save_async({"n": n}, None, tmp_path, max_pending=4) for n in range(6)
    ]
    assert [p.result().step for p in pending] == list(range(6))
    assert [ckpt.restore(tmp_path, step=n)["n"] for n in range(6)] == list(range(6))


def test_a_save_waits_for_those_in_the_background(tmp_path: Path) -> None:
    state = {"w": np.zeros(4_000_000)}
    pending = ckpt.save_async(state, None, tmp_path)
    assert ckpt.save(state, None, tmp_path).step == 1
    assert pending.done()


def test_a_failure_shows_at_result_and_is_never_a_step(tmp_path: Path) -> None:
    ckpt.save({"n": 0}, None, tmp_path, step=1)
    pending = ckpt.save_async({"n": 1}, None, tmp_path, step=1)
    with pytest.raises(ckpt.StepExists):
        pending.result()
    assert ckpt.restore(tmp_path)["n"] == 0
    # It was looked at: the next save says nothing of it.
    ckpt.save({"n": 2}, None, tmp_path, step=2)


def test_a_failure_nobody_looked_at_is_raised_by_the_next_save(tmp_path: Path) -> None:
    ckpt.save({"n": 0}, None, tmp_path, step=1)
    ckpt.save_async({"n": 1}, None, tmp_path, step=1)
    with pytest.raises(ckpt.StepExists):
        ckpt.save_async({"n": 2}, None, tmp_path, step=2)
    ckpt.save_async({"n": 2}, None, tmp_path, step=2).result()
    assert ckpt.steps(tmp_path) == [1, 2]


def test_every_failure_is_raised_in_its_turn_unless_it_was_looked_at(
    tmp_path: Path,
) -> None:
    ckpt.save({"n": 0}, None, tmp_path, step=1)
    ckpt.save({"n": 0}, None, tmp_path, step=2)
    # While this one is written, the others wait their turn.
    ckpt.save_async({"w": np.zeros(3_000_000)}, None, tmp_path, step=4)
    failing = [
        ckpt.save_async({"n": 1}, None, tmp_path, step=step, max_pending=3)
        for step in (1, 2)
    ]
    while not all(pending.done() for pending in failing):
        time.sleep(0.01)
    for step in (1, 2):
        with pytest.raises(ckpt.StepExists, match=f"step {step} "):
            ckpt.save({"n": 3}, None, tmp_path, step=3)
    ckpt.save({"n": 3}, None, tmp_path, step=3)


def test_a_pending_save_cannot_be_cancelled_and_the_next_is_done(
    tmp_path: Path,
) -> None:
    state = {"w": np.zeros(3_000_000)}
    pending = [ckpt.save_async(state, None, tmp_path, max_pending=3) for _ in range(3)]
    assert not any(p.cancel() for p in pending)
    assert [p.result().step for p in pending] == [0, 1, 2]


def test_a_failed_save_keeps_no_copy_of_the_state(tmp_path: Path) -> None:
    """However long its future, which has the error and its traceback, is kept."""
    taken: list[weakref.ref[Any]] = []

    def take(nbytes: int) -> np.ndarray[Any, Any]:
        memory = np.empty(nbytes, np.uint8)
        taken.append(weakref.ref(memory))
        return memory

    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "1.json").mkdir()
    with patch.object(_hold, "take_slab", take):
        pending = ckpt.save_async({"w": np.zeros(500_000)}, None, tmp_path, step=1)
        assert isinstance(pending.exception(), ckpt.CkptError)
    ckpt.save({"n": 0}, None, tmp_path, step=2)
    gc.collect()
    assert [memory() is None for memory in taken] == [True]


def test_at_most_so_many_saves_are_pending(tmp_path: Path) -> None:
    state = {"w": np.zeros(2_000_000)}
    pending = [ckpt.save_async(state, None, tmp_path, max_pending=2) for _ in range(6)]
    # The sixth call returned when four had ended at least.
    assert sum(p.done() for p in pending) >= 4
    pending[-1].result()
    with pytest.raises(ValueError, match="max_pending"):
        ckpt.save_async(state, None, tmp_path, max_pending=0)


def test_a_state_beyond_the_budget_is_written_before_it_returns(tmp_path: Path) -> None:
    state = {"w": np.arange(2_000_000.0)}
    with pytest.warns(UserWarning, match="before it returns"):
        pending = ckpt.save_async(state, None, tmp_path, max_host_bytes=8 << 20)
    assert pending.done()
    np.testing.assert_array_equal(ckpt.restore(tmp_path)["w"], state["w"])


def test_own_values_are_copied_too(tmp_path: Path) -> None:
    rows = np.arange(10)
    pending = ckpt.save_async({"data": ckpt.PerProcess({"rows": rows})}, None, tmp_path)
    rows += 5
    pending.result()
    found = ckpt.restore(tmp_path)["data"].value
    np.testing.assert_array_equal(found["rows"], np.arange(10))


SCRIPT = """
import sys, time
import numpy as np
import ckpt
from ckpt import _staging
run = sys.argv[1]
ckpt.save({"n": 0}, None, run, step=1)
ckpt.save_async({"w": np.arange(6_000_000.0)}, None, run, step=int(sys.argv[2]))
print("training", flush=True)
"""


def run_script(end: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT + end, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_an_exception_in_the_loop_loses_no_pending_save(tmp_path: Path) -> None:
    done = run_script("raise RuntimeError('in the loop')", str(tmp_path), "2")
    assert done.returncode == 1
    assert "in the loop" in done.stderr
    assert ckpt.steps(tmp_path) == [1, 2]
    assert ckpt.verify(tmp_path).ok


def test_an_interrupt_loses_no_pending_save(tmp_path: Path) -> None:
    # What starts the tests may have it ignored, as shells do for background jobs.
    heeds = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code = heeds + SCRIPT + "time.sleep(60)"
    command = [sys.executable, "-c", code, str(tmp_path), "2"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as job:
        assert job.stdout
        assert job.stdout.readline() == "training\n"
        time.sleep(0.05)
        job.send_signal(signal.SIGINT)
        _, errors = job.communicate(timeout=120)
    assert "KeyboardInterrupt" in errors
    assert ckpt.steps(tmp_path) == [1, 2]
    assert ckpt.verify(tmp_path).ok


def test_a_failure_nobody_looked_at_is_printed_at_exit(tmp_path: Path) -> None:
    done = run_script("", str(tmp_path), "1")
    assert "StepExists" in done.stderr
    assert str(tmp_path) in done.stderr
    assert "StepExists" not in run_script("", str(tmp_path / "b"), "2").stderr


def test_arrays_of_devices_are_held_as_they_were() -> None:
    key = jax.random.key(1)
    state = {"key": key, "scalar": jnp.float32(2.5), "empty": jnp.zeros((0, 3))}
    ckpt.save_async(state, None, "memory://held").result()
    found = ckpt.restore("memory://held")
    assert jax.random.key_data(found["key"]).tolist() == [0, 1]
    assert found["scalar"] == np.float32(2.5)
    assert found["empty"].shape == (0, 3)


def test_memory_for_copies_is_kept_warm_and_let_go() -> None:
    state = {"w": np.ones(5 << 20)}
    for _ in range(3):
        ckpt.save_async(state, None, "memory://warm").result()
        while not _staging._kept.slabs:
            time.sleep(0.01)
        assert len(_staging._kept.slabs) == 1
    _staging.let_go()
    assert not _staging._kept.slabs
