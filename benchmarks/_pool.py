"""Starts, asks and stops the workers."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_ROOT = Path(__file__).resolve().parent.parent

_Process = subprocess.Popen[bytes]


class WorkerError(Exception):
    """A contender failed, stopped or didn't answer in time."""


class _RequestError(WorkerError):
    """A worker answered that the request failed."""


@dataclass(frozen=True, slots=True)
class Job:
    """The processes in which one contender works, and the devices of each."""

    contender: str
    devices: int
    processes: int = 1


class Pool:
    """The running workers, one set for each job."""

    def __init__(self, log: Path, *, timeout: float) -> None:
        self._log = log.open("ab")
        self._timeout = timeout
        self._running: dict[Job, list[_Process]] = {}

    def ask(self, job: Job, **request: Any) -> list[dict[str, Any]]:
        """The answer of each process; a job that cannot answer any more is stopped."""
        processes = self._running.get(job)
        if processes is None:
            processes = self._running[job] = self._start(job)
        try:
            return _exchange(processes, request, timeout=self._timeout)
        except WorkerError as error:
            alone = job.processes == 1
            # The others of a job may wait for the one that failed.
            if not (alone and isinstance(error, _RequestError)):
                self.stop(job)
            raise

    def start(self, jobs: Iterable[Job]) -> None:
        """Starts the workers at once and waits until all have imported and idle."""
        wanted = list(jobs)
        for job in wanted:
            if job not in self._running:
                self._running[job] = self._start(job)
        for job in wanted:
            # A worker that fails now fails again in its turn, and is reported there.
            with contextlib.suppress(WorkerError):
                self.ask(job, do="release")

    def is_running(self, job: Job) -> bool:
        return job in self._running

    def stop(self, job: Job) -> None:
        _stop(self._running.pop(job, []))

    def stop_all(self) -> None:
        for job in list(self._running):
            self.stop(job)

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

    def _start(self, job: Job) -> list[_Process]:
        paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        address = f"localhost:{_find_port()}"
        fixed = [job.contender, job.devices, job.processes, address]
        return [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks._worker", *map(str, [*fixed, n])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=environment,
                bufsize=0,
            )
            for n in range(job.processes)
        ]


def _find_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def _exchange(
    processes: Sequence[_Process], request: dict[str, Any], *, timeout: float
) -> list[dict[str, Any]]:
    message = json.dumps(request).encode() + b"\n"
    lines: dict[int, bytes] = {}
    of_pipe: dict[int, _Process] = {}
    for process in processes:
        if process.stdin is None or process.stdout is None:
            raise WorkerError("the worker has no pipes")
        of_pipe[process.stdout.fileno()] = process
        lines[process.stdout.fileno()] = b""
        try:
            process.stdin.write(message)
        except BrokenPipeError:
            raise WorkerError(f"the worker stopped ({_ending(process)})") from None
    deadline = time.monotonic() + timeout
    while waiting := [pipe for pipe, line in lines.items() if not line.endswith(b"\n")]:
        left = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(waiting, [], [], left)
        if not ready:
            raise WorkerError(f"no answer to {request['do']} in {timeout:.0f} s")
        for pipe in ready:
            part = os.read(pipe, 65_536)
            if not part:
                raise WorkerError(f"the worker stopped ({_ending(of_pipe[pipe])})")
            lines[pipe] += part
            if lines[pipe].endswith(b"\n") and "error" in json.loads(lines[pipe]):
                raise _RequestError(json.loads(lines[pipe])["error"])
    return [json.loads(line) for line in lines.values()]


def _ending(process: _Process) -> str:
    try:
        return f"exit {process.wait(timeout=10)}"
    except subprocess.TimeoutExpired:
        return "still ending"


def _stop(processes: Sequence[_Process]) -> None:
    for process in processes:
        if process.stdin is not None:
            process.stdin.close()
    deadline = time.monotonic() + 10
    for process in processes:
        try:
            process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
