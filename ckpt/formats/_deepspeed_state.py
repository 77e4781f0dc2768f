"""What the files of DeepSpeed say, checked as it is taken out of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from .._errors import Damaged, LimitExceeded, Untrusted
from ._entry import Shape, Tensor
from ._naming import naming
from ._torch_globals import TORCH

T = TypeVar("T")

Tree = dict[Any, Any]

MAX_ENTRIES = 1 << 18
"""How many values all parameters may have: what a file says once may count for each."""

_KNOWN = {
    "module",
    "buffer_names",
    "param_shapes",
    "frozen_param_shapes",
    "shared_params",
    "frozen_param_fragments",
    "dp_world_size",
    "mp_world_size",
    "checkpoint_parallel_dimensions",
    "ds_config",
    "ds_version",
    "universal_checkpoint_info",
}
_COUNTERS = {
    "optimizer",
    "lr_scheduler",
    "data_sampler",
    "random_ltd",
    "sparse_tensor_module_names",
    "skipped_steps",
    "global_steps",
    "global_samples",
}
_FLAT = {
    "single_partition_of_fp32_groups",
    "fp32_flat_groups",
    "base_optimizer_state",
    "optimizer_state_dict",
    "group_paddings",
    "param_alignment_paddings",
    "partition_count",
    "param_slice_mappings",
    "ds_zero_partition_groups",
}


def _stage(value: Any) -> int:
    if type(value) is not int:
        raise Untrusted("expected the number of a ZeRO stage")
    return value


GLOBALS: dict[tuple[str, str], Any] = {
    **TORCH,
    ("deepspeed.runtime.zero.config", "ZeroStageEnum"): _stage,
}
"""What stands for the classes that files of DeepSpeed name."""


@contextmanager
def naming_oddities(where: str) -> Generator[None]:
    """Say in errors where they are, and turn those of odd values into Untrusted."""
    try:
        with naming(where):
            yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as odd:
        # The last guard: whatever the files hold, it is they that are wrong.
        raise Untrusted(
            f"expected a checkpoint of DeepSpeed, found odd values "
            f"({type(odd).__name__}) - in {where}"
        ) from odd


def take(tree: Any, key: Any, kind: type[T]) -> T:
    """Return what a dict has at a key; Damaged without it, Untrusted if it is odd."""
    if not isinstance(tree, dict) or key not in tree:
        raise Damaged(f"expected `{str(key)[:100]}`, found none")
    value = cast(Tree, tree)[key]
    if not isinstance(value, kind):
        raise Untrusted(
            f"expected `{str(key)[:100]}` to be of type {kind.__name__}, found "
            f"{type(value).__name__}"
        )
    return value


def take_dict(tree: Any, key: Any) -> Tree:
    """Return the dict that a dict has at a key."""
    return cast(Tree, take(tree, key, dict))


def take_list(tree: Any, key: Any) -> list[Any]:
    """Return the list that a dict has at a key."""
    return cast("list[Any]", take(tree, key, list))


def take_or(tree: Mapping[Any, Any], key: Any, make: Callable[[], T]) -> T:
    """Return what a dict has at a key, what `make` makes where it is None or absent."""
    if tree.get(key) is None:
        return make()
    made = make()
    return take(tree, key, type(made))


def take_shapes(value: Any, *, what: str) -> dict[str, Shape]:
    """Return shapes by the names of parameters."""
    if not isinstance(value, dict):
        raise Untrusted(f"expected {what} by name, found {type(value).__name__}")
    shapes: dict[str, Shape] = {}
    for name, shape in cast(Tree, value).items():
        if type(name) is not str or not _is_shape(shape):
            raise Untrusted(f"expected {what}, found other values")
        shapes[name] = cast(Shape, shape)
    return shapes


def _is_shape(value: Any) -> bool:
    if not isinstance(value, tuple) or len(cast(tuple[Any, ...], value)) > 64:
        return False
    return all(
        type(n) is int and 0 <= n < 1 << 62 for n in cast(tuple[Any, ...], value)
    )


def take_groups(model: Any) -> list[dict[str, Shape]]:
    """Return the shapes of parameters, by group, in the order of their partitions."""
    groups = [
        take_shapes(group, what="shapes of parameters")
        for group in take_list(model, "param_shapes")
    ]
    if sum(map(len, groups)) != len({name for group in groups for name in group}):
        raise Untrusted("expected each parameter in one group, found some in more")
    return groups


def add_module(tree: Tree, model: Tree, *, sharded: bool) -> None:
    """Add what the model's module held: parameters as they were used, and buffers.

    Sharded, only the buffers are whole.
    """
    buffers = set(map(str, take_or(model, "buffer_names", list[Any])))
    for name, value in take_or(model, "module", dict[Any, Any]).items():
        kind = "buffer" if name in buffers else "module"
        if isinstance(value, Tensor) and (kind == "buffer" or not sharded):
            tree.setdefault(str(name), {})[kind] = value


def add_shared(tree: Tree, model: Tree) -> None:
    """Let parameters that are others' second names be the same ones."""
    count = 0
    for alias, source in take_or(model, "shared_params", dict[Any, Any]).items():
        if type(alias) is not str or type(source) is not str or source not in tree:
            raise Damaged(f"expected the parameter {str(source)[:100]!a}, found none")
        count += len(tree[source])
        if count > MAX_ENTRIES:
            raise LimitExceeded(
                f"expected at most {MAX_ENTRIES:,} values of second names, found more: "
                "get the checkpoint again"
            )
        tree[alias] = {**tree[source], **tree.get(alias, {})}


def rest_of(model: Tree, optimizer: Tree, groups: list[Any]) -> Tree:
    """Return counters, schedules and options: what belongs to no parameter."""
    plain = {str(key): value for key, value in optimizer.items() if key not in _FLAT}
    return {
        **{key: model[key] for key in sorted(_COUNTERS) if model.get(key) is not None},
        "optimizer": {**plain, "param_groups": groups},
        "client_state": {
            key: value
            for key, value in model.items()
            if key not in _KNOWN and key not in _COUNTERS
        },
    }
