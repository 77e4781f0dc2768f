"""What is known of a kind of data source: functions that start, read and set it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple


class Host(NamedTuple):
    """Which of how many processes reads this source."""

    process: int
    processes: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """The samples that all hosts took of an epoch: the first `count` of its order."""

    count: int
    order: str


def _tell_nothing(source: Any, host: Host) -> dict[str, Any]:
    del source, host
    return {}


def _count_nothing(source: Any, state: Any, host: Host, taken: int | None) -> None:
    del source, state, host, taken


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of source.

    `begin` starts an epoch, `read` tells the state of one, `place` starts at a state;
    `describe` tells what decides the batches and is equal on all hosts (`batch_size`
    over all hosts, where the source knows it). `count` tells the Prefix that all hosts
    took if all are in this state, and this many samples were taken in this epoch, or
    None where hosts do not share one order in strides; `move` starts behind a Prefix.
    `advice` says when hosts can change.
    """

    name: str
    begin: Callable[[Any, Host], Iterator[Any]]
    read: Callable[[Any, Iterator[Any]], Any]
    place: Callable[[Any, Any, Host], Iterator[Any]]
    describe: Callable[[Any, Host], dict[str, Any]] = _tell_nothing
    count: Callable[[Any, Any, Host, int | None], Prefix | None] = _count_nothing
    move: Callable[[Any, Prefix, Host], Iterator[Any]] | None = None
    repeats: bool = True
    advice: str = (
        "if they do, pass elastic=True and batch_size to ckpt.resume.Stream; else "
        "resume on as many hosts and with the same batch size"
    )


def comes_from(value: Any, package: str, *names: str) -> bool:
    """Return whether a value's class, or one it inherits from, is one of a package's.

    No package is imported for that.
    """
    return any(
        (kind.__module__ == package or kind.__module__.startswith(f"{package}."))
        and (not names or kind.__name__ in names)
        for kind in type(value).__mro__
    )


def has(value: Any, *names: str) -> bool:
    """Return whether a value has all of these methods."""
    return all(callable(getattr(value, name, None)) for name in names)


def set_epoch(source: Any, epoch: int) -> None:
    """Tell the epoch to a source, or to those of its parts that want to know it."""
    batches = getattr(source, "batch_sampler", None)
    samplers = (getattr(part, "sampler", None) for part in (source, batches))
    parts: list[Any] = [source, *samplers, getattr(source, "dataset", None)]
    told: list[Any] = []
    for part in parts:
        if has(part, "set_epoch") and all(part is not one for one in told):
            part.set_epoch(epoch)
            told.append(part)
