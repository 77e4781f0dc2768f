"""When to save: pure functions of the step, the time and the last save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .._prune import Keep


@dataclass(frozen=True, slots=True)
class Last:
    """The step that was saved (or resumed) last, and when, in seconds of any clock."""

    step: int
    time: float


class Policy(Protocol):
    """Tells whether a step is to be saved: no clock of its own, no memory."""

    def __call__(self, step: int, now: float, last: Last) -> bool:
        """Return whether to save `step`, done at `now`, `last` being the last save."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """Save each multiple of `steps`, and when `seconds` have gone by since the last.

    >>> policy = every(steps=500, minutes=15)
    >>> policy(499, 0.0, Last(0, 0.0)), policy(500, 0.0, Last(0, 0.0))
    (False, True)
    >>> policy(7, 900.0, Last(0, 0.0))
    True
    """

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.seconds is None:
            raise ValueError("expected steps=, minutes= or seconds=, found none")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"expected steps >= 1, found {self.steps}")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"expected a time > 0, found {self.seconds} s")

    def __call__(self, step: int, now: float, last: Last) -> bool:
        """Tell whether the step is to be saved."""
        return self.is_multiple(step) or (
            self.seconds is not None and now - last.time >= self.seconds
        )

    def is_multiple(self, step: int) -> bool:
        """Tell what needs no clock, so that all processes of a job find the same."""
        return self.steps is not None and step % self.steps == 0


def every(
    *,
    steps: int | None = None,
    minutes: float | None = None,
    seconds: float | None = None,
) -> Every:
    """Return the policy that saves each multiple of `steps`, and by the clock.

    Either is enough where both are given.

    >>> every(minutes=15)
    Every(steps=None, seconds=900.0)
    """
    if minutes is not None and seconds is not None:
        raise ValueError("expected minutes= or seconds=, found both")
    return Every(steps, minutes * 60.0 if minutes is not None else seconds)


def check_when(save: Any, keep: Any, on_notice: str) -> None:
    """Refuse what says neither when to save, nor what to keep or to do when told."""
    if save not in (None, "auto") and not callable(save):
        raise TypeError(
            'expected save=ckpt.every(..), a function, "auto" or None, found '
            f"{save!r:.80}"
        )
    if on_notice not in ("exit", "continue"):
        raise ValueError(
            f'expected on_notice to be "exit" or "continue", found {on_notice!r}'
        )
    if keep is not None and not isinstance(keep, Keep):
        raise TypeError(f"expected keep=ckpt.Keep(...), found {keep!r:.80}")
