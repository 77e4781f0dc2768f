"""grain's DataLoader, whose workers stride over one order of samples."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .._errors import DataMismatch
from ._fingerprint import strip_address, strip_shard
from ._kind import Host, Kind, Prefix, comes_from
from ._moves import divide

_SEEN = "last_seen_indices"
_REPRS = ("sampler", "data_source")


def _loader(source: Any) -> Any:
    return getattr(source, "_data_loader", source)


def _begin(source: Any, host: Host) -> Iterator[Any]:
    del host
    return iter(source)


def _read(source: Any, iterator: Any) -> Any:
    del source
    return json.loads(iterator.get_state())


def _place(source: Any, state: Any, host: Host) -> Iterator[Any]:
    del host
    iterator = iter(source)
    now = json.loads(iterator.get_state())
    # grain compares these to the letter, with the addresses that a plain repr has.
    same = {
        key: now[key]
        for key in _REPRS
        if key in now and strip_address(now[key]) == strip_address(state.get(key, ""))
    }
    iterator.set_state(json.dumps({**state, **same}).encode())
    return iterator


def _describe(source: Any, host: Host) -> dict[str, Any]:
    loader = _loader(source)
    told: dict[str, Any] = {}
    sampler = getattr(loader, "_sampler", None)
    if sampler is not None:
        told["sampler"] = strip_shard(repr(sampler))
    records = getattr(loader, "_data_source", None)
    if records is not None:
        told["source"] = type(records).__qualname__
        told["records"] = len(records)
    sizes = [
        step.batch_size
        for step in getattr(loader, "_operations", ())
        if comes_from(step, "grain", "Batch")
    ]
    if len(sizes) == 1:
        told["batch_size"] = sizes[0] * _shards(loader, host)
    return told


def _shards(loader: Any, host: Host) -> int:
    options = getattr(loader, "_shard_options", None)
    return getattr(options, "shard_count", host.processes)


def _count(source: Any, state: Any, host: Host, taken: int | None) -> Prefix | None:
    """Return the Prefix where each worker took as many samples of its stride."""
    del host, taken
    order, options = _find_order(source)
    if order is None or _SEEN not in state:
        return None
    process, processes = options.shard_index, options.shard_count
    workers = len(state[_SEEN])
    took = {
        (int(last) - process - int(worker) * processes) // (workers * processes) + 1
        for worker, last in state[_SEEN].items()
    }
    return Prefix(took.pop() * workers * processes, order) if len(took) == 1 else None


def _move(source: Any, prefix: Prefix, host: Host) -> Iterator[Any]:
    order, options = _find_order(source)
    if order != prefix.order:
        raise DataMismatch(
            f"expected a grain DataLoader that strides over {prefix.order}, found "
            f"{order or 'one whose hosts have orders of their own'}: give "
            f"shard_options to the DataLoader, and none to its sampler"
        )
    iterator = iter(source)
    state = json.loads(iterator.get_state())
    process, processes = options.shard_index, options.shard_count
    workers = len(state[_SEEN])
    if processes != host.processes:
        raise DataMismatch(
            f"expected a grain DataLoader for {host.processes} hosts, found one whose "
            f"shard_options are for {processes}"
        )
    each = workers * processes
    what = f"samples for {processes} hosts with {workers} workers each"
    took = divide(prefix.count, each, what)
    state[_SEEN] = {
        str(worker): process + worker * processes + (took - 1) * each
        for worker in range(workers)
    }
    state["last_worker_index"] = -1
    iterator.set_state(json.dumps(state).encode())
    return iterator


def _find_order(source: Any) -> tuple[str | None, Any]:
    """Return the order that all hosts share, and the loader's shard options.

    An IndexSampler that shards gives each host a part of its own to shuffle: nothing
    is shared then. A SequentialSampler that does is only cut at the end.
    """
    loader = _loader(source)
    options = getattr(loader, "_shard_options", None)
    sampler = getattr(loader, "_sampler", None)
    own = getattr(getattr(sampler, "_shard_options", None), "shard_count", 1)
    strides = own == 1 or comes_from(sampler, "grain", "SequentialSampler")
    if options is None or sampler is None or not strides:
        return None, options
    return strip_shard(repr(sampler)), options


_ADVICE = (
    "give shard_options to the DataLoader and none to its sampler, and save after a "
    "number of batches that divides by worker_count"
)

LOADER = Kind(
    *("grain.DataLoader", _begin, _read, _place, _describe, _count, _move),
    advice=_ADVICE,
)
"""A DataLoader."""

LOADER_ITERATOR = Kind(
    *("grain.DataLoader", _begin, _read, _place, _describe, _count, _move),
    repeats=False,
    advice=_ADVICE,
)
"""The iterator of one; `iter` of it is itself."""
