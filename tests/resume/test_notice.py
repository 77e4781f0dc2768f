"""Signals, files and functions tell a process to stop, wherever it is just then."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests._harness.jobs import wait_until

TERM, USR1 = signal.SIGTERM, signal.SIGUSR1


@contextmanager
def listening(doing: str = "", argument: str = "") -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.resume._listen", doing, argument],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Children of a shell's background job ignore what it ignores.
        restore_signals=True,
    ) as process:
        try:
            assert heard(process) == "ready"
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def test_signals_are_heard_and_their_old_handlers_only_afterwards() -> None:
    with listening() as process:
        process.send_signal(USR1)
        assert heard(process) == "SIGUSR1"
        # Slurm sends SIGTERM at the end, whatever it sent before: no second notice.
        process.send_signal(TERM)
        assert heard(process) == "SIGTERM"
        say(process, "end")
        assert heard(process) == f"before {USR1.value}"
        assert heard(process) == "after True"
        assert process.wait(10) == 0


def test_a_second_signal_ends_the_process_at_once() -> None:
    with listening() as process:
        process.send_signal(TERM)
        assert heard(process) == "SIGTERM"
        time.sleep(0.2)
        process.send_signal(TERM)
        assert process.wait(10) == 128 + TERM


def test_signals_are_heard_in_a_call_that_python_does_not_return_from() -> None:
    with listening("busy") as process:
        process.send_signal(TERM)
        assert heard(process) == "SIGTERM"
        assert process.poll() is None
        time.sleep(0.2)
        process.send_signal(TERM)
        assert process.wait(10) == 128 + TERM


def test_a_notice_that_is_delivered_twice_is_one() -> None:
    with listening() as process:
        for _ in range(3):
            process.send_signal(TERM)
        assert heard(process) == "SIGTERM"
        say(process, "end")
        assert heard(process) == f"before {USR1.value}"


def test_what_was_answered_can_be_told_again() -> None:
    with listening() as process:
        for _ in range(3):
            process.send_signal(TERM)
            assert heard(process) == "SIGTERM"
            time.sleep(0.2)
            say(process, "forget")
            assert heard(process) == "forgotten"


def test_signals_are_heard_although_jax_distributed_took_them() -> None:
    with listening("distributed") as process:
        process.send_signal(TERM)
        assert heard(process) == "SIGTERM"


def test_signals_are_heard_beside_an_event_loop() -> None:
    with listening("loop") as process:
        process.send_signal(TERM)
        assert heard(process) == "SIGTERM"


def test_a_file_that_appears_is_a_notice(tmp_path: Path) -> None:
    file = tmp_path / "preempted"
    with listening("file", str(file)) as process:
        file.touch()
        assert heard(process) == str(file)
        wait_until(lambda: process.poll() is None)


def test_a_function_is_asked_until_it_says_yes() -> None:
    with listening("ask", "2") as process:
        assert heard(process) == "is_noticed"
