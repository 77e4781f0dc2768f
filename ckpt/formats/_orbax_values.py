"""Where Orbax keeps the parts of arrays: in plain files, or in OCDBT databases.

TensorStore's `ocdbt` driver reads the databases. Its specification is built from the
store that the caller named; nothing of a checkpoint ever becomes a part of one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorstore as ts

from .._errors import (
    Damaged,
    LimitExceeded,
    NotFound,
    StoreError,
    Unsupported,
    Untrusted,
)
from .._kv_open import folder_spec
from .._request import PastEnd, wait
from .._store import Store, check_name

_CACHE_BYTES = 64 << 20
"""Nodes of the databases' trees: read once, as long as they are few."""

_WINDOW = 256
_FAR = 1 << 60
_CACHED = float("-inf")
"""Whatever was read once is still right: a finished checkpoint does not change."""

_WRONG = re.compile(
    r"found: (?:DATA_LOSS|OUT_OF_RANGE|FAILED_PRECONDITION|INVALID_ARGUMENT|NOT_FOUND|"
    r"UNIMPLEMENTED|Invalid key)"
)


@dataclass(frozen=True, slots=True)
class Files:
    """Values that are the objects of a store."""

    store: Store

    def where(self, name: str) -> str:
        return f"{self.store.url}/{name}"

    def size(self, name: str) -> int | None:
        return self.store.size(_known(name, self.store))

    def get(self, name: str, start: int, stop: int) -> bytes:
        buffer = bytearray(stop - start)
        with self.store.open(_known(name, self.store), trusted=True) as reader:
            reader.read_into(start, buffer)
        return bytes(buffer)

    def read_all(self, names: Sequence[str], *, limit: int) -> list[bytes | None]:
        def read(name: str) -> bytes | None:
            try:
                return self.store.read(_known(name, self.store), limit=limit)
            except NotFound:
                return None

        with ThreadPoolExecutor(min(16, self.store.parallel)) as pool:
            return list(pool.map(read, names))


@dataclass(frozen=True, slots=True)
class Databases:
    """Values in OCDBT databases below one folder; the first that has one counts."""

    stores: tuple[ts.KvStore, ...]
    url: str

    def where(self, name: str) -> str:
        return f"{self.url}/{name}"

    def size(self, name: str) -> int | None:
        return self._find(name)[0]

    def get(self, name: str, start: int, stop: int) -> bytes:
        if start == stop:
            return b""
        _, kv = self._find(name)
        span = slice(start, stop)
        reading = kv.read(name, byte_range=span, staleness_bound=_CACHED)
        found = self._wait(reading, name, size=stop - start)
        if found.state != "value" or len(found.value) != stop - start:
            raise self._damaged(f"{stop - start:,} bytes", "fewer", name)
        return found.value

    def read_all(self, names: Sequence[str], *, limit: int) -> list[bytes | None]:
        found: list[bytes | None] = []
        for first in range(0, len(names), _WINDOW):
            found += self._read_some(names[first : first + _WINDOW], limit)
        return found

    def list_names(self) -> list[str]:
        """Return the names of all values."""
        keys: set[bytes] = set()
        for kv in self.stores:
            keys |= set(self._wait(kv.list(), ""))
        return sorted(key.decode(errors="replace") for key in keys)

    def _read_some(self, names: Sequence[str], limit: int) -> list[bytes | None]:
        # Sizes first, many at once: they are in the tree, which is read either way.
        asked = [self._ask(self.stores[0], name) for name in names]
        sizes = [self._settle(f, n) for f, n in zip(asked, names, strict=True)]
        for name, size in zip(names, sizes, strict=True):
            if size is not None and size > limit:
                raise LimitExceeded(
                    f"Expected at most {limit:,} bytes, found {size:,} - at "
                    f"{self.where(name)}. Get the checkpoint again."
                )
        reads = [
            None if size is None else self.stores[0].read(name, staleness_bound=_CACHED)
            for name, size in zip(names, sizes, strict=True)
        ]
        found: list[bytes | None] = []
        for name, read in zip(names, reads, strict=True):
            if read is not None:
                found.append(self._wait(read, name).value)
                continue
            size, _ = self._find(name)
            if size is not None and size > limit:
                raise LimitExceeded(
                    f"Expected at most {limit:,} bytes, found {size:,} - at "
                    f"{self.where(name)}. Get the checkpoint again."
                )
            found.append(None if size is None else self.get(name, 0, size))
        return found

    def _find(self, name: str) -> tuple[int | None, ts.KvStore]:
        for kv in self.stores:
            size = self._settle(self._ask(kv, name), name)
            if size is not None:
                return size, kv
        return None, self.stores[0]

    def _ask(self, kv: ts.KvStore, name: str) -> ts.Future[ts.KvStore.ReadResult]:
        far = slice(_FAR, _FAR + 1)
        return kv.read(name, byte_range=far, staleness_bound=_CACHED)

    def _settle(self, asked: ts.Future[ts.KvStore.ReadResult], name: str) -> int | None:
        try:
            found = self._wait(asked, name)
        except Damaged as error:
            # So far that no value reaches there: what fails is told its size. Where
            # it was a part of the database that ended, the next read shows it.
            end = error.__cause__
            if isinstance(end, PastEnd) and end.size is not None:
                return end.size
            raise
        if found.state == "missing":
            return None
        raise self._damaged("a database", "one that contradicts itself", name)

    def _wait(self, future: ts.Future[Any], name: str, *, size: int = 0) -> Any:
        try:
            return wait(future, where=self.where(name), size=size)
        except PastEnd as end:
            raise self._damaged("a database", "a truncated one", name) from end
        except StoreError as error:
            if _WRONG.search(str(error)):
                found = str(error).partition("found: ")[2].partition(" - at ")[0]
                raise self._damaged("a sound database", found, name) from None
            raise

    def _damaged(self, expected: str, found: str, name: str) -> Damaged:
        return Damaged(
            f"Expected {expected}, found {found} - at {self.where(name)}. Restore "
            "another step."
        )


Values: TypeAlias = Files | Databases
"""Named values: their length (None for absent ones), ranges of them, many at once."""


def open_databases(store: Store, folders: Sequence[str]) -> Databases:
    """Return the values of the OCDBT databases in these folders of a store."""
    opened: list[ts.KvStore] = []
    for folder in folders:
        base, context = folder_spec(store, folder)
        spec = {
            "driver": "ocdbt",
            "base": base,
            "cache_pool": {"total_bytes_limit": _CACHE_BYTES},
        }
        future = ts.KvStore.open(spec, context=context)
        opened.append(wait(future, where=f"{store.url}/{folder}"))
    return Databases(tuple(opened), store.url)


def _known(name: str, store: Store) -> str:
    try:
        return check_name(name)
    except Untrusted:
        if re.search(r"[\\\0]|(?:^|/)\.{0,2}(?:/|$)", name):
            raise
        raise Unsupported(
            f"Expected names of letters, digits and ._~%- where arrays are folders of "
            f"files, found {name!a:.80} - in {store.url}. Save it anew with OCDBT."
        ) from None
