"""Where Orbax keeps the parts of arrays: in plain files, or in OCDBT databases."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from .._errors import Damaged, LimitExceeded, NotFound, Unsupported, Untrusted
from .._store import Store, check_name
from ._ocdbt import read_database, read_span
from ._ocdbt_node import Span, Value

_OUTSIDE = re.compile(r"[\\\0]|(?:^|/)\.{0,2}(?:/|$)")
"""What no name below a folder has in it."""


_SLASH = re.compile("/")


@dataclass(frozen=True, slots=True)
class Files:
    """Values that are the objects of a store."""

    store: Store
    names: frozenset[str]

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def is_near(self) -> bool:
        return not self.store.is_remote

    def where(self, name: str) -> str:
        return f"{self.store.url}/{name}"

    def size(self, name: str) -> int | None:
        if not self._may_be(name):
            return None
        with self._allowing(name):
            found = self.store.size(name)
        if found is None:
            # What was never stored may mean a value; what is gone does not.
            raise Damaged(
                "expected an object that was there when the checkpoint was opened, "
                f"found none - at {self.where(name)}: open it again"
            )
        return found

    def get(self, name: str, start: int, stop: int) -> bytes:
        buffer = bytearray(stop - start)
        with (
            self._allowing(name),
            self.store.open(name, trusted=True) as reader,
        ):
            reader.read_into(start, buffer)
        return bytes(buffer)

    def read_all(self, names: Sequence[str], *, limit: int) -> list[bytes | None]:
        def read(name: str) -> bytes | None:
            if not self._may_be(name):
                return None
            try:
                with self._allowing(name):
                    return self.store.read(name, limit=limit)
            except NotFound:
                return None

        with ThreadPoolExecutor(min(16, self.store.parallel)) as pool:
            return list(pool.map(read, names))

    def _may_be(self, name: str) -> bool:
        """Tell whether to look for an object; Untrusted for one that is elsewhere."""
        try:
            check_name(name)
        except Untrusted:
            if name not in self.names and _OUTSIDE.search(name):
                raise
        if name in self.names:
            return True
        # Chunks may be left out by the thousand: the disk is asked only for what lies
        # behind a link, which a list does not follow, so as to refuse it.
        return any(name[: m.start()] in self.names for m in _SLASH.finditer(name))

    @contextlib.contextmanager
    def _allowing(self, name: str) -> Generator[None]:
        try:
            yield
        except Untrusted:
            if not self.store.is_remote or name not in self.names:
                raise
            raise Unsupported(
                "expected names of letters, digits and ._~%- where arrays are folders "
                f"of files in an object store, found {name!a:.80} - in "
                f"{self.store.url}: copy it to a disk and open it there"
            ) from None


@dataclass(frozen=True, slots=True)
class Databases:
    """Values of OCDBT databases: in the nodes of their trees, or in data files."""

    store: Store
    values: Mapping[str, Value]

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def is_near(self) -> bool:
        return True

    def where(self, name: str) -> str:
        value = self.values.get(name)
        if isinstance(value, Span):
            return f"{self.store.url}/{value.path} (`{name}`)"
        return f"{self.store.url}/manifest.ocdbt (`{name}`)"

    def size(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        return len(value) if isinstance(value, bytes) else value.length

    def get(self, name: str, start: int, stop: int) -> bytes:
        value = self.values[name]
        if isinstance(value, bytes):
            return value[start:stop]
        at = value.offset + start
        return read_span(self.store, Span(value.path, "", at, stop - start))

    def read_all(self, names: Sequence[str], *, limit: int) -> list[bytes | None]:
        def read(name: str) -> bytes | None:
            size = self.size(name)
            if size is None:
                return None
            if size > limit:
                raise LimitExceeded(
                    f"expected at most {limit:,} bytes, found {size:,} - at "
                    f"{self.where(name)}: get the checkpoint again"
                )
            return self.get(name, 0, size)

        # Most lie in the nodes, which are read: only the others are worth a thread.
        apart = [n for n in names if isinstance(self.values.get(n), Span)]
        if len(apart) < 2:
            return list(map(read, names))
        with ThreadPoolExecutor(min(16, self.store.parallel)) as pool:
            found = dict(zip(apart, pool.map(read, apart), strict=True))
        return [found[n] if n in found else read(n) for n in names]


Values: TypeAlias = Files | Databases
"""Named values: their length (None for absent ones), ranges of them, many at once.

`count` is how many there are at most, `is_near` whether their lengths cost little.
"""


def open_databases(
    store: Store,
    folders: Sequence[str],
    names: Sequence[str],
    *,
    nested: bool = False,
) -> Databases:
    """Return the values of the databases in these folders; the first of a name counts.

    Reads their trees, not the values that lie elsewhere. `nested` ones hold names below
    that of their folder.
    """
    values: dict[str, Value] = {}
    for folder in folders:
        prefix = f"{folder}/" if nested and folder else ""
        for key, value in read_database(store, folder, names).items():
            values.setdefault(prefix + key.decode(errors="replace"), value)
    return Databases(store, values)
