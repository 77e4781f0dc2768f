"""One step of Orbax: its items, and what it says about itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, cast

from .._errors import Damaged, LimitExceeded, Unsupported
from .._store import Store
from ._entry import Catalogue
from ._orbax_item import is_item, read_item
from ._orbax_tree import MAX_DEPTH, as_object, read_json

MARK = "commit_success.txt"
_ABOUT = "_CHECKPOINT_METADATA"
_SIDE = {_ABOUT, MARK, "orbax.checkpoint", "descriptor"}
_JSON = {"metadata", "data.json", "metrics"}
_JSON_BYTES = 8 << 20
_JSON_VALUES = 1 << 18
_NESTED = 4


def group(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names below each folder, by the folder's own.

    >>> group(["a/b", "a/c/d", "e"])
    {'a': ['b', 'c/d']}
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        first, slash, rest = name.partition("/")
        if slash:
            groups.setdefault(first, []).append(rest)
    return groups


def has_about(names: Sequence[str]) -> bool:
    """Tell whether a folder says that it is a step."""
    return _ABOUT in names or "orbax.checkpoint" in names


def is_step(names: Sequence[str]) -> bool:
    """Tell whether the objects of a folder are those of a step or an item."""
    if is_item(names) or has_about(names):
        return True
    return any(is_item(inner) for inner in group(names).values())


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
        "Expected a finished checkpoint, found one that was never finished - at "
        f"{where}. Restore another step."
    )


def read_step(store: Store, names: Sequence[str], *, step: int) -> Catalogue:
    """Return what a step holds, or an item by itself."""
    if not is_whole(store, names):
        raise unfinished(store.url)
    about = as_object(read_json(store, _ABOUT)) if _ABOUT in names else {}
    meta = {k: about[k] for k in ("custom_metadata", "metrics") if about.get(k)}
    notes: list[str] = []
    if is_item(names):
        tree = _read_item(store, names, notes)
    else:
        tree = _read_items(store, names, meta, notes)
    return Catalogue("orbax", tree, tuple(names), step, tuple(notes), (), meta)


def _read_items(
    store: Store, names: Sequence[str], meta: dict[str, Any], notes: list[str]
) -> Any:
    items: dict[str, Any] = {}
    for name, inner in group(names).items():
        child = store.child(name)
        if name == "metrics" and "metrics" in inner:
            meta["metrics"] = _read_plain(child, "metrics")
        elif (found := _read_any(child, inner, notes)) is not _NOTHING:
            items[name] = found
        elif any(file not in _SIDE for file in inner):
            notes.append(f"{child.url} is of no kind that we read: it is passed over.")
    if not items:
        raise Unsupported(
            f"Expected items that we read, found none - in {store.url}. Load it with "
            "the Orbax that wrote it."
        )
    return next(iter(items.values())) if len(items) == 1 else items


_NOTHING = object()


def _read_any(
    store: Store, names: Sequence[str], notes: list[str], *, depth: int = 0
) -> Any:
    """Return what a folder within a step holds: a tree, JSON, or more folders."""
    if is_item(names):
        return _read_item(store, names, notes)
    files = [name for name in names if name not in _SIDE]
    if len(files) == 1 and (files[0] in _JSON or files[0].endswith(".json")):
        return _read_plain(store, files[0])
    below = group(names)
    if len(below) > 64 or depth > _NESTED:
        return _NOTHING
    if "jax_random_key" in below or "np_random_key" in below:
        below = {k: v for k, v in below.items() if not k.endswith("_key_metadata")}
    found = {
        name: value
        for name, inner in below.items()
        if (value := _read_any(store.child(name), inner, notes, depth=depth + 1))
        is not _NOTHING
    }
    if not found:
        return _NOTHING
    if found.keys() in ({"jax_random_key"}, {"np_random_key"}):
        return next(iter(found.values()))
    return found


def _read_item(store: Store, names: Sequence[str], notes: list[str]) -> Any:
    item = read_item(store, names)
    notes.extend(item.notes)
    # A single array, which Orbax keeps under this name among plain files.
    if "checkpoint/.zarray" in names or "checkpoint/zarr.json" in names:
        tree: Any = item.tree
        if isinstance(tree, dict) and tree.keys() == {"checkpoint"}:
            return cast("dict[str, Any]", tree)["checkpoint"]
    return item.tree


def _read_plain(store: Store, name: str) -> Any:
    """Return a JSON item, in which NaN and the infinities may stand."""
    data = store.read(name, limit=_JSON_BYTES)
    where = f"{store.url}/{name}"
    if data.count(b",") + data.count(b"[") + data.count(b"{") > _JSON_VALUES:
        raise LimitExceeded(
            f"Expected at most {_JSON_VALUES:,} JSON values, found more - at {where}. "
            "Keep so many in an array."
        )
    try:
        value = json.loads(data)
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"Expected JSON, found none ({error!s:.80}) - at {where}. Restore another "
            "step."
        ) from None
    _check_depth(value, where)
    return value


def _check_depth(value: Any, where: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += cast("dict[str, Any]", item).values()
            elif isinstance(item, list):
                inner += cast("list[Any]", item)
        level = inner
    if level:
        raise LimitExceeded(
            f"Expected at most {MAX_DEPTH} nested JSON values, found more - at "
            f"{where}. Get the checkpoint again."
        )
