"""Starts, asks and stops the workers."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_ROOT = Path(__file__).resolve().parent.parent


class WorkerError(Exception):
    """A contender failed, stopped or didn't answer in time."""


class Pool:
    """The running workers, one for each contender and number of devices."""

    def __init__(self, log: Path, *, timeout: float) -> None:
        self._log = log.open("ab")
        self._timeout = timeout
        self._running: dict[tuple[str, int], subprocess.Popen[bytes]] = {}

    def ask(self, contender: str, *, devices: int, **request: Any) -> dict[str, Any]:
        """The worker's answer; a worker that fails to answer is stopped."""
        key = (contender, devices)
        process = self._running.get(key)
        if process is None:
            process = self._running[key] = self._start(contender, devices=devices)
        try:
            answer = _exchange(process, request, timeout=self._timeout)
        except WorkerError:
            _stop(self._running.pop(key))
            raise
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def start(self, contenders: Iterable[str], *, devices: int) -> None:
        """Starts the workers at once and waits until all have imported and idle."""
        keys = [(name, devices) for name in contenders]
        for key in keys:
            if key not in self._running:
                self._running[key] = self._start(key[0], devices=devices)
        for name, _ in keys:
            # A worker that fails now fails again in its turn, and is reported there.
            with contextlib.suppress(WorkerError):
                self.ask(name, devices=devices, do="release")

    def is_running(self, contender: str, *, devices: int) -> bool:
        return (contender, devices) in self._running

    def stop(self, contender: str, *, devices: int) -> None:
        process = self._running.pop((contender, devices), None)
        if process is not None:
            _stop(process)

    def stop_all(self) -> None:
        for process in self._running.values():
            _stop(process)
        self._running.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop_all()
        self._log.close()

    def _start(self, contender: str, *, devices: int) -> subprocess.Popen[bytes]:
        paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks._worker", contender, str(devices)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            bufsize=0,
        )


def _exchange(
    process: subprocess.Popen[bytes], request: dict[str, Any], *, timeout: float
) -> dict[str, Any]:
    if process.stdin is None or process.stdout is None:
        raise WorkerError("the worker has no pipes")
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
    except BrokenPipeError:
        raise WorkerError(f"the worker stopped (exit {process.wait()})") from None
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], timeout)
        if not ready:
            raise WorkerError(f"no answer to {request['do']} in {timeout:.0f} s")
        part = os.read(process.stdout.fileno(), 65_536)
        if not part:
            raise WorkerError(f"the worker stopped (exit {process.wait()})")
        line += part
    return json.loads(line)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
