"""Objects in S3, GCS or memory, through TensorStore's key-value stores."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypeVar

import tensorstore as ts

from layouts import REQUEST_BYTES

from ._errors import LimitExceeded, NotFound, Outcome, StoreError
from ._kv_object import KvReader, KvWriter
from ._request import PastEnd, wait
from ._store import check_name, check_prefix

_T = TypeVar("_T")

_REQUEST_BYTES = 4 << 20
"""Much beside a round trip, and 64 of them are still little memory."""

_FAR = 1 << 60
"""No object reaches this offset: asking for it makes S3 tell the size."""

_NEAR = 1 << 20
"""Bytes near an object's end that may be fetched to learn where it is."""

_PAUSE_SECONDS = 0.2
"""Before a write is tried again that TensorStore has given up."""

_HURRY_SECONDS = 10.0

_PROBE = "steps/0"
"""An object that no run has."""


@dataclass(frozen=True, slots=True)
class KvStore:
    """A prefix of a bucket."""

    kv: ts.KvStore
    base: str
    parallel: int
    timeout: float
    within: str = ""

    @property
    def url(self) -> str:
        return f"{self.base}/{self.within}" if self.within else self.base

    @property
    def batch_bytes(self) -> int:
        return 1 << 20

    @property
    def absence_hint(self) -> str:
        gcs = self.base.startswith("gs://")
        return "; a bucket that does not exist looks the same" if gcs else ""

    @property
    def request_bytes(self) -> int:
        return _REQUEST_BYTES if self.is_remote else REQUEST_BYTES

    @property
    def is_remote(self) -> bool:
        return not self.base.startswith("memory://")

    def hurried(self) -> KvStore:
        return replace(self, timeout=min(self.timeout, _HURRY_SECONDS))

    def read(self, name: str, *, limit: int, size: int | None = None) -> bytes:
        if size is not None and size <= limit:
            with contextlib.suppress(PastEnd):
                return self.get(name, 0, size)
        # One byte too many is asked for first, so that a large object is never
        # fetched. The read itself names no range: a range of an object that is being
        # replaced could be a piece of the new one as long as the old one.
        try:
            self.get(name, limit, limit + 1)
        except PastEnd:
            data = self.get(name, most=limit)
            if len(data) <= limit:
                return data
        raise LimitExceeded(
            f"Expected at most {limit:,} bytes, found more - at {self._where(name)}. "
            "Raise the limit if you trust it."
        )

    def open(
        self, name: str, *, size: int | None = None, trusted: bool = False
    ) -> KvReader:
        check_name(name)
        if size is None or not trusted:
            size = self._find_size(name, size)
        return KvReader(partial(self.get, name), where=self._where(name), size=size)

    def write(self, name: str, *, size: int | None, over: bool = False) -> KvWriter:
        check_name(name)
        create = partial(self._overwrite if over else self.create, name)
        return KvWriter(create, where=self._where(name), size=size)

    def create(self, name: str, data: bytes) -> bool:
        return self._put(name, data, _no_value())

    def _overwrite(self, name: str, data: bytes) -> bool:
        sent = self.kv.write(self._key(name), data)
        self._wait(sent, name, size=len(data), outcome="unknown")
        return True

    def replace(self, name: str, data: bytes, *, expected: bytes) -> bool:
        generation = self._find_generation(name, expected)
        return generation is not None and self._put(name, data, generation)

    def remove(self, name: str, *, expected: bytes | None = None) -> bool:
        if expected is not None:
            generation = self._find_generation(name, expected)
            if generation is None:
                return False
            # TensorStore asks S3 first and deletes then: no better than to do so here,
            # and not every server answers its conditional HEAD.
            if not self.base.startswith("s3://"):
                return self._put(name, None, generation)
        with contextlib.suppress(PastEnd):
            if self._wait(self._ask(name, _FAR), name).state == "missing":
                return False
        self._wait(self.kv.write(self._key(name), None), name, outcome="unknown")
        return True

    def remove_tree(self, prefix: str) -> int:
        names = self.list(check_name(prefix))
        freed = sum(size or 0 for size in self._sizes(names))
        done = self.kv.delete_range(self._span(prefix))
        self._wait(done, prefix, size=len(names) << 14, outcome="unknown")
        return freed

    def list(self, prefix: str) -> list[str]:
        span = self._span(check_prefix(prefix))
        skipped = len(self.within) + 1 if self.within else 0
        keys = self._wait(self.kv.list(span), prefix)
        if not keys and self.base.startswith("gs://"):
            # TensorStore takes a listing that GCS refused for an empty one.
            self._wait(self._ask(_PROBE, 0), prefix)
        return sorted(key.decode(errors="surrogateescape")[skipped:] for key in keys)

    def size(self, name: str) -> int | None:
        return self._sizes([check_name(name)])[0]

    def has(self, name: str) -> bool:
        check_name(name)
        try:
            return self._wait(self._ask(name, 0), name).state != "missing"
        except PastEnd:
            return True

    @contextlib.contextmanager
    def hold(self, name: str) -> Generator[bool]:
        check_name(name)
        yield True

    def make_folders(self, names: Iterable[str]) -> None:
        for name in names:
            check_prefix(name)

    def sync_folders(self, names: Iterable[str]) -> None:
        self.make_folders(names)

    def child(self, name: str) -> KvStore:
        return replace(self, within=self._key(name))

    def sibling(self, name: str) -> KvStore | None:
        check_name(name)
        if self.within:
            above = self.within.rpartition("/")[0]
            return replace(self, within=f"{above}/{name}" if above else name)
        above, separator, own = self.kv.path.rstrip("/").rpartition("/")
        if not own:
            return None
        kv = self.kv.copy()
        kv.path = above + separator
        return replace(self, kv=kv, base=self.base.rpartition("/")[0], within=name)

    def _key(self, name: str) -> str:
        check_name(name)
        return f"{self.within}/{name}" if self.within else name

    def _span(self, prefix: str) -> ts.KvStore.KeyRange:
        key = self._key(prefix) if prefix else self.within
        # "0" is the character after "/".
        return ts.KvStore.KeyRange(*([f"{key}/", f"{key}0"] if key else []))

    def _where(self, name: str) -> str:
        return f"`{name}` in {self.url}" if name else self.url

    def _absent(self, name: str) -> NotFound:
        return NotFound(f"Expected an object, found none - at {self._where(name)}.")

    def _wait(
        self,
        future: ts.Future[_T],
        name: str,
        *,
        size: int = 0,
        outcome: Outcome = "failed",
    ) -> _T:
        return wait(
            future,
            where=self._where(name),
            size=size,
            outcome=outcome,
            seconds=self.timeout,
        )

    def get(
        self, name: str, start: int = 0, stop: int | None = None, *, most: int = 0
    ) -> bytes:
        """Return an object or a range of it; PastEnd when it ends before that."""
        span = None if stop is None else slice(start, stop)
        size = most if stop is None else stop - start
        found = self._wait(
            self.kv.read(self._key(name), byte_range=span), name, size=size
        )
        if found.state == "missing":
            raise self._absent(name)
        if found.state != "value":
            raise StoreError(
                f"Expected an object's bytes, found none - at {self._where(name)}."
            )
        return found.value

    def _find_generation(self, name: str, expected: bytes) -> bytes | None:
        """Return the generation of an object that equals `expected`."""
        if not self._holds(name, expected):
            return None
        found = self._wait(self.kv.read(self._key(name)), name)
        return found.stamp.generation if found.value == expected else None

    def _put(self, name: str, data: bytes | None, generation: bytes) -> bool:
        """Write, or remove without `data`, if the object is of this generation.

        What is written is the caller's alone, so that it may be sent again after an
        error, and finding it there means that an earlier try has done it.
        """
        size = len(data or b"")
        late = time.monotonic() + self.timeout
        while True:
            sent = self.kv.write(self._key(name), data, if_equal=generation)
            doubted: StoreError | None = None
            try:
                stamp = self._wait(sent, name, size=size, outcome="unknown")
            except StoreError as error:
                if error.outcome == "refused":
                    raise
                doubted = error
            else:
                if stamp.generation:
                    return True
            if doubted is not None:
                if data is None or time.monotonic() > late:
                    raise doubted
                if self._holds_surely(name, data, doubted):
                    return True
                time.sleep(_PAUSE_SECONDS)
                continue
            # No generation: the condition did not hold. Either somebody was first, or
            # an earlier try was, whose answer got lost.
            if data is None or self._holds_surely(name, data, None):
                return data is not None
            if generation != _no_value() or self.has(name):
                return False
            # Nothing is there, and still it could not be created: S3 says so of a
            # bucket that does not exist, which listing it tells.
            self.list("")
            if time.monotonic() > late:
                raise StoreError(
                    f"Expected a new object, found that the store makes none - at "
                    f"{self._where(name)}. Check the store, then try again."
                )
            time.sleep(_PAUSE_SECONDS)

    def _holds_surely(self, name: str, data: bytes, doubted: StoreError | None) -> bool:
        """Tell whether the object is there as it was sent; "unknown" if that fails."""
        try:
            return self._holds(name, data)
        except StoreError as error:
            found = doubted or error
        raise StoreError(str(found), outcome="unknown")

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return self.read(name, limit=len(data)) == data
        except (NotFound, LimitExceeded):
            return False

    def _find_size(self, name: str, expected: int | None) -> int:
        if expected:
            # A range across the expected end: one byte brings the true size.
            try:
                self.get(name, expected - 1, expected + 1)
            except PastEnd as end:
                if end.size is not None:
                    return end.size
        found = self._sizes([name])[0]
        if found is None:
            raise self._absent(name)
        return found

    def _sizes(self, names: Sequence[str]) -> list[int | None]:
        sizes: list[int | None] = []
        for first in range(0, len(names), self.parallel):
            batch = names[first : first + self.parallel]
            asked = [self._ask(name, _FAR) for name in batch]
            for name, future in zip(batch, asked, strict=True):
                try:
                    self._wait(future, name)
                except PastEnd as end:
                    told = end.size
                    sizes.append(self._search_size(name) if told is None else told)
                else:
                    sizes.append(None)
        return sizes

    def _ask(
        self, name: str, offset: int, *, length: int = 1
    ) -> ts.Future[ts.KvStore.ReadResult]:
        span = slice(offset, offset + length)
        return self.kv.read(self._key(name), byte_range=span)

    def _search_size(self, name: str) -> int:
        """Find the size of an object where the store tells it only on its last byte.

        GCS does: a range behind the end is refused without it, a range across the end
        brings it. So single bytes are tried, many at once, until the end is near.
        """
        try:
            self.get(name, 0, _NEAR)
        except PastEnd as end:
            if end.size is not None:
                return end.size
        low, high = 0, _FAR
        marks = [1 << power for power in range(16, 44)]
        while high - low > _NEAR:
            asked = [(mark, self._ask(name, mark)) for mark in marks]
            for mark, future in asked:
                try:
                    found = self._wait(future, name)
                except PastEnd:
                    high = min(high, mark)
                else:
                    if found.state == "missing":
                        raise self._absent(name)
                    low = max(low, mark + 1)
            marks = list(range(low, high, max(1, (high - low) // self.parallel)))
        try:
            self.get(name, max(low - 1, 0), high + 1)
        except PastEnd as end:
            return end.size or 0
        raise StoreError(
            "Expected the store to tell an object's size, found that it does not - at "
            f"{self._where(name)}. Read this checkpoint through another copy."
        )


@cache
def _no_value() -> bytes:
    """Return the generation that stands for absence, as TensorStore itself tells it."""
    kv = wait(ts.KvStore.open({"driver": "memory"}), where="memory")
    return wait(kv.read("absent"), where="memory").stamp.generation
