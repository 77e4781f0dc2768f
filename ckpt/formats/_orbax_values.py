"""Where Orbax keeps the parts of arrays: in plain files, or in OCDBT databases."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from .._errors import LimitExceeded, NotFound, Unsupported, Untrusted
from .._store import Store, check_name
from ._ocdbt import read_database, read_span
from ._ocdbt_node import Span, Value


@dataclass(frozen=True, slots=True)
class Files:
    """Values that are the objects of a store."""

    store: Store
    count: int

    @property
    def is_near(self) -> bool:
        return not self.store.is_remote

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
                    f"Expected at most {limit:,} bytes, found {size:,} - at "
                    f"{self.where(name)}. Get the checkpoint again."
                )
            return self.get(name, 0, size)

        with ThreadPoolExecutor(min(16, self.store.parallel)) as pool:
            return list(pool.map(read, names))


Values: TypeAlias = Files | Databases
"""Named values: their length (None for absent ones), ranges of them, many at once.

`count` is how many there are at most, `is_near` whether their lengths cost little.
"""


def open_databases(
    store: Store, folders: Sequence[str], names: Sequence[str]
) -> Databases:
    """Return the values of the databases in these folders; the first of a name counts.

    Reads their trees, not the values that lie elsewhere.
    """
    values: dict[str, Value] = {}
    for folder in folders:
        for key, value in read_database(store, folder, names).items():
            values.setdefault(key.decode(errors="replace"), value)
    return Databases(store, values)


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
