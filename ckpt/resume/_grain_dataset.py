"""grain's datasets: chains of transformations, cut into hosts by `ds[p::n]`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from .._errors import DataMismatch
from ._kind import Host, Kind, Prefix, has
from ._moves import divide
from ._stateful import begin, place_iterator, read_iterator

_BATCHES = ("BatchMapDataset", "BatchIterDataset")
_SAME = {
    *("MapMapDataset", "RandomMapMapDataset", "MapWithIndexMapDataset"),
    *("MapIterDataset", "RandomMapIterDataset", "MapWithIndexIterDataset"),
    *("_WithSeedMapDataset", "WithOptionsMapDataset", "RepeatMapDataset"),
    *("_WithSeedIterDataset", "WithOptionsIterDataset", "PrefetchIterDataset"),
}
"""What gives one element for each it takes, in their order."""


@dataclass(frozen=True, slots=True)
class Stride:
    """How a chain takes one order of samples.

    An element of its iterator's index is `unit` samples of a host, `stride` hosts take
    turns, and the order ends behind `end` samples if it does.
    """

    unit: int
    stride: int
    end: int | None
    order: str


def _chain(source: Any) -> list[Any]:
    """Return a dataset and what it is made from, as far as that is one line."""
    found = [source]
    while len(parents := getattr(found[-1], "parents", ())) == 1:
        found.append(parents[0])
    return found


def _name(dataset: Any) -> str:
    return type(dataset).__name__


def find_stride(source: Any, host: Host) -> Stride | None:
    """Return how the hosts share one order; None where they do not, or none knows."""
    chain = _chain(source)
    unit = 1
    at = 0
    repeats: list[tuple[int, int]] = []
    while at < len(chain):
        node, name = chain[at], _name(chain[at])
        if name in _BATCHES:
            # An iterator that batches counts what it takes, not what it gives.
            unit *= node._batch_size if name == "BatchMapDataset" else 1
        elif name == "RepeatMapDataset":
            repeats.append((len(node.parents[0]), unit))
        elif name not in _SAME:
            break
        at += 1
    if at == len(chain):
        return None
    is_cut = _is_cut(chain[at], host)
    if not is_cut and host.processes > 1:
        return None
    below = chain[at + is_cut :]
    if not has(below[0], "__len__"):
        return None
    length = len(below[0])
    # Epochs that a host repeats must be of the same samples as the order's own.
    if any(rows * (unit // over) * host.processes != length for rows, over in repeats):
        return None
    names = [_name(node) for node in below if _name(node) not in _SAME]
    end = None if repeats else length
    return Stride(unit, host.processes, end, " of ".join(names))


def _is_cut(node: Any, host: Host) -> bool:
    """Return whether this is `ds[process::processes]`."""
    return _name(node) == "SliceMapDataset" and (
        (node._start, node._step, node._stop)
        == (host.process, host.processes, node._parent_length)
    )


def _describe(source: Any, host: Host) -> dict[str, Any]:
    chain = _chain(source)
    sizes = [node._batch_size for node in chain if hasattr(node, "_batch_size")]
    seeds = [
        int(seed)
        for node in chain
        for seed in (
            getattr(node, "_seed", None),
            getattr(node, "_seed_rng_seed", None),
        )
        if seed is not None
    ]
    told: dict[str, Any] = {
        "pipeline": " of ".join(
            _name(node) for node in chain if _name(node) != "SliceMapDataset"
        ),
        "seeds": seeds,
    }
    root = chain[-1]
    if hasattr(root, "__len__"):
        told["records"] = len(root)
    if len(sizes) == 1:
        told["batch_size"] = sizes[0] * host.processes
    return told


def _count(source: Any, state: Any, host: Host, taken: int | None) -> Prefix | None:
    del taken
    stride = find_stride(source, host)
    if stride is None or not _is_index(state):
        return None
    count = state["next_index"] * stride.unit * stride.stride
    # The last batch of an epoch may be a part of one.
    return Prefix(count if stride.end is None else min(count, stride.end), stride.order)


def _move(source: Any, prefix: Prefix, host: Host) -> Iterator[Any]:
    stride = find_stride(source, host)
    if stride is None or stride.order != prefix.order:
        found = stride.order if stride else "one that is not seen to"
        raise DataMismatch(
            f"expected a grain pipeline that strides over {prefix.order} by "
            f"[process::processes], found {found}: shuffle and repeat before the "
            f"slice, batch after it"
        )
    iterator = iter(source)
    state = read_iterator(source, iterator)
    if not _is_index(state):
        raise DataMismatch(
            f"expected a grain iterator whose state is its next_index, found {state!r}"
        )
    each = stride.unit * stride.stride
    what = f"batches of {each}" if stride.unit > 1 else f"samples for {each} hosts"
    iterator.set_state({"next_index": divide(prefix.count, each, what)})
    return iterator


def _is_index(state: Any) -> bool:
    if not isinstance(state, dict):
        return False
    found = cast("dict[str, Any]", state)
    return found.keys() == {"next_index"} and isinstance(found["next_index"], int)


DATASET = Kind(
    *("grain.Dataset", begin, read_iterator, place_iterator),
    *(_describe, _count, _move),
    advice=(
        "shuffle and repeat, then slice by [process::processes], then batch; or use "
        "grain.experimental.ElasticIterator"
    ),
)
"""A MapDataset or an IterDataset."""


def _count_elastic(source: Any, state: Any, host: Host, taken: int | None) -> Prefix:
    del source, host, taken
    return Prefix(state["global_next_index"], "samples")


def _move_elastic(source: Any, prefix: Prefix, host: Host) -> Iterator[Any]:
    return place_iterator(source, {"global_next_index": prefix.count}, host)


def _describe_elastic(source: Any, host: Host) -> dict[str, Any]:
    size = getattr(source, "_global_batch_size", None)
    inner = getattr(source, "_ds", None)
    told = {} if inner is None else _describe(inner, Host(0, 1))
    return told if size is None else {**told, "batch_size": size}


ELASTIC = Kind(
    *("grain.ElasticIterator", begin, read_iterator, place_iterator),
    *(_describe_elastic, _count_elastic, _move_elastic),
    repeats=False,
)
"""grain's own iterator for any number of hosts: it counts the samples of all."""
