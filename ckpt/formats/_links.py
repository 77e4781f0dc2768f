"""A local folder as its owner meant it: the links and names that are no attack.

Two kinds of links are followed: the path that the caller gave, and, in a snapshot of
Hugging Face's cache, the links into the blobs of the same model.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from .. import _place as place
from .._errors import NotFound, Untrusted
from .._local_file import LocalReader
from .._local_store import LocalStore
from .._store import check_name

_SNAPSHOTS = "snapshots"
_BLOBS = "blobs"


@dataclass(frozen=True, slots=True)
class LinkedStore(LocalStore):
    """A folder in which some names stand for files elsewhere.

    `named` are names that come from the folder's listing, not from a checkpoint: they
    may hold any character. `given` is the file that the caller asked for, which may
    also be a link.
    """

    named: frozenset[str] = frozenset()
    given: str = ""

    def open(
        self, name: str, *, size: int | None = None, trusted: bool = False
    ) -> LocalReader:
        """Open an object for reading, where it really is."""
        real = self._find_real(name)
        if real is None:
            return LocalStore.open(self, name, size=size, trusted=trusted)
        root, parts, leaf = real
        explain = partial(self._explain_read, name=name)
        try:
            with place.entered(root, parts) as at:
                fd, found = place.open_file(at, leaf)
        except OSError as error:
            raise explain(error) from error
        return LocalReader(
            fd, size=found, where=f"`{name}` in {self.url}", explain=explain
        )

    def size(self, name: str) -> int | None:
        """Return the length of an object in bytes, None when it is absent."""
        if self._find_real(name) is None:
            return LocalStore.size(self, name)
        try:
            with self.open(name) as reader:
                return reader.size
        except NotFound:
            return None

    def child(self, name: str) -> LinkedStore:
        """Return the store of a sub-folder."""
        prefix = f"{name}/"
        named = frozenset(
            n.removeprefix(prefix) for n in self.named if n.startswith(prefix)
        )
        within = "/".join(self._split(name if named else check_name(name)))
        return LinkedStore(self.root, within, durable=self.durable, named=named)

    def _find_real(self, name: str) -> tuple[str, tuple[str, ...], str] | None:
        """Return root, folders and leaf to open without links; None for the name's."""
        if name == self.given and name:
            above, leaf = os.path.split(os.path.realpath(os.path.join(self.url, name)))
            return above, (), leaf
        if name in self.named:
            *above, leaf = name.split("/")
            return self.url, tuple(above), leaf
        *parts, leaf = self._split(check_name(name))
        snapshot = os.path.realpath(self.root)
        model = _model_of(snapshot)
        if model is None:
            return None
        try:
            with place.entered(self.root, parts) as at:
                if isinstance(at, int):
                    target = os.readlink(leaf, dir_fd=at)
                else:
                    target = os.readlink(os.path.join(at, leaf))
        except OSError:
            return None
        path = os.path.normpath(os.path.join(snapshot, *parts, target))
        above, blob = os.path.split(path)
        if above != os.path.join(model, _BLOBS):
            raise Untrusted(
                f"expected a link into {_BLOBS}/ of the model, found {target!r:.200} - "
                f"at `{name}` in {self.url}: give the path of the folder that it is in"
            )
        return model, (_BLOBS,), blob


def follow_links(store: LocalStore, names: Sequence[str], given: str) -> LinkedStore:
    """Return a store that reads what is listed in a folder, `given` even by a link."""
    odd = frozenset(n for n in names if not _is_plain(n))
    return LinkedStore(store.root, store.within, named=odd, given=given)


def find_snapshot(names: Sequence[str], store: LocalStore) -> str:
    """Return the newest snapshot in a model's folder of the cache, "" in others."""
    if "refs/main" not in names or not any(n.startswith("snapshots/") for n in names):
        return ""
    revision = store.read("refs/main", limit=256).decode(errors="replace").strip()
    found = f"{_SNAPSHOTS}/{revision}"
    known = any(n.startswith(f"{found}/") for n in names)
    return found if _is_plain(found) and revision and known else ""


def _is_plain(name: str) -> bool:
    try:
        check_name(name)
    except Untrusted:
        return False
    return True


def _model_of(snapshot: str) -> str | None:
    """Return the folder of the model that a folder is a snapshot of, or lies in."""
    above = snapshot
    while above != os.path.dirname(above):
        parent = os.path.dirname(above)
        if os.path.basename(parent) == _SNAPSHOTS:
            model = os.path.dirname(parent)
            return model if os.path.isdir(os.path.join(model, _BLOBS)) else None
        above = parent
    return None
