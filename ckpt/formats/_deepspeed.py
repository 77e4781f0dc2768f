"""Checkpoints of DeepSpeed: ZeRO 0 to 3, and the universal format.

The tree has each parameter by name, with what there is of it: `fp32`, `exp_avg`,
`exp_avg_sq`, `step`, `frozen`, `module` (as the model used it); buffers have `buffer`.
What belongs to no parameter lies below `deepspeed`.
"""

from __future__ import annotations

from typing import Any, cast

from .._errors import Damaged, Unsupported
from ._deepspeed_files import Tag, find_tag
from ._deepspeed_state import (
    GLOBALS,
    Tree,
    add_module,
    add_shared,
    naming_oddities,
    rest_of,
    take_dict,
)
from ._deepspeed_universal import read_options, shape_atoms
from ._deepspeed_zero import read_frozen, read_partitions
from ._entry import Catalogue, Folder
from ._torch_files import Files, read_files

_REST = "deepspeed"


def find_deepspeed(folder: Folder) -> Catalogue | None:
    """Return what a checkpoint of DeepSpeed holds: a tag's folder, or one of tags.

    Of tags, that of the wanted step, of the file `latest`, or the newest.
    """
    if folder.file:
        return None
    tag = find_tag(folder)
    if tag is None:
        return None
    where = f"{folder.store.url}/{tag.name}".rstrip("/")
    with naming_oddities(where):
        names = [*tag.optim.values(), *tag.model.values(), *tag.atoms.values()]
        files = read_files(folder.store, names, globals=GLOBALS)
        if tag.atoms:
            tree, model = _read_universal(tag, files)
        else:
            tree, model = _read_zero(tag, files)
    return Catalogue(
        "deepspeed",
        tree,
        tuple(sorted(names)),
        step=_step(tag, model),
        notes=tuple(sorted(files.notes)),
        checks=tuple(files.checks),
        meta={
            key: model[key]
            for key in ("ds_version", "ds_config", "dp_world_size", "mp_world_size")
            if key in model
        },
    )


def _read_zero(tag: Tag, files: Files) -> tuple[Tree, Tree]:
    """Return the tree of all ranks' files, and the first model file."""
    models = [_model(files, name) for _, name in sorted(tag.model.items())]
    if not models:
        raise Damaged("expected a file of the model's states, found none")
    ranks = sorted(tag.optim)
    if ranks != list(range(len(ranks))):
        raise Damaged(
            f"expected optimizer files of ranks 0 to {ranks[-1]}, found {len(ranks)}: "
            "some were lost, or never written"
        )
    tree: Tree = {}
    state: Tree = {}
    groups: list[Any] = []
    if ranks:
        states = [
            take_dict(files.trees[tag.optim[rank]], "optimizer_state_dict")
            for rank in ranks
        ]
        state = states[0]
        tree, groups = read_partitions(models[0], states)
    sharded = -1 not in tag.model
    if sharded and sorted(tag.model) != ranks:
        raise Damaged(
            f"expected a model file for each of {len(ranks)} ranks, found "
            f"{len(tag.model)}: some were lost, or never written"
        )
    for name, held in read_frozen(models, sharded=sharded).items():
        tree.setdefault(name, {}).update(held)
    add_module(tree, models[0], sharded=sharded)
    add_shared(tree, models[0])
    return _with_rest(tree, rest_of(models[0], state, groups)), models[0]


def _read_universal(tag: Tag, files: Files) -> tuple[Tree, Tree]:
    """Return the tree of the parameters' files, and the first model file, if any."""
    models = [_model(files, name) for _, name in sorted(tag.model.items())]
    model = models[0] if models else {}
    trees = {key: files.trees[name] for key, name in tag.atoms.items()}
    tree = shape_atoms(trees, {} if tag.split_model else model)
    sharded = -1 not in tag.model
    if models and not tag.split_model:
        for name, held in read_frozen(models, sharded=sharded).items():
            tree.setdefault(name, {}).update(held)
        add_module(tree, model, sharded=sharded)
        add_shared(tree, model)
    elif models:
        files.notes.append("model files hold parts of one rank and were passed over")
    state, groups = read_options(trees.get(("", "optimizer_state")))
    return _with_rest(tree, rest_of(model, state, groups)), model


def _with_rest(tree: Tree, rest: Tree) -> Tree:
    if _REST in tree:
        raise Unsupported(f"expected no parameter of the name `{_REST}`, found one")
    return {**tree, _REST: rest}


def _model(files: Files, name: str) -> Tree:
    model = files.trees[name]
    if not isinstance(model, dict):
        raise Damaged(f"expected a model's states in {name}, found another value")
    return cast(Tree, model)


def _step(tag: Tag, model: Tree) -> int:
    step = model.get("global_steps")
    return step if type(step) is int and step >= 0 else tag.step
