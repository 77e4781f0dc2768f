"""Start many short-lived writers fast: a warm process forks one child per job.

The shim of `crashpoint` is preloaded; each child arms it for its
own job, just before the target is called.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from types import TracebackType
from typing import Any, Literal, Self

from tests._harness.crashpoint import Mode
from tests._harness.warm import WarmProcess


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
        settings = {"JAX_NUM_CPU_DEVICES": str(devices)}
        self._warm = WarmProcess("tests._harness.forkmain", *modules, settings=settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._warm.terminate()
        self._warm.close()

    def run(self, *jobs: Job) -> tuple[Outcome, ...]:
        """Run the jobs at the same time, each in a child of its own."""
        outcomes = self._warm.ask([asdict(job) for job in jobs])
        return tuple(Outcome(**outcome) for outcome in outcomes)


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
