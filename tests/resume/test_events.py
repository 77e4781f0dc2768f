"""An event log holds what was added, costs little, and never stops a training."""

import json
import resource
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckpt
from ckpt._errors import StoreError
from ckpt._kv_store import KvStore
from ckpt._store import Store, open_store
from ckpt.resume import EventLog, goodput
from tests.resume._logs import new_run, train
from tests.resume._trainers import Clock


def refuse_constant(text: str) -> None:
    raise ValueError(text)


def read_lines(run: Store) -> list[dict[str, Any]]:
    names = sorted(run.list("events"), key=lambda n: [int(x) for x in numbers(n)])
    data = b"".join(run.read(name, limit=1 << 24) for name in names)
    lines = data.splitlines()
    return [json.loads(line, parse_constant=refuse_constant) for line in lines]


def numbers(name: str) -> list[str]:
    return name.removeprefix("events/").removesuffix(".jsonl").split("-")


KILLED = """
import os, signal, sys
from ckpt._store import open_store
from ckpt.resume import EventLog
log = EventLog.open(open_store(sys.argv[1]), process=0, processes=1, devices=8)
log.add("resume", step=0, seconds=0.5, fresh=True)
for step in range(1, 100):
    log.step(step)
log.add("save", step=99, stall=0.1, reason="due")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_loses_no_event(memory_run: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", KILLED, str(memory_run)]
    done = subprocess.run(command, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    lines = read_lines(open_store(memory_run))
    assert [x["event"] for x in lines[:2]] == ["start", "resume"]
    assert {"process", "processes", "host", "pid", "devices", "t", "m"} <= set(lines[0])
    # The step before the save is told, however fast the steps were.
    assert [(x["event"], x["step"]) for x in lines[-2:]] == [("step", 99), ("save", 99)]
    assert [x["step"] for x in lines[2:5]] == [1, 2, 3]


def test_few_of_many_steps_are_written() -> None:
    run, clock = new_run(), Clock()
    with clock.log(run) as log:
        train(clock, log, 1, 200_000, each=0.5)
    steps = [x for x in read_lines(run) if x["event"] == "step"]
    gaps = np.diff([x["m"] for x in steps])
    assert len(steps) < 20_000
    assert gaps.max() <= 10.5
    assert [x["step"] for x in (*steps[:3], steps[-1])] == [1, 2, 3, 200_000]
    found = goodput(run.url)
    assert found.steps == 200_000
    assert found.wall == pytest.approx(100_000)


def test_threads_add_whole_lines(memory_run: Path) -> None:
    run = open_store(memory_run)
    with EventLog.open(run, process=0) as log:
        work = lambda: [log.add("saved", step=n, text="x" * 300) for n in range(200)]  # noqa: E731
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for step in range(2000):
            log.step(step)
        for thread in threads:
            thread.join()
    lines = read_lines(run)
    assert sum(x["event"] == "saved" for x in lines) == 1600
    assert lines[-1]["step"] in (1999, 199)


def test_any_field_becomes_json(memory_run: Path) -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd \ud800"

    class Mute:
        def __str__(self) -> str:
            raise RuntimeError("mute")

    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    run = open_store(memory_run)
    fields = {
        "nan": float("nan"),
        "f32": np.float32(0.5),
        "i64": np.int64(7),
        "big": 1 << 999,
        "error": OSError(28, "full"),
        "text": "x" * 99_999,
        "deep": deep,
        "odd": Odd(),
        "mute": Mute(),
        "many": list(range(99_999)),
        "dict": {1: (2, None)},
        "t": "mine",
    }
    with EventLog.open(run, process=0) as log:
        log.add("odd", **fields)
        log.add("large", **{f"k{n}": "y" * 900 for n in range(999)})
        log.step(np.int32(4))  # pyright: ignore[reportArgumentType]
    _, odd, large, step = read_lines(run)
    assert (odd["nan"], odd["f32"], odd["i64"]) == ("nan", 0.5, 7)
    assert odd["error"] == "OSError: [Errno 28] full"
    assert odd["dict"] == {"1": [2, None]}
    assert len(odd["text"]) == 1000
    assert len(odd["many"]) == 200
    assert odd["deep"] == [[[["..."]]]]
    assert (odd["odd"], odd["mute"]) == ("odd \ud800", "<Mute>")
    assert odd["t"] != "mine"
    assert large["cut"] > 900_000
    assert step["step"] == 4


def test_a_log_that_cannot_be_made_warns_once(memory_run: Path) -> None:
    memory_run.mkdir()
    (memory_run / "events").write_text("a file in its place")
    with pytest.warns(RuntimeWarning, match="event log .* not whole"):
        log = EventLog.open(open_store(memory_run), process=0)
    # Nothing more is said: a second warning would be an error here.
    with log:
        train(Clock(), log, 1, 5, each=1.0)
        log.add("save", step=5, stall=0.0)
        log.flush()


def add_many(log: EventLog) -> None:
    for step in range(50):
        log.add("notice", step=step, source="x" * 50)


def test_a_full_disk_loses_lines_and_nothing_else(memory_run: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with EventLog.open(open_store(memory_run), process=0) as log:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
            with pytest.warns(RuntimeWarning, match="event log"):
                add_many(log)
            add_many(log)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        log.add("stop", step=50, reason="finished")
    found = goodput(memory_run)
    assert (found.starts, found.skipped, found.failures) == (1, 1, 0)
    (name,) = (memory_run / "events").iterdir()
    assert json.loads(name.read_bytes().splitlines()[-1])["event"] == "stop"


def test_a_warning_that_is_an_error_does_not_end_the_training(
    memory_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory_run.write_text("a file in the place of the run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with EventLog.open(open_store(memory_run), process=0) as log:
            log.add("resume", step=0)
    assert "ckpt: the event log of this process is not whole" in capsys.readouterr().err


def test_an_unsound_clock_does_not_end_the_training() -> None:
    def broken() -> float:
        raise OSError("no clock")

    log = EventLog.open(new_run(), process=0)
    log._clock = broken
    with pytest.warns(RuntimeWarning, match="no clock"):
        log.step(1)
    with log:
        log.add("save", step=1)


def test_starts_at_the_same_moment_have_logs_of_their_own(memory_run: Path) -> None:
    for run in (open_store(memory_run), new_run()):
        clock = Clock()
        for process in (0, 0, 1, 1):
            with clock.log(run, process=process) as log:
                log.add("notice", source="x")
        assert len(run.list("events")) == 4
        assert len(read_lines(run)) == 8


def test_a_start_is_later_than_those_before_though_its_clock_is_not() -> None:
    run, clock = new_run(), Clock(now=1000.0)
    for step in (3, 5, 4):
        with clock.log(run) as log:
            log.add("resume", step=0, seconds=0.0)
            train(clock, log, 1, step, each=1.0)
        clock.now -= 500.0
    assert goodput(run.url).last_step == 4


def test_lines_go_to_a_store_together() -> None:
    run, clock = new_run(), Clock()
    with clock.log(run) as log:
        train(clock, log, 1, 3000, each=1.0)
        log.flush()
        log.add("stop", step=3000, reason="finished")
    names = run.list("events")
    # At most one a minute, and those of the flush and the end.
    assert 2 <= len(names) <= 52
    steps = [x["step"] for x in read_lines(run) if x["event"] == "step"]
    assert steps == sorted(set(steps))
    assert goodput(run.url).steps == 3000


class Failing(KvStore):
    """A store in memory that fails to create the first objects."""

    failures = 3

    def create(self, name: str, data: bytes) -> bool:
        if type(self).failures > 0:
            type(self).failures -= 1
            raise StoreError("expected an answer, found none")
        return super().create(name, data)


def test_a_store_that_fails_warns_once_and_gets_the_lines_later() -> None:
    sound: Any = new_run()
    run = Failing(sound.kv, sound.base, sound.parallel, sound.timeout)
    clock = Clock()
    with clock.log(run) as log:
        with pytest.warns(RuntimeWarning, match="found none"):
            flush_and_wait(log)
        for step in range(1, 7):
            train(clock, log, step, step, each=1.0)
            flush_and_wait(log)
    assert Failing.failures == 0
    steps = [x["step"] for x in read_lines(sound) if x["event"] == "step"]
    assert steps == [1, 2, 3, 4, 5, 6]


def flush_and_wait(log: EventLog) -> None:
    log.flush()
    for thread in threading.enumerate():
        if thread.name == "ckpt-events":
            thread.join()


def test_logs_are_no_part_of_checkpoints(memory_run: Path, tmp_path: Path) -> None:
    with EventLog.open(open_store(memory_run), process=0) as log:
        for step in (1, 2, 3):
            ckpt.save({"x": step}, None, memory_run, step=step)
            log.add("saved", step=step, seconds=0.0, bytes=8)
        ckpt.prune(memory_run, keep=ckpt.Keep(last=1), orphan_age=0)
        log.add("stop", step=3, reason="finished")
    before = read_lines(open_store(memory_run))
    report = ckpt.verify(memory_run)
    assert (report.ok, report.orphans, len(before)) == (True, (), 5)
    assert ckpt.steps(memory_run) == [3]
    ckpt.copy(memory_run, tmp_path / "copy")
    (memory_run / "steps" / "3.json").write_bytes(b"damaged")
    ckpt.prune(memory_run, drop=[3], orphan_age=0)
    assert ckpt.steps(memory_run) == []
    assert read_lines(open_store(memory_run)) == before
    assert not (tmp_path / "copy" / "events").exists()
