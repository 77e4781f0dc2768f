"""Saving as often as pays: from the stalls and failures that were measured."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import jax

from ._goodput import count_failures
from ._history import History
from ._interval import choose_interval
from ._policy import Last

_FIRST_SECONDS = 60.0
"""When the first save is made, which measures what one costs."""


@dataclass(slots=True)
class Auto:
    """The policy of save="auto": what is measured goes in, an interval comes out.

    `failures` in `seconds` are what the run's log tells of earlier starts.
    """

    failures: int = 0
    seconds: float = 0.0
    began: float = field(default_factory=time.monotonic)
    stall: float | None = None
    write: float = 0.0

    def __call__(self, step: int, now: float, last: Last) -> bool:
        """Tell whether the interval has gone by."""
        return now - last.time >= self.interval

    @property
    def interval(self) -> float:
        """Seconds between two saves, as they are best for what is known now."""
        if self.stall is None:
            return _FIRST_SECONDS
        chosen = choose_interval(
            self.stall,
            self.write,
            failures=self.failures,
            seconds=self.seconds + time.monotonic() - self.began,
            hosts=jax.process_count(),
        )
        return chosen.seconds

    def see_history(self, history: History) -> None:
        """Take what the run's logs tell of this start and those before it."""
        self.failures = count_failures(history.logs)
        self.seconds = sum(log.seconds for log in history.logs)

    def see_stall(self, seconds: float) -> None:
        """Take how long a save kept the training waiting: newer ones count more."""
        self.stall = seconds if self.stall is None else (self.stall + seconds) / 2

    def see_write(self, seconds: float) -> None:
        """Take how long a save took in all."""
        self.write = seconds
