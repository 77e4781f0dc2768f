"""The state of a pickle being read; whatever grows is counted against limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._errors import Damaged, LimitExceeded, Untrusted
from ._record import Limits

LINE = 1 << 16
"""The longest line of protocol 0, but for a text: names and numbers are short."""

_COST = 7
"""How many operations more a container counts for, as its memory is so much larger."""

_FREE = 1 << 14
_SPARSE = 3
"""What a pickle may hold at once, and at each further so many of its bytes.

A byte can make a container, which takes a hundred in memory. Writers spend more: on
its values, and on where it is remembered.
"""


@dataclass(slots=True, kw_only=True)
class Machine:
    """The state of one run: the stack, those set aside at marks, and the memo.

    A mark sets the stack aside, so no operation reaches below it.
    """

    data: bytes
    end: int
    at: int
    globals: Mapping[tuple[str, str], Any]
    persistent: Callable[[Any], Any] | None
    inert: frozenset[str]
    limits: Limits
    left: int
    text: int
    stack: list[Any] = field(default_factory=list[Any])
    marked: list[list[Any]] = field(default_factory=list[list[Any]])
    containers: int = 0
    memo: list[Any] = field(default_factory=list[Any])
    far: dict[int, Any] = field(default_factory=dict[int, Any])
    known: dict[tuple[str, str], Any] = field(
        default_factory=dict[tuple[str, str], Any]
    )

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        start = self.at
        if count < 0 or count > self.end - start:
            raise Damaged(
                f"expected {count} more bytes of a pickle, found {self.end - start}"
            )
        self.at = start + count
        return self.data[start : start + count]

    def number(self, size: int) -> int:
        """Return the next bytes as an unsigned number."""
        return int.from_bytes(self.take(size), "little")

    def line(self, limit: int = LINE) -> bytes:
        """Return the bytes up to the next line feed, without it."""
        span = 64
        while True:
            near = self.data[self.at : self.at + span]
            if (length := near.find(b"\n")) >= 0:
                self.at += length + 1
                return near[:length]
            if span >= self.end - self.at:
                raise Damaged("expected the end of a line, found that of the pickle")
            if span >= limit:
                raise LimitExceeded(f"expected lines of at most {limit} bytes")
            span *= 8

    def spend(self, count: int) -> None:
        """Count work that is more than one operation."""
        self.left -= count
        if self.left < 0:
            raise LimitExceeded(f"expected at most {self.limits.operations} operations")

    def contain(self, times: int = 1) -> None:
        """Count a container, `times` where it is larger than others."""
        self.left -= times * _COST
        if self.left < 0:
            self.spend(0)
        self.containers += times
        if self.containers > _FREE + self.at // _SPARSE:
            raise LimitExceeded(
                f"expected at most one container in {_SPARSE} bytes, found more"
            )

    def settle(self, operations: int, containers: int) -> None:
        """Count what was done since the last time, and look at what is held."""
        self.spend(operations)
        self.contain(containers)
        self._check_memo(len(self.memo) + len(self.far))
        most = self.limits.stack
        if len(self.stack) > most:
            raise LimitExceeded(f"expected at most {most} values at once")

    def _check_memo(self, held: int) -> None:
        """Refuse more memo entries than writers need for so many bytes."""
        if held > self.limits.memo:
            raise LimitExceeded(f"expected at most {self.limits.memo} memo entries")
        if held > _FREE + self.at // _SPARSE + 1:
            raise LimitExceeded(f"expected at most one memo entry in {_SPARSE} bytes")

    def waste(self) -> None:
        """Count an operation that hardly any writer uses."""
        self.spend(31)

    def spell(self, count: int) -> bytes:
        """Return the next bytes, which become text or bytes of the value."""
        found = self.take(count)
        self.text -= count
        if self.text < 0:
            raise LimitExceeded(f"expected at most {self.limits.text} bytes of text")
        return found

    def since_mark(self) -> list[Any]:
        """Return what came after the last mark, and go back to what was before."""
        items = self.stack
        self.stack = self.marked.pop()
        return items

    def put(self, index: int) -> None:
        """Remember the top of the stack."""
        value, near = self.stack[-1], len(self.memo)
        if index < near:
            self.memo[index] = value
            return
        self._check_memo(near + len(self.far) + 1)
        if index == near:
            self.memo.append(value)
        elif len(self.far) >= _FREE:
            raise LimitExceeded("expected memo entries numbered in order")
        else:
            self.far[index] = value

    def put_next(self) -> None:
        """Remember the top of the stack by the next number."""
        self.put(len(self.memo) + len(self.far))

    def get(self, index: int) -> None:
        """Push what was remembered."""
        if 0 <= index < len(self.memo):
            self.stack.append(self.memo[index])
        elif index in self.far:
            self.stack.append(self.far[index])
        else:
            raise Untrusted(f"expected a memo entry, found none of number {index}")

    def stop(self) -> Any:
        """Return the one value that is left."""
        if self.marked or len(self.stack) != 1:
            raise Untrusted("expected one value at the end of a pickle")
        return self.stack.pop()
