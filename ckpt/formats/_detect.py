"""What a path is: each format looks at the names there, the surest signs first."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from urllib.parse import unquote

from .._errors import (
    CkptError,
    Damaged,
    LimitExceeded,
    NotFound,
    Unsupported,
    Untrusted,
)
from .._local_store import LocalStore
from .._store import Store, open_store
from .._store_options import GivenOptions
from ._entry import Catalogue, Folder
from ._kinds import POINTER, look_into
from ._links import find_snapshot, follow_links

FORMATS = "safetensors, PyTorch DCP, DeepSpeed, Orbax, torch.save, flax msgpack"
"""What is read, for people."""

_SHOWN = 5
_EMPTY = "it is an empty folder"
_ABSENT = "nothing has that name, so check the path"

_LARGE = (".safetensors", ".bin", ".pt", ".pth", ".msgpack", ".ckpt")
_LOOKED_AT = 100

_WITHIN = frozenset(
    (".metadata", "latest", "_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt")
)
"""Files of a checkpoint whose path stands for that of their folder."""

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

    Unsupported for a file that no format knows. For a folder of others, or nothing,
    NotFound that says so, or None where the caller has more to say: of a step that it
    looked for, or of a store that hides what is there.
    """
    folder = look_at(path, step, options)
    if folder is None:
        store = open_store(path, options=options)
        if step is None and isinstance(store, LocalStore):
            there = os.path.isdir(store.url)
            raise NotFound(
                "expected a run with a committed step, or a checkpoint, found neither "
                f"- in {store.url}: {_EMPTY if there else _ABSENT}"
            )
        return None
    for find in _finders():
        try:
            found = find(folder)
        except CkptError as error:
            _raise_if_replaced(folder, error)
            raise
        if found is not None:
            _check_step(found, step, folder.store.url)
            return folder.store, found
    _raise_if_replaced(folder, None)
    if folder.file:
        kind = look_into(folder.store, folder.file)
        said = kind.found if kind else "a file that is none of them"
        advice = kind.advice if kind else "see whether it can be read"
        raise Unsupported(
            f"expected one of {FORMATS}, found {said} - in "
            f"{folder.store.url}/{folder.file}: {advice}"
        )
    if step is None:
        if within := _find_within(folder.names):
            advice = f"give the path of what it holds, {_sample(within)}"
        else:
            tops = list(dict.fromkeys(n.partition("/")[0] for n in folder.names))
            advice = f"it holds {_sample(tops)}, and nothing of {FORMATS}"
        raise NotFound(
            "expected a run with a committed step, or a checkpoint, found neither - in "
            f"{folder.store.url}: {advice}"
        )
    return None


def list_steps(path: str | os.PathLike[str], options: GivenOptions | None) -> list[int]:
    """Return the finished steps of a run that Orbax or flax wrote, else none."""
    from ._flax import list_flax_steps
    from ._orbax import list_orbax_steps

    # What cannot be read as a run is none; a store that fails is a store that fails.
    with contextlib.suppress(Damaged, Untrusted, Unsupported, LimitExceeded):
        folder = look_at(path, None, options)
        if folder is not None and not folder.file:
            return list_orbax_steps(folder) or list_flax_steps(folder)
    return []


def _check_step(found: Catalogue, step: int | None, url: str) -> None:
    if step not in (None, found.step):
        raise NotFound(
            f"expected step {step}, found step {found.step} of {found.format} - in "
            f"{url}: leave step out, or give the path of the one that is meant"
        )


def _raise_if_replaced(folder: Folder, error: CkptError | None) -> None:
    """Tell what Git or a failed download leaves for a large file from a damaged one."""
    own = [n for n in folder.names if "/" not in n and n.endswith(_LARGE)]
    for name in own[:_LOOKED_AT]:
        kind = look_into(folder.store, name)
        if kind is None:
            continue
        named = error is not None and name in str(error)
        if kind is POINTER or (
            not kind.ours if named else kind.instead and error is None
        ):
            raise Damaged(
                f"expected the file's own bytes, found {kind.found} - in "
                f"{folder.store.url}/{name}: {kind.advice}"
            ) from error


def _find_within(names: Sequence[str]) -> list[str]:
    """Return the files and folders, not one in another, that look like checkpoints."""
    found: dict[str, None] = {}
    for name in names:
        above, _, last = name.rpartition("/")
        if last in _WITHIN or last.endswith((*_LARGE, ".distcp")):
            found[above or name] = None
    return [n for n in found if not any(up in found for up in _above(n))]


def _above(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def _sample(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(n[:80] for n in names[:_SHOWN])}{more}"


def look_at(
    path: str | os.PathLike[str], step: int | None, options: GivenOptions | None
) -> Folder | None:
    """Return what lies below a path, or the one object that it is; None for nothing."""
    store = open_store(path, options=options)
    names = _list(store)
    if names and isinstance(store, LocalStore):
        snapshot = find_snapshot(names, store)
        if snapshot:
            store = open_store(os.path.join(store.url, snapshot))
            names = _list(store)
    if names:
        return Folder(_as_meant(store, names), tuple(names), step=step)
    text = os.fspath(path).rstrip("/")
    above, _, name = text.rpartition("/")
    if not name or above.endswith((":", "/")):
        return None
    # A relative name lies in the folder where this process works.
    store = open_store(above or ("/" if text.startswith("/") else "."), options=options)
    if isinstance(store, LocalStore):
        name = unquote(name) if text.startswith("file://") else name
        if not os.path.isfile(os.path.join(store.url, name)):
            return None
    elif not _has(store, name):
        return None
    if name in _WITHIN or name.endswith(".distcp"):
        names = _list(store)
        return Folder(_as_meant(store, names), tuple(names), step=step)
    return Folder(_as_meant(store, [name], name), (name,), file=name, step=step)


def _list(store: Store) -> list[str]:
    try:
        return store.list("")
    except CkptError:
        # What is there and cannot be listed is not empty; a file has no list.
        if not isinstance(store, LocalStore) or os.path.isdir(store.url):
            raise
        return []


def _has(store: Store, name: str) -> bool:
    try:
        return store.has(name)
    except CkptError:
        return False


def _as_meant(store: Store, names: list[str], given: str = "") -> Store:
    if isinstance(store, LocalStore):
        return follow_links(store, names, given)
    return store
