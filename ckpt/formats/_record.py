"""What pickles turn into here: inert records, and a closed table of functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one pickle may ask for; each is checked before memory is taken.

    `operations` also pays for containers, which take the memory of many values, and
    for the lengths of what functions of the table are given.
    """

    operations: int = 1 << 27
    memo: int = 1 << 24
    stack: int = 1 << 18
    depth: int = 1000
    text: int = 1 << 30
    number: int = 1 << 10


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Global:
    """A class or function that a pickle names; `call` is what stands in for it here.

    Without `call` it is a name only, and making one of it makes a Record.
    """

    module: str
    name: str
    call: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return f"<global {self.module}.{self.name}>"


@dataclass(slots=True, eq=False, repr=False)
class Record:
    """An object of a class that nobody imported: what it would have been made of.

    Equal only to itself. `state` is what BUILD gave, `items` what was appended or set.
    """

    module: str
    name: str
    args: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] | None = None

    def __repr__(self) -> str:
        return f"<{self.module}.{self.name}>"
