"""Trainings that are only told, on clocks that are only counted, and what is true."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from hypothesis import strategies as st

from ckpt._store import Store
from ckpt.resume import EventLog

KINDS = ("productive", "lost", "stall", "restore", "startup", "downtime", "other")


@dataclass
class Clock:
    """Time that passes when it is told to, and says another zero on each start."""

    now: float = 0.0
    zero: float = 1e9
    boot: float = 0.0

    def wall(self) -> float:
        return self.zero + self.now

    def monotonic(self) -> float:
        return self.now - self.boot

    @contextmanager
    def log(
        self, run: Store, *, process: int = 0, processes: int = 1
    ) -> Iterator[EventLog]:
        """Open the log of a start: closing it adds no more than a kill would."""
        self.boot = self.now - 77.0
        with EventLog.open(
            run,
            process=process,
            processes=processes,
            clock=self.wall,
            monotonic=self.monotonic,
        ) as log:
            yield log


@dataclass(frozen=True)
class Start:
    """What one start does: quarters of a second, but for steps and choices."""

    setup: int
    restore: int
    compile: int
    step: int
    steps: int
    stall: int
    tail: int
    down: int
    back: int
    drops: bool
    ends: str
    gets_to_resume: bool


STARTS = st.builds(
    Start,
    setup=st.integers(0, 40),
    restore=st.integers(0, 8),
    compile=st.integers(0, 80),
    step=st.integers(1, 12),
    steps=st.integers(0, 12),
    stall=st.integers(0, 9),
    tail=st.integers(0, 9),
    down=st.integers(0, 400),
    back=st.sampled_from([0, 0, 0, 1, 2, 99]),
    drops=st.booleans(),
    ends=st.sampled_from(["killed", "killed", "finished", "preempted", "failed"]),
    gets_to_resume=st.sampled_from([True, True, True, False]),
)


@dataclass
class Truth:
    """What the time of a training went to, each step followed by itself.

    A state is the tuple of the steps it was made by, each of which knows the seconds
    that it took. What a checkpoint holds is a state.
    """

    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    each: dict[int, float] = field(default_factory=dict[int, float])
    state: tuple[int, ...] = ()
    committed: dict[int, tuple[int, ...]] = field(
        default_factory=dict[int, tuple[int, ...]]
    )
    failures: int = 0

    def finish(self) -> dict[str, float]:
        """Return seconds by kind: the steps of the last state count, others do not."""
        kept = set(self.state)
        for step, seconds in self.each.items():
            self.spent["productive" if step in kept else "lost"] += seconds
        return self.spent


def simulate(run: Store, starts: list[Start], every: int) -> Truth:
    """Write the logs that these starts would write; return what is true of them."""
    clock, truth, names = Clock(), Truth(), count()
    for number, start in enumerate(starts):
        last = number == len(starts) - 1
        _train(run, clock, truth, start, every, names)
        if start.ends == "failed" or (start.ends == "killed" and not last):
            truth.failures += 1
        if not last:
            _pass(clock, truth, start.down, "downtime")
    return truth


def _pass(clock: Clock, truth: Truth, quarters: int, kind: str) -> float:
    seconds = quarters / 4
    clock.now += seconds
    truth.spent[kind] += seconds
    return seconds


def _train(
    run: Store,
    clock: Clock,
    truth: Truth,
    start: Start,
    every: int,
    names: Iterator[int],
) -> None:
    with clock.log(run) as log:
        if start.gets_to_resume:
            _pass(clock, truth, start.setup, "startup")
            _resume(clock, truth, start, log)
            _steps(clock, truth, start, log, every, names)
        if start.ends != "killed":
            kind = "other" if start.gets_to_resume and start.steps else "startup"
            _pass(clock, truth, start.tail, kind)
            log.add("stop", step=len(truth.state), reason=start.ends)


def _resume(clock: Clock, truth: Truth, start: Start, log: EventLog) -> None:
    known = sorted(truth.committed)
    step = 0 if start.back >= len(known) else known[-1 - start.back]
    if start.drops:
        truth.committed = {s: x for s, x in truth.committed.items() if s <= step}
    truth.state = truth.committed.get(step, ())
    seconds = _pass(clock, truth, start.restore, "restore")
    log.add("resume", step=step, seconds=seconds, skipped=[], fresh=step == 0)


def _steps(
    clock: Clock,
    truth: Truth,
    start: Start,
    log: EventLog,
    every: int,
    names: Iterator[int],
) -> None:
    compiled = start.compile
    if start.steps >= 2:
        compiled = 0
        _pass(clock, truth, start.compile, "startup")
    for _ in range(start.steps):
        seconds = (start.step + compiled) / 4
        compiled = 0
        clock.now += seconds
        name = next(names)
        truth.each[name] = seconds
        truth.state = (*truth.state, name)
        step = len(truth.state)
        log.step(step)
        if step % every == 0 and step not in truth.committed:
            _pass(clock, truth, start.stall, "stall")
            log.add("save", step=step, stall=start.stall / 4, reason="due")
            truth.committed[step] = truth.state
            log.add("saved", step=step, seconds=0.0, bytes=1)
