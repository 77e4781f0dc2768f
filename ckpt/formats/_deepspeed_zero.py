"""ZeRO: parameters and the state of their optimizer, out of every rank's partition."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

from .._errors import Damaged, LimitExceeded, Unsupported, Untrusted
from ._deepspeed_flat import Flat, Run, align, join, shape_runs
from ._deepspeed_state import (
    MAX_ENTRIES,
    Tree,
    take,
    take_dict,
    take_groups,
    take_list,
    take_or,
    take_shapes,
)
from ._entry import Shape, Tensor

_LOST = (
    "some files are of an older checkpoint, or were never written: restore the whole "
    "folder, or use another step"
)


def read_partitions(model: Tree, states: list[Tree]) -> tuple[Tree, list[Any]]:
    """Return parameters with their fp32 values and moments, and the param_groups.

    `model` is the first model file, `states` are the optimizers' of all ranks in order.
    """
    stage = states[0].get("zero_stage", 1)
    if type(stage) is not int or not 1 <= stage <= 3:
        raise Unsupported(f"expected ZeRO stage 1, 2 or 3, found {str(stage)[:20]}")
    if any(state.get("zero_stage", 1) != stage for state in states):
        raise Damaged(
            f"expected ZeRO stage {stage} of all ranks, found others: {_LOST}"
        )
    _check_ranks(states)
    groups = take_groups(model)
    key = "optimizer_state_dict" if stage == 3 else "base_optimizer_state"
    values = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    if isinstance(states[0].get(key), list):
        raise Unsupported("expected the optimizer's state as one dict, found a list")
    bases = [take_dict(state, key) for state in states]
    kinds: list[dict[str, list[Any]]] = []
    for rank, (state, base) in enumerate(zip(states, bases, strict=True)):
        kinds.append(_gather(state, base, values=values, rank=rank))
    count = len(kinds[0]["fp32"])
    if any(len(parts) != count for held in kinds for parts in held.values()):
        raise Damaged(f"expected {count} groups of all ranks, found others: {_LOST}")
    if any(set(held) != set(kinds[0]) for held in kinds):
        raise Damaged(f"expected the same optimizer on all ranks: {_LOST}")
    split = _split_whole if stage == 3 else _split_groups
    _check_entries(groups, bases[0], kinds[0])
    tree: Tree = {name: {} for group in groups for name in group}
    for kind in kinds[0]:
        parts = [held[kind] for held in kinds]
        for name, shape, dtype, runs in split(groups, parts, states, kind):
            tree[name][kind] = shape_runs(runs, dtype=dtype, shape=shape, name=name)
    _add_scalars(tree, groups, bases[0], count=count, split=set(kinds[0]))
    return tree, take_or(bases[0], "param_groups", list[Any])


def read_frozen(models: list[Tree], *, sharded: bool) -> Tree:
    """Return the parameters that are not trained; sharded, each rank has a part."""
    shapes = models[0].get("frozen_param_shapes")
    if not shapes:
        return {}
    tree: Tree = {}
    held = [take_dict(model, "frozen_param_fragments") for model in models]
    for name, shape in take_shapes(shapes, what="shapes of parameters").items():
        parts = [take(fragments, name, Tensor) for fragments in held]
        if not sharded:
            if parts[0].shape != shape:
                raise Damaged(f"expected `{name}` to have shape {shape}: {_LOST}")
            tree[name] = {"frozen": parts[0]}
            continue
        flat = join(parts, what=f"parts of `{name}`")
        count, part = math.prod(shape), -(-math.prod(shape) // len(parts))
        if flat.count < count or any(run.count > part for run in flat.runs):
            raise Damaged(f"expected {count} items of `{name}`: {_LOST}")
        runs = list(flat.cut(0, count))
        tree[name] = {
            "frozen": shape_runs(runs, dtype=flat.dtype, shape=shape, name=name)
        }
    return tree


def _check_entries(
    groups: list[dict[str, Shape]], base: Tree, kinds: dict[str, list[Any]]
) -> None:
    """Refuse what multiplies: each parameter gets every entry of its group."""
    states = take_or(base, "state", dict[Any, Any]).values()
    held = max((len(cast(Tree, x)) for x in states if isinstance(x, dict)), default=0)
    count = sum(map(len, groups)) * (held + len(kinds))
    if count > MAX_ENTRIES:
        raise LimitExceeded(
            f"expected at most {MAX_ENTRIES:,} values of parameters, found {count:,}: "
            "get the checkpoint again"
        )


def _check_ranks(states: list[Tree]) -> None:
    """Check that there is a file of each rank, as zero_to_fp32 does."""
    for state in states:
        counts = state.get("partition_count")
        found = cast(list[Any], counts) if isinstance(counts, list) else [counts]
        if not all(type(count) is int for count in found) or not found:
            raise Untrusted("expected the count of partitions, found other values")
        if len(set(found)) > 1:
            raise Unsupported(
                f"expected one count of partitions, found {found[:10]}: experts (MoE) "
                "are not read, convert with deepspeed.checkpoint.ds_to_universal"
            )
        if found[0] != len(states):
            raise Damaged(
                f"expected optimizer files of {found[0]} ranks, found {len(states)}: "
                f"{_LOST}"
            )


def _gather(state: Tree, base: Tree, *, values: str, rank: int) -> dict[str, list[Any]]:
    """Return the flat tensors of a rank: for each kind, one for each group."""
    flats = take_list(state, values)
    kinds: dict[str, list[Any]] = {"fp32": flats}
    by_group = take_or(base, "state", dict[Any, Any])
    for n in range(len(flats)):
        for kind, value in take_or(by_group, n, dict[Any, Any]).items():
            if _is_flat(value, flats[n], kind):
                kinds.setdefault(str(kind), []).append(value)
    return kinds


def _is_flat(value: Any, fp32: Any, kind: Any) -> bool:
    """Tell whether a state has an item for each one of the parameters'."""
    if not isinstance(value, Tensor) or not isinstance(fp32, Tensor):
        return False
    return kind != "step" and len(value.shape) == 1 and value.shape >= fp32.shape


Cut = Iterator[tuple[str, Shape, str, list[Run]]]


def _split_groups(
    groups: list[dict[str, Shape]],
    parts: list[list[Any]],
    states: list[Tree],
    kind: str,
) -> Cut:
    """Yield the runs of each parameter of stages 1 and 2, where ranks follow ranks.

    Within a group, the first rank's part comes first, and parameters cross from one to
    the next. Only the fp32 values have the padding at the end taken off.
    """
    if len(parts[0]) != len(groups):
        raise Damaged(
            f"expected {len(groups)} groups of {kind}, found {len(parts[0])}: {_LOST}"
        )
    paddings = take_or(states[0], "param_alignment_paddings", list[Any])
    step = 2 * len(parts)
    for n, group in enumerate(groups):
        flat = join([held[n] for held in parts], what=f"{kind} of group {n}")
        gaps = _gaps(paddings[n] if n < len(paddings) else None, len(group))
        at = 0
        for (name, shape), gap in zip(group.items(), gaps, strict=True):
            stop = at + math.prod(shape)
            _check_room(flat, stop, name=name, kind=kind)
            if kind == "fp32":
                _check_slices(states, flat, name=name, group=n, start=at, stop=stop)
            yield name, shape, flat.dtype, list(flat.cut(at, stop))
            at = stop + gap
        if align(at, step) != align(flat.count, step):
            raise Damaged(
                f"expected {at} items of {kind} in group {n}, found {flat.count}: "
                f"{_LOST}"
            )


def _split_whole(
    groups: list[dict[str, Shape]],
    parts: list[list[Any]],
    states: list[Tree],
    kind: str,
) -> Cut:
    """Yield the runs of each parameter of stage 3, which every rank has a part of."""
    flats = [join(held, what=f"{kind} of rank {n}") for n, held in enumerate(parts)]
    if len({flat.dtype for flat in flats}) != 1:
        raise Untrusted(f"expected one dtype of {kind} on all ranks")
    at = 0
    for name, shape in (item for group in groups for item in group.items()):
        count = math.prod(shape)
        part = -(-count // len(flats))
        runs: list[Run] = []
        for rank, flat in enumerate(flats):
            _check_room(flat, at + part, name=name, kind=kind)
            held = max(0, min(part, count - rank * part))
            runs.extend(flat.cut(at, at + held))
        yield name, shape, flats[0].dtype, runs
        at += part
    for rank, flat in enumerate(flats):
        if flat.count != at:
            raise Damaged(
                f"expected {at} items of {kind} of rank {rank}, found {flat.count}: "
                f"{_LOST}"
            )


def _check_slices(
    states: list[Tree], flat: Flat, *, name: str, group: int, start: int, stop: int
) -> None:
    """Check that each rank has the slice of a parameter that it says it has."""
    for state, run, end in zip(states, flat.runs, flat.ends, strict=True):
        mappings = take_or(state, "param_slice_mappings", list[Any])
        if group >= len(mappings):
            continue
        begin = end - run.count
        first, last = max(start, begin), min(stop, end)
        said = cast(Tree, mappings[group]).get(name)
        found = (said["numel"], said["start"]) if said else (0, 0)
        if found != ((last - first, first - begin) if first < last else (0, 0)):
            raise Damaged(
                f"expected items {first - begin} to {last - begin} of a partition to be"
                f" of `{name}`, found {str(found)[:60]}: {_LOST}"
            )


def _check_room(flat: Flat, stop: int, *, name: str, kind: str) -> None:
    if stop > flat.count:
        raise Damaged(
            f"expected {stop} items for `{name}/{kind}`, found {flat.count}: {_LOST}"
        )


def _gaps(paddings: Any, count: int) -> list[int]:
    """Return how many items lie behind each parameter and belong to none."""
    if not paddings:
        return [0] * count
    if not isinstance(paddings, list) or not all(
        type(n) is int and 0 <= n < 1 << 40 for n in cast(list[Any], paddings)
    ):
        raise Untrusted("expected paddings of parameters, found other values")
    gaps = cast(list[int], paddings)
    if len(gaps) != count:
        raise Untrusted(f"expected paddings of {count} parameters, found {len(gaps)}")
    return gaps


def _add_scalars(
    tree: Tree,
    groups: list[dict[str, Shape]],
    base: Tree,
    *,
    count: int,
    split: set[str],
) -> None:
    """Give each parameter what its group has one of, such as the step."""
    by_group = take_or(base, "state", dict[Any, Any])
    for n, group in enumerate(groups):
        state = take_or(by_group, n if count == len(groups) else 0, dict[Any, Any])
        alone = {
            str(kind): value
            for kind, value in state.items()
            if not isinstance(value, Tensor) or kind not in split
        }
        for name in group:
            tree[name] |= alone
