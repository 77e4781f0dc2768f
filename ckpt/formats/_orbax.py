"""Orbax checkpoints: a run of steps, a step of items, or one item by itself.

A step with one item is its tree, one with several is a dict of them by name; metrics
are told beside. A step counts once Orbax has finished it: then it has its own name and
`commit_success.txt`, or tells the time of its commit. Of older ones the name has to do
on a local disk, where Orbax renames them; in an object store they do not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from .._errors import LimitExceeded, NotFound, Unsupported
from .._store import Store
from ._entry import Catalogue, Folder
from ._orbax_item import Part, group, is_item
from ._orbax_step import (
    MARK,
    has_about,
    is_step,
    is_whole,
    read_step,
    unfinished,
)

_UNFINISHED = ".orbax-checkpoint-tmp"
_STEP = re.compile(r"(?:.*_)?(\d{1,18})")


def find_orbax(folder: Folder) -> Catalogue | None:
    """Return what an Orbax checkpoint holds, or None where there is none.

    `folder.step` picks a step of a run, by default the newest finished one. NotFound,
    Damaged, Untrusted, Unsupported or LimitExceeded say what is wrong with one.
    """
    if folder.file:
        return None
    try:
        return _find(folder)
    except (RecursionError, MemoryError):
        raise LimitExceeded(
            f"expected a checkpoint of reasonable size, found more - in "
            f"{folder.store.url}: get the checkpoint again"
        ) from None


def list_orbax_steps(folder: Folder) -> list[int]:
    """Return the finished steps of a run, ascending; none where it is no run."""
    groups = _group_steps(folder)
    steps = _find_steps(folder.store, groups)
    return sorted(
        number
        for number, names in steps.items()
        if _is_whole(folder.store, names, groups)
    )


def _find(folder: Folder) -> Catalogue | None:
    store, names = folder.store, folder.names
    own = store.url.rstrip("/").rpartition("/")[2]
    if steps := _group_steps(folder):
        return _read_run(folder, steps)
    if not has_about(names) and not is_item(names, store):
        below = group(names)
        if not any(is_item(n, store, below=f"{at}/") for at, n in below.items()):
            return None
    if _UNFINISHED in own:
        raise unfinished(store.url)
    return read_step(Part(store, names), step=_number(own))


def _group_steps(folder: Folder) -> dict[str, list[str]]:
    """Return what the folders of a run's steps hold; nothing where it is no run."""
    store, names = folder.store, folder.names
    if has_about(names) or is_item(names, store):
        return {}
    return {
        name: inner
        for name, inner in group(names).items()
        if _STEP.fullmatch(name.partition(_UNFINISHED)[0])
        and (_UNFINISHED in name or is_step(inner, store, below=f"{name}/"))
    }


def _find_steps(store: Store, groups: dict[str, list[str]]) -> dict[int, list[str]]:
    """Return the folders of each step that may be whole."""
    steps: dict[int, list[str]] = {}
    for name, inner in groups.items():
        told = MARK in inner or has_about(inner)
        if _UNFINISHED not in name and (told or not store.is_remote):
            steps.setdefault(_number(name), []).append(name)
    return steps


def _read_run(folder: Folder, groups: dict[str, list[str]]) -> Catalogue:
    store = folder.store
    steps = _find_steps(store, groups)
    wanted = folder.step
    if wanted is None:
        wanted = _newest(store, steps, groups)
    whole = {name for same in steps.values() for name in same}
    torn = {_number(name): name for name in groups if name not in whole}
    if wanted is None or wanted not in steps:
        if wanted in torn:
            raise unfinished(f"{store.url}/{torn[wanted]}")
        shown = ", ".join(map(str, sorted(steps)[-10:])) or "none"
        raise NotFound(
            f"expected {'a finished step' if wanted is None else f'step {wanted}'}, "
            f"found {shown} - in {store.url}: ask for one of them"
        )
    chosen, *others = steps[wanted]
    if others:
        raise Unsupported(
            f"expected one folder of step {wanted}, found {chosen} and {others[0]} - "
            f"in {store.url}: open the folder itself"
        )
    part = Part(store.child(chosen), groups[chosen], f"{chosen}/")
    found = read_step(part, step=wanted)
    passed = sorted(name for number, name in torn.items() if number > wanted)
    notes = tuple(f"{store.url}/{name} was never finished." for name in passed)
    return replace(found, notes=(*notes, *found.notes))


def _number(name: str) -> int:
    match = _STEP.fullmatch(name.partition(_UNFINISHED)[0])
    return int(match[1]) if match else 0


def _newest(
    store: Store, steps: dict[int, list[str]], groups: dict[str, list[str]]
) -> int | None:
    """Return the newest step that is whole; those that are not are taken out."""
    for number in sorted(steps, reverse=True):
        if _is_whole(store, steps[number], groups):
            return number
        del steps[number]
    return None


def _is_whole(store: Store, names: Sequence[str], groups: dict[str, list[str]]) -> bool:
    """Tell whether a step is finished; one in two folders is for the caller to see."""
    return len(names) > 1 or is_whole(store.child(names[0]), groups[names[0]])
