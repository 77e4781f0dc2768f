"""One step of Orbax: its items, and what it says about itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .._errors import Damaged, Unsupported
from .._store import Store
from ._entry import Catalogue, Tensor
from ._orbax_item import Part, group, is_item, read_item
from ._orbax_json import as_object, read_json
from ._orbax_old import AGGREGATE

MARK = "commit_success.txt"
_ABOUT = "_CHECKPOINT_METADATA"
_SIDE = {_ABOUT, MARK, "orbax.checkpoint", "descriptor"}
_JSON = {"metadata", "data.json", "metrics"}
_NESTED = 4
_MANY = 64
_RANDOM = {"jax_random_key", "np_random_key"}
_NOTHING = object()


def has_about(names: Sequence[str]) -> bool:
    """Tell whether a folder says that it is a step."""
    return _ABOUT in names or "orbax.checkpoint" in names


def is_step(names: Sequence[str], store: Store, *, below: str = "") -> bool:
    """Tell whether the objects of a folder are those of a step or an item.

    `below` is what the folder's objects have before their names in the store.
    """
    if has_about(names) or is_item(names, store, below=below):
        return True
    return any(
        is_item(inner, store, below=f"{below}{name}/")
        for name, inner in group(names).items()
    )


def is_whole(store: Store, names: Sequence[str]) -> bool:
    """Tell whether a step says that it was finished, or is too old to say it."""
    if MARK in names or _ABOUT not in names:
        return True
    try:
        found = read_json(store, _ABOUT)
    except Damaged:
        return False
    return as_object(found).get("commit_timestamp_nsecs", 0) is not None


def unfinished(where: str) -> Damaged:
    """Return the error of a checkpoint whose writing has not ended."""
    return Damaged(
        "expected a finished checkpoint, found one that was never finished - at "
        f"{where}: restore another step"
    )


def read_step(part: Part, *, step: int) -> Catalogue:
    """Return what a step holds, or an item by itself."""
    store, names = part.store, part.names
    if not is_whole(store, names):
        raise unfinished(store.url)
    about = as_object(read_json(store, _ABOUT)) if _ABOUT in names else {}
    meta = {k: about[k] for k in ("custom_metadata", "metrics") if about.get(k)}
    notes: list[str] = []
    alone = is_item(names, store)
    tree = _read_item(part, notes) if alone else _read_items(part, meta, notes)
    objects = tuple(f"{part.prefix}{name}" for name in names)
    return Catalogue("orbax", tree, objects, step, tuple(notes), (), meta)


def _read_items(part: Part, meta: dict[str, Any], notes: list[str]) -> Any:
    items: dict[str, Any] = {}
    for name, inner in part.below().items():
        if name == "metrics" and "metrics" in inner.names:
            meta["metrics"] = read_json(inner.store, "metrics")
        elif (found := _read_any(inner, notes)) is not _NOTHING:
            items[name] = found
        elif any(file not in _SIDE for file in inner.names):
            notes.append(
                f"{inner.store.url} is of no kind that is read here: it is passed over."
            )
    own = [name for name in part.names if name in _JSON]
    if len(own) == 1 and not items:
        return read_json(part.store, own[0])
    if not items:
        raise Unsupported(
            f"expected items that are read here, found none - in {part.store.url}: "
            "load it with the Orbax that wrote it"
        )
    return next(iter(items.values())) if len(items) == 1 else items


def _read_any(part: Part, notes: list[str], *, depth: int = 0) -> Any:
    """Return what a folder within a step holds: a tree, JSON, or more folders."""
    if is_item(part.names, part.store):
        return _read_item(part, notes)
    files = [name for name in part.names if name not in _SIDE]
    if len(files) == 1 and (files[0] in _JSON or files[0].endswith(".json")):
        return read_json(part.store, files[0])
    below = part.below()
    if len(below) > _MANY or depth > _NESTED:
        return _NOTHING
    if below.keys() & _RANDOM:
        return _read_random(below, notes)
    found = {
        name: value
        for name, inner in below.items()
        if (value := _read_any(inner, notes, depth=depth + 1)) is not _NOTHING
    }
    return found or _NOTHING


def _read_random(below: dict[str, Part], notes: list[str]) -> Any:
    """Return a key of JAX, or the state of numpy's generator, saved as an item."""
    name = next(iter(below.keys() & _RANDOM))
    inner = below[name]
    there = is_item(inner.names, inner.store)
    found = _read_item(inner, notes) if there else _NOTHING
    about = below.get(f"{name}_metadata")
    if about and "metadata" in about.names and isinstance(found, Tensor):
        typed = as_object(read_json(about.store, "metadata")).get("typed")
        # Of which kind it is, only its size tells: other kinds have other sizes.
        if typed is True and found.dtype == "uint32" and found.shape[-1:] == (2,):
            return replace(found, kind="key", impl="threefry2x32")
    return found


def _read_item(part: Part, notes: list[str]) -> Any:
    item = read_item(part)
    notes.extend(item.notes)
    tree: Any = as_object(item.tree)
    # A single array, which Orbax keeps under this name, in files or without a tree.
    if tree.keys() == {AGGREGATE} and AGGREGATE not in part.names:
        plain = {f"{AGGREGATE}/.zarray", f"{AGGREGATE}/zarr.json"} & {*part.names}
        if plain or "_METADATA" not in part.names:
            return tree[AGGREGATE]
    return item.tree
