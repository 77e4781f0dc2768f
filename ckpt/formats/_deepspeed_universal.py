"""DeepSpeed's universal checkpoints: a folder for each parameter, a file a kind."""

from __future__ import annotations

import math
from typing import Any, cast

from .._errors import Damaged, Untrusted
from ._deepspeed_flat import join, shape_runs
from ._deepspeed_state import Tree, take, take_groups
from ._entry import Shape, Tensor


def shape_atoms(atoms: dict[tuple[str, str], Any], model: Tree) -> Tree:
    """Return parameters from the trees of their files, by parameter and kind.

    Stage 3 leaves flat tensors: their shapes are those that the model file says. It may
    be empty; Damaged where a parameter that it knows is missing, or of another size.
    """
    shapes: dict[str, Shape] = {}
    if model.get("param_shapes"):
        for group in take_groups(model):
            shapes |= group
    tree: Tree = {}
    for (name, kind), value in sorted(atoms.items()):
        if name:
            held = take(value, "param", Tensor) if isinstance(value, dict) else value
            tree.setdefault(name, {})[kind] = _shape(held, shapes.get(name), name=name)
    if missing := sorted(set(shapes) - set(tree)):
        raise Damaged(
            f"expected files of `{missing[0]}` and {len(missing) - 1} others, "
            "found none: convert the checkpoint again"
        )
    return tree


def _shape(value: Any, shape: Shape | None, *, name: str) -> Any:
    """Return a tensor with its real shape, and what is none as it is."""
    if not isinstance(value, Tensor) or shape is None or value.shape in ((), shape):
        return value
    if value.shape != (math.prod(shape),):
        raise Damaged(
            f"expected `{name}` to have shape {shape}, found {value.shape}: the files "
            "are of different checkpoints"
        )
    flat = join([value], what=f"`{name}`")
    return shape_runs(flat.runs, dtype=flat.dtype, shape=shape, name=name)


def read_options(value: Any) -> tuple[Tree, list[Any]]:
    """Return the state of the optimizer that is no parameter's, and its groups."""
    if value is None:
        return {}, []
    if not isinstance(value, dict):
        raise Untrusted("expected the optimizer's state, found another value")
    state = cast(Tree, value)
    inner: Any = state.get("optimizer_state_dict", state)
    if isinstance(inner, dict) and "base_optimizer_state" in inner:
        inner = cast(Tree, inner)["base_optimizer_state"]
    if not isinstance(inner, dict):
        return state, []
    groups = cast(Tree, inner).get("param_groups")
    return state, cast(list[Any], groups) if isinstance(groups, list) else []
