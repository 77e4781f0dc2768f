"""One event log as what it says: when which step was done, and what held it up."""

from __future__ import annotations

import json
import math
from array import array
from dataclasses import dataclass, field
from typing import Any, cast

from ._event_names import EventName

_MAX_STEP = 1 << 60
_MAX_TIME = 1e11
_MAX_SECONDS = 1e10
_MAX_ROLLBACKS = 1000
_MAX_SAVES = 1 << 20

_STOPS = ("finished", "preempted", "failed")


@dataclass(slots=True)
class Log:
    """The events of one process from its start to its end.

    Row i says that `steps[i]` was done `at[i]` seconds after the first event, and that
    saves had blocked for `stalls[i]` seconds since row i - 1. A row in `resumes` says
    that the state of that step was restored instead, which took so many seconds.
    Rows are in the order of time; a step below the one before it means that training
    went back. `stall_after` is what saves blocked after the last row.
    """

    name: EventName
    began: float = 0.0
    seconds: float = 0.0
    steps: array[int] = field(default_factory=lambda: array("q"))
    at: array[float] = field(default_factory=lambda: array("d"))
    stalls: array[float] = field(default_factory=lambda: array("d"))
    resumes: dict[int, float] = field(default_factory=dict[int, float])
    stall_after: float = 0.0
    saved: set[int] = field(default_factory=set[int])
    commit: float | None = None
    stop: str | None = None
    lines: int = 0
    zero: float = 0.0
    rollbacks: int = 0

    def take(self, line: bytes) -> bool:
        """Take in the next line; False, and nothing changed, if it is no event."""
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(value, dict):
            return False
        event = cast("dict[str, Any]", value)
        wall, now = _seconds(event.get("t")), _number(event.get("m"))
        if wall is None or now is None or not isinstance(event.get("event"), str):
            return False
        if self.lines == 0:
            self.began, self.zero = wall, now
        elif abs(now - self.zero) > _MAX_SECONDS:
            return False
        # Threads write in the order of the lock, not to the microsecond of the clock.
        at = max(self.seconds, now - self.zero)
        if not self._note(event, at, wall):
            return False
        self.seconds = at
        self.lines += 1
        return True

    def _note(self, event: dict[str, Any], at: float, wall: float) -> bool:
        step = _step_of(event)
        stall = _seconds(event.get("stall")) or 0.0
        match event["event"]:
            case "step":
                return step is not None and step > 0 and self._add(step, at)
            case "resume":
                if step is None or len(self.resumes) >= _MAX_ROLLBACKS:
                    return False
                took = _seconds(event.get("seconds")) or 0.0
                self._add(step, at, resumed=took)
            case "save" | "failed_save":
                # What is saved was done: this may be told before the step itself is.
                if step is not None and self.steps and step > self.steps[-1]:
                    self._add(step, max(self.at[-1], at - stall))
                self.stall_after += stall
            case "saved":
                if step is not None and len(self.saved) < _MAX_SAVES:
                    self.saved.add(step)
                    self.commit = wall
            case "stop":
                reason = event.get("reason")
                self.stop = reason if reason in _STOPS else "failed"
            case _:
                pass
        return True

    def _add(self, step: int, at: float, *, resumed: float | None = None) -> bool:
        if resumed is not None:
            self.resumes[len(self.steps)] = resumed
        elif self.steps and step == self.steps[-1]:
            return True
        elif self.steps and step < self.steps[-1]:
            if self.rollbacks >= _MAX_ROLLBACKS:
                return False
            self.rollbacks += 1
        self.steps.append(step)
        self.at.append(at)
        self.stalls.append(self.stall_after)
        self.stall_after = 0.0
        return True


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # An int too long for a float would raise.
    if isinstance(value, int) and abs(value) > _MAX_STEP:
        return None
    return float(value) if math.isfinite(value) else None


def _seconds(value: Any) -> float | None:
    found = _number(value)
    return found if found is not None and 0 <= found <= _MAX_TIME else None


def _step_of(event: dict[str, Any]) -> int | None:
    value = event.get("step")
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _MAX_STEP else None
