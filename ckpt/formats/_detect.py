"""What a path is: each format looks at the names there, the surest signs first."""

from __future__ import annotations

import os
from collections.abc import Callable

from .._errors import CkptError
from .._store import Store, open_store
from .._store_options import GivenOptions
from ._entry import Catalogue, Folder

Finder = Callable[[Folder], Catalogue | None]


def _finders() -> tuple[Finder, ...]:
    """Return the formats in the order in which they are asked; they are not small."""
    from ._dcp import find_dcp
    from ._deepspeed import find_deepspeed
    from ._flax import find_flax
    from ._orbax import find_orbax
    from ._safetensors import find_safetensors
    from ._torch_files import find_torch

    return (
        find_safetensors,
        find_dcp,
        find_deepspeed,
        find_orbax,
        find_torch,
        find_flax,
    )


def find_catalogue(
    path: str | os.PathLike[str], step: int | None, options: GivenOptions | None
) -> tuple[Store, Catalogue] | None:
    """Return the checkpoint of another library at a path, and the store it is in.

    None where no format knows what is there.
    """
    folder = look_at(path, step, options)
    if folder is None:
        return None
    for find in _finders():
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
