"""Objects as plain files: what to do in which order so that it holds.

On Linux each method keeps what `Store` says of it. macOS is asked for F_FULLFSYNC.
Windows has no folder fsync and no pwritev: importing and restoring work there, and
nothing is promised about power cuts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import partial

from layouts import REQUEST_BYTES

from . import _place as place
from ._errors import (
    CkptError,
    LimitExceeded,
    NotFound,
    Outcome,
    Unsupported,
    Untrusted,
)
from ._local_errors import describe_failure, settle
from ._local_file import LocalReader, LocalWriter
from ._place import Place
from ._store import check_name, check_prefix


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A folder on a mounted file system; `root` is the caller's, links and all.

    Below `root` no link is followed. `durable=False` leaves out every fsync: it exists
    for the tests that show what fsync is for.
    """

    root: str
    within: str = ""
    durable: bool = True

    @property
    def url(self) -> str:
        return os.path.join(self.root, self.within) if self.within else self.root

    @property
    def parallel(self) -> int:
        # Where an fsync waits for a disk, others can copy meanwhile.
        least = 2 if place.is_in_memory(self.root) else 4
        return max(least, os.cpu_count() or 2)

    @property
    def batch_bytes(self) -> int:
        # Larger writes make larger pages in the page cache, which on a disk is worth
        # more than that a batch fits into a processor's own cache.
        return 1 << 20 if place.is_in_memory(self.root) else 4 << 20

    @property
    def absence_hint(self) -> str:
        return ""

    @property
    def request_bytes(self) -> int:
        return REQUEST_BYTES

    @property
    def is_remote(self) -> bool:
        return False

    def hurried(self) -> LocalStore:
        return self

    def read(self, name: str, *, limit: int, size: int | None = None) -> bytes:
        with self.open(name) as reader:
            if reader.size > limit:
                raise LimitExceeded(
                    f"Expected at most {limit:,} bytes, found {reader.size:,} - at "
                    f"`{name}` in {self.url}. Raise the limit if you trust it."
                )
            data = bytearray(reader.size)
            reader.read_into(0, data)
        return bytes(data)

    def open(
        self, name: str, *, size: int | None = None, trusted: bool = False
    ) -> LocalReader:
        *parts, leaf = self._split(check_name(name))
        try:
            at = place.enter(self.root, parts)
            try:
                fd, found = place.open_file(at, leaf)
            finally:
                place.leave(at)
        except OSError as error:
            raise self._explain_read(error, name) from error
        return LocalReader(
            fd,
            size=found,
            where=f"`{name}` in {self.url}",
            explain=partial(self._explain_read, name=name),
        )

    def write(self, name: str, *, size: int | None, over: bool = False) -> LocalWriter:
        check_name(name)
        explain = partial(self._explain, name=name)
        made = f"{name}.{secrets.token_hex(8)}.tmp" if over else name
        try:
            with self._entered(made) as (at, leaf):
                fd = place.make_file(at, leaf)
        except OSError as error:
            raise explain(error) from error
        return LocalWriter(
            fd,
            size=size,
            durable=self.durable,
            publish=partial(self._rename, made, name) if over else None,
            discard=partial(self._discard, made),
            explain=explain,
        )

    def create(self, name: str, data: bytes) -> bool:
        check_name(name)
        outcome: Outcome = "failed"
        try:
            with self._entered(name) as (at, leaf), place.lock_folder(at) as locked:
                if place.find(at, leaf):
                    return False
                temporary = self._write_temporary(at, leaf, data, locked=locked)
                outcome = "unknown"
                try:
                    created = place.link_or_write(
                        at, temporary, leaf, data, durable=self.durable
                    )
                finally:
                    # A name left over is harmless: the next writer removes it.
                    with contextlib.suppress(OSError):
                        place.unlink(at, temporary)
                if created:
                    outcome = "unsynced"
                    self._sync(at)
                return created
        except OSError as error:
            raise self._explain(error, name, outcome=settle(outcome, error)) from error

    def replace(self, name: str, data: bytes, *, expected: bytes) -> bool:
        check_name(name)
        outcome: Outcome = "failed"
        try:
            with self._entered(name) as (at, leaf), place.lock_folder(at) as locked:
                if not locked:
                    raise Unsupported(
                        "Expected a file system that can lock a folder (flock), found "
                        f"none - at `{name}` in {self.url}. Nothing was changed: write "
                        "under a new name instead."
                    )
                if not self._equals(name, expected):
                    return False
                temporary = self._write_temporary(at, leaf, data, locked=True)
                outcome = "unknown"
                try:
                    place.rename(at, temporary, leaf)
                except OSError:
                    with contextlib.suppress(OSError):
                        place.unlink(at, temporary)
                    raise
                outcome = "unsynced"
                self._sync(at)
                return True
        except OSError as error:
            raise self._explain(error, name, outcome=settle(outcome, error)) from error

    def remove(self, name: str, *, expected: bytes | None = None) -> bool:
        check_name(name)
        outcome: Outcome = "failed"
        try:
            with self._entered(name) as (at, leaf), place.lock_folder(at):
                if expected is not None and not self._equals(name, expected):
                    return False
                outcome, removed = "unknown", True
                try:
                    place.unlink(at, leaf)
                except FileNotFoundError:
                    removed = False
                outcome = "unsynced"
                # Also when it was absent: whoever removed it may have been killed
                # before this, and what the caller removes next relies on it.
                self._sync(at)
                return removed
        except OSError as error:
            if self._is_absent(error, name):
                return False
            raise self._explain(error, name, outcome=outcome) from error

    def remove_tree(self, prefix: str) -> int:
        check_name(prefix)
        freed = 0
        try:
            with self._entered(prefix) as (at, leaf):
                status = place.find(at, leaf)
                if status and stat.S_ISDIR(status.st_mode):
                    freed = place.remove_folder(at, leaf)
                elif status and stat.S_ISLNK(status.st_mode):
                    place.unlink(at, leaf)
                self._sync(at)
        except OSError as error:
            if not self._is_absent(error, prefix):
                raise self._explain(error, prefix, outcome="unknown") from error
        return freed

    def list(self, prefix: str) -> list[str]:
        parts = self._split(check_prefix(prefix))
        found: list[str] = []
        try:
            with place.entered(self.root, parts) as at:
                place.list_files(at, f"{prefix}/" if prefix else "", found)
        except OSError as error:
            # A file in the place of the store is no empty store.
            if not self._is_absent(error, prefix) or os.path.isfile(self.root):
                raise self._explain(error, prefix) from error
        return sorted(found)

    def size(self, name: str) -> int | None:
        check_name(name)
        try:
            with self._entered(name) as (at, leaf):
                status = place.find(at, leaf)
        except OSError as error:
            if self._is_absent(error, name):
                return None
            raise self._explain_read(error, name) from error
        if status and not stat.S_ISREG(status.st_mode):
            raise self._refuse(name)
        return status.st_size if status else None

    def has(self, name: str) -> bool:
        return self.size(name) is not None

    @contextlib.contextmanager
    def hold(self, name: str) -> Generator[bool]:
        with self.open(name) as reader:
            yield reader.lock()

    def make_folders(self, names: Iterable[str]) -> None:
        # Parents are synced whether or not this call made the entry: a process killed
        # between its mkdir and its fsync leaves an entry that is seen but not durable.
        # As a level is synced before the next is begun, above the deepest folder that
        # exists only that folder's own entry can be in doubt.
        children: dict[tuple[str, ...], set[str]] = {}
        for name in names:
            parts = self._split(check_prefix(name))
            for depth, part in enumerate(parts):
                children.setdefault(tuple(parts[:depth]), set()).add(part)
        above = len(self._split(""))
        path: tuple[str, ...] = ()
        try:
            self._make_root()
            for parent in sorted(children, key=len):
                path = parent
                with place.entered(self.root, parent) as at:
                    for leaf in sorted(children[parent]):
                        path = (*parent, leaf)
                        place.make_folder(at, leaf)
                    self._sync(at)
        except OSError as error:
            raise self._explain(error, "/".join(path[above:])) from error

    def sync_folders(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                with place.entered(self.root, self._split(check_prefix(name))) as at:
                    self._sync(at)
            except OSError as error:
                raise self._explain(error, name) from error

    def child(self, name: str) -> LocalStore:
        within = "/".join(self._split(check_name(name)))
        return LocalStore(self.root, within, durable=self.durable)

    def sibling(self, name: str) -> LocalStore | None:
        above, own = os.path.split(os.path.realpath(self.url))
        return LocalStore(above, name, durable=self.durable) if own else None

    def _split(self, name: str) -> list[str]:
        path = f"{self.within}/{name}" if self.within and name else self.within or name
        return path.split("/") if path else []

    @contextlib.contextmanager
    def _entered(self, name: str) -> Generator[tuple[Place, str]]:
        *parts, leaf = self._split(name)
        with place.entered(self.root, parts) as at:
            yield at, leaf

    def _sync(self, at: Place) -> None:
        if self.durable:
            place.sync_folder(at)

    def _make_root(self) -> None:
        missing: list[str] = []
        path = self.root
        while not os.path.isdir(path) and path != os.path.dirname(path):
            missing.append(path)
            path = os.path.dirname(path)
        # Nobody but its owner can read the folder above a home, say; an entry that
        # was there before us is then their promise, not ours.
        with contextlib.suppress(PermissionError):
            self._sync_path(os.path.dirname(path))
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
            self._sync_path(os.path.dirname(path))

    def _sync_path(self, path: str) -> None:
        with place.entered(path, ()) as at:
            self._sync(at)

    def _write_temporary(
        self, at: Place, leaf: str, data: bytes, *, locked: bool
    ) -> str:
        if not locked:
            # Two writers may be here at once: each needs a name of its own.
            temporary = f"{leaf}.{secrets.token_hex(8)}.tmp"
        else:
            temporary = f"{leaf}.tmp"
            with contextlib.suppress(FileNotFoundError):
                place.unlink(at, temporary)
        place.write_file(at, temporary, data, durable=self.durable)
        return temporary

    def _rename(self, name: str, target: str) -> None:
        with self._entered(target) as (at, leaf):
            place.rename(at, name.rpartition("/")[2], leaf)

    def _equals(self, name: str, expected: bytes) -> bool:
        try:
            with self.open(name) as reader:
                if reader.size != len(expected):
                    return False
                present = bytearray(reader.size)
                reader.read_into(0, present)
        except NotFound:
            return False
        return bytes(present) == expected

    def _discard(self, name: str, mine: os.stat_result) -> None:
        with self._entered(name) as (at, leaf):
            found = place.find(at, leaf)
            # Another may have removed this file and written one of its own.
            if found and (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino):
                place.unlink(at, leaf)

    def _is_absent(self, error: OSError, name: str) -> bool:
        if error.errno == errno.ENOTDIR:
            return not self._holds_link(name)
        return error.errno == errno.ENOENT

    def _holds_link(self, name: str) -> bool:
        path = self.root
        for part in self._split(name):
            path = os.path.join(path, part)
            if os.path.lexists(path) and place.is_link(os.lstat(path)):
                return True
        return False

    def _refuse(self, name: str) -> Untrusted:
        return Untrusted(
            "Expected a regular file, found a link, folder, pipe or device - at "
            f"`{name}` in {self.url}. No checkpoint contains one: copy the files in."
        )

    def _explain_read(self, error: OSError, name: str) -> CkptError:
        if self._is_absent(error, name):
            return NotFound(
                f"Expected an object, found none - at `{name}` in {self.url}."
            )
        return self._explain(error, name)

    def _explain(
        self, error: OSError, name: str, *, outcome: Outcome = "failed"
    ) -> CkptError:
        # ENXIO is what opening a socket says.
        if error.errno == errno.ENXIO or (
            error.errno in (errno.ELOOP, errno.ENOTDIR) and self._holds_link(name)
        ):
            return self._refuse(name)
        return describe_failure(error, name, url=self.url, outcome=outcome)
