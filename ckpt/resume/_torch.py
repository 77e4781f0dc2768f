"""torchdata's StatefulDataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .._errors import DataMismatch
from ._fingerprint import strip_address
from ._kind import Host, Kind, Prefix, comes_from, has
from ._moves import divide
from ._stateful import begin


def _read(source: Any, iterator: Any) -> Any:
    del iterator
    generator = getattr(source, "generator", None)
    state = None if generator is None else generator.get_state()
    return {"loader": source.state_dict(), "generator": state}


def _place(source: Any, state: Any, host: Host) -> Iterator[Any]:
    del host
    # An iterator made before would go on from the start, without a word.
    source.load_state_dict(state["loader"])
    iterator = iter(source)
    # An epoch's order and its workers' seeds are drawn from one generator; a loaded
    # state has the order drawn once more, so the next epoch would have another one.
    if state["generator"] is not None and source.generator is not None:
        source.generator.set_state(state["generator"])
    return iterator


def _sampler(source: Any) -> Any:
    """Return the sampler that strides over one order, or None."""
    inner = getattr(getattr(source, "batch_sampler", None), "sampler", None)
    strides = comes_from(inner, "torch", "DistributedSampler")
    return inner if strides and has(inner, "load_state_dict") else None


def _describe(source: Any, host: Host) -> dict[str, Any]:
    inner = getattr(getattr(source, "batch_sampler", None), "sampler", None)
    told: dict[str, Any] = {
        "source": strip_address(type(source.dataset).__qualname__),
        "sampler": type(inner).__qualname__,
    }
    if hasattr(source.dataset, "__len__"):
        told["records"] = len(source.dataset)
    for name in ("shuffle", "seed", "drop_last"):
        value = getattr(inner, name, None)
        if isinstance(value, bool | int):
            told[f"sampler_{name}"] = value
    generator = getattr(source, "generator", None)
    if generator is not None:
        told["generator_seed"] = generator.initial_seed()
    if isinstance(source.batch_size, int):
        told["batch_size"] = source.batch_size * getattr(
            inner, "num_replicas", host.processes
        )
    return told


def _order(sampler: Any) -> str:
    return (
        f"{len(sampler.dataset)} samples, shuffle={sampler.shuffle}, "
        f"seed={sampler.seed}"
    )


def _count(source: Any, state: Any, host: Host, taken: int | None) -> Prefix | None:
    del state, host
    sampler = _sampler(source)
    if sampler is None or taken is None:
        return None
    # The last batch of an epoch may be a part of one.
    return Prefix(min(taken, sampler.total_size), _order(sampler))


def _move(source: Any, prefix: Prefix, host: Host) -> Iterator[Any]:
    sampler = _sampler(source)
    if sampler is None or _order(sampler) != prefix.order:
        found = "no sampler that strides" if sampler is None else _order(sampler)
        raise DataMismatch(
            f"expected a StatefulDistributedSampler over {prefix.order}, found {found}"
        )
    if sampler.num_replicas != host.processes:
        raise DataMismatch(
            f"expected a sampler for {host.processes} hosts, found one for "
            f"{sampler.num_replicas}"
        )
    size = len(sampler.dataset)
    took = sampler.num_samples
    if prefix.count < size:
        took = divide(
            prefix.count, host.processes, f"samples for {host.processes} hosts"
        )
    # The loader's own state is for the old hosts. Without one it starts anew, and the
    # sampler alone skips what was taken.
    source.load_state_dict({})
    sampler.load_state_dict({"yielded": took})
    return iter(source)


LOADER = Kind(
    *("torchdata.StatefulDataLoader", begin, _read, _place),
    *(_describe, _count, _move),
    advice="give it torchdata's StatefulDistributedSampler and a batch_size",
)
"""A StatefulDataLoader; with a StatefulDistributedSampler it can change hosts."""
