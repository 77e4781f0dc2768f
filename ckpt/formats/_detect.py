"""What a path is: each format looks at the names there, the surest signs first."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module

from .._errors import CkptError
from .._store import Store, open_store
from .._store_options import GivenOptions
from ._entry import Catalogue, Folder

_FINDERS = (
    ("_safetensors", "find_safetensors"),
    ("_dcp", "find_dcp"),
    ("_deepspeed", "find_deepspeed"),
    ("_orbax", "find_orbax"),
    ("_torch_files", "find_torch"),
    ("_flax", "find_flax"),
)
"""Modules and functions, in the order in which they are asked."""

Finder = Callable[[Folder], Catalogue | None]


def find_catalogue(
    path: str | os.PathLike[str], step: int | None, options: GivenOptions | None
) -> tuple[Store, Catalogue] | None:
    """Return the checkpoint of another library at a path, and the store it is in.

    None where no format knows what is there.
    """
    folder = look_at(path, step, options)
    if folder is None:
        return None
    for module, name in _FINDERS:
        find: Finder = getattr(import_module(f"{__package__}.{module}"), name)
        found = find(folder)
        if found is not None:
            return folder.store, found
    return None


def look_at(
    path: str | os.PathLike[str], step: int | None, options: GivenOptions | None
) -> Folder | None:
    """Return what lies below a path, or the one object that it is; None for nothing."""
    store = open_store(path, options=options)
    try:
        names = store.list("")
    except CkptError:
        names = []
    if names:
        return Folder(store, tuple(names), step=step)
    text = os.fspath(path).rstrip("/")
    above, _, name = text.rpartition("/")
    if not name or above.endswith((":", "/")):
        return None
    # A relative name lies in the folder where this process works.
    store = open_store(above or ("/" if text.startswith("/") else "."), options=options)
    try:
        if not store.has(name):
            return None
    except CkptError:
        return None
    return Folder(store, (name,), file=name, step=step)
