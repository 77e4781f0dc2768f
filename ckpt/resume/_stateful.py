"""Sources that read and set their own state, whatever package they come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._batches import Batches, Counted
from ._fingerprint import strip_address
from ._kind import Host, Kind, Prefix, has
from ._moves import divide


def read_state(holder: Any) -> Any:
    """Return the state of what has get_state or state_dict."""
    return holder.get_state() if has(holder, "get_state") else holder.state_dict()


def set_state(holder: Any, state: Any) -> None:
    """Set the state of what has set_state or load_state_dict."""
    if has(holder, "set_state"):
        holder.set_state(state)
    else:
        holder.load_state_dict(state)


def has_state(holder: Any) -> bool:
    """Return whether a state can be read and set here."""
    return has(holder, "get_state", "set_state") or has(
        holder, "state_dict", "load_state_dict"
    )


def begin(source: Any, host: Host) -> Iterator[Any]:
    """Start an epoch."""
    del host
    return iter(source)


def read_iterator(source: Any, iterator: Any) -> Any:
    """Return the state of an iterator that has one."""
    del source
    return read_state(iterator)


def place_iterator(source: Any, state: Any, host: Host) -> Iterator[Any]:
    """Start an iterator and set its state."""
    del host
    iterator = iter(source)
    set_state(iterator, state)
    return iterator


def read_source(source: Any, iterator: Any) -> Any:
    """Return the state of a source that knows that of its last iterator."""
    del iterator
    return read_state(source)


def place_source(source: Any, state: Any, host: Host) -> Iterator[Any]:
    """Set the state of a source, and start an iterator only then."""
    del host
    set_state(source, state)
    return iter(source)


def describe(source: Any, host: Host) -> dict[str, Any]:
    """Return the name of the class: nothing more is known."""
    del host
    return {"source": strip_address(type(source).__qualname__)}


ITERATOR = Kind(
    "iterator", begin, read_iterator, place_iterator, describe, repeats=False
)
"""An iterator that has a state; `iter` of it is itself."""

ITERABLE = Kind("iterable", begin, read_iterator, place_iterator, describe)
"""What makes iterators that have a state."""

LOADER = Kind("loader", begin, read_source, place_source, describe)
"""What has the state of the iterator that it made last."""


def _describe_batches(source: Batches[Any], host: Host) -> dict[str, Any]:
    del host
    told = {"seed": source.seed, "name": source.name, "batch_size": source.batch_size}
    return {key: value for key, value in told.items() if value is not None}


def _count_batches(
    source: Batches[Any], state: int, host: Host, taken: int | None
) -> Prefix:
    del host, taken
    return Prefix(state * (source.batch_size or 1), "batches")


def _move_batches(source: Batches[Any], prefix: Prefix, host: Host) -> Iterator[Any]:
    del host
    batches = Counted(source.at)
    size = source.batch_size or 1
    batches.set_state(divide(prefix.count, size, f"batches of {size}"))
    return batches


BATCHES = Kind(
    *("Batches", begin, read_iterator, place_iterator),
    *(_describe_batches, _count_batches, _move_batches),
)
"""A function of seed and step."""
