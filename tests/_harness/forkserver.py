"""Start many short-lived writers fast: a warm process forks one child per job.

Importing jax takes over a second, forking a process that has done so a millisecond. The
warm process has imported it but has not started its backend, whose threads would not
live on in a child. The shim of `crashpoint` is preloaded; each child arms it for its
own job, just before the target is called.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tests._harness.crashpoint import Mode, preload

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong in a job: the call number `at` under `prefix`, as `mode` says."""

    prefix: str
    at: int = 0
    mode: Mode = "count"
    log: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One call of `module:function` in a child, its arguments plain JSON values."""

    target: str
    args: Sequence[Any] = ()
    fault: Fault | None = None
    timeout: int = 60


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended, what it returned or raised, and what the shim counted.

    `calls` and `faults` are None for a child that died, as it did in `killed` by the
    shim's SIGKILL or another, in `hung` at its timeout, and in `died` of anything else.
    """

    status: Literal["returned", "raised", "killed", "hung", "died"]
    value: Any = None
    error: str = ""
    message: str = ""
    calls: int | None = None
    faults: int | None = None
    stderr: str = field(default="", repr=False)


class ForkServer:
    """A warm process that has imported `modules`; use it as a context manager."""

    def __init__(self, *modules: str, devices: int = 1) -> None:
        settings = {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices),
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests._harness.forkmain", *modules],
            env=preload(dict(os.environ)) | settings,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.terminate()
        self._process.communicate()

    def run(self, *jobs: Job) -> tuple[Outcome, ...]:
        """Run the jobs at the same time, each in a child of its own."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("Expected pipes to the warm process, found none")
        with suppress(BrokenPipeError):
            stdin.write(json.dumps([asdict(job) for job in jobs]) + "\n")
            stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise RuntimeError(f"The warm process ended: {self._process.wait()}")
        return tuple(Outcome(**outcome) for outcome in json.loads(answer))


def sweep(
    server: ForkServer, make_job: Callable[[int], Job], *, width: int = 2
) -> Iterator[tuple[int, Job, Outcome]]:
    """Run the jobs for N = 1, 2, 3 ... until one ends without having met its fault.

    `make_job` prepares a fresh place for each N. `width` jobs run at the same time. The
    clean run that ends the sweep is not yielded, but it must return.
    """
    for start in count(1, width):
        jobs = [make_job(number) for number in range(start, start + width)]
        for number, job, outcome in zip(
            count(start), jobs, server.run(*jobs), strict=False
        ):
            if outcome.faults != 0:
                yield number, job, outcome
                continue
            if outcome.status != "returned":
                raise RuntimeError(
                    f"Fault {number} was not met, found {outcome}\n{outcome.stderr}"
                )
            return
