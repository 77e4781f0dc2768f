"""Objects in S3, GCS or memory, through TensorStore's key-value stores.

A specification is built here from the caller's checked URL and checked names alone.
S3-compatible services are reached through AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, as
in the AWS tools. TensorStore itself waits for ever on a connection that stalls, so
TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS and _LIMIT_BYTES are set, unless they are set
already, before the first remote store is opened.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import tensorstore as ts

from ._errors import Damaged, LimitExceeded, NotFound, Outcome, StoreError
from ._request import PastEnd, wait
from ._store import Buffer, check_name, check_prefix, view_bytes

_T = TypeVar("_T")

_PARALLEL = 64
_FAR = 1 << 60
"""No object reaches this offset: asking for it makes S3 tell the size."""

_NEAR = 1 << 20
"""Bytes near an object's end that may be fetched to learn where it is."""

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}[A-Za-z0-9]")


def open_kv_store(scheme: str, rest: str, *, context: ts.Context | None) -> KvStore:
    """Return the store at `scheme://rest`; ValueError when that is no clean URL."""
    bucket, _, prefix = rest.partition("/")
    segments = prefix.rstrip("/").split("/") if prefix else []
    # The text is not shown: it may hold a signature or a password.
    if not _BUCKET.fullmatch(bucket) and not (scheme == "memory" and bucket):
        raise ValueError(f"Expected {scheme}://name/prefix, found no valid name.")
    if re.search(r"[?#@\x00-\x1f\x7f]", rest) or {"", ".", ".."} & set(segments):
        raise ValueError(
            f"Expected {scheme}://name/prefix without ?, #, @ and control characters, "
            "and without empty and dot segments."
        )
    spec: dict[str, Any]
    if scheme == "memory":
        spec = {"driver": "memory", "path": _folder([bucket, *segments])}
        context = _memory_context()
    else:
        for name, value in (("TIME_SECONDS", "30"), ("LIMIT_BYTES", "1")):
            os.environ.setdefault(f"TENSORSTORE_CURL_LOW_SPEED_{name}", value)
        limit = {"limit": _PARALLEL}
        context = context or ts.Context(
            {"s3_request_concurrency": limit, "gcs_request_concurrency": limit}
        )
        spec = {
            "driver": "s3" if scheme == "s3" else "gcs",
            "bucket": bucket,
            "path": _folder(segments),
            **(_s3_options() if scheme == "s3" else {}),
        }
    url = "/".join([f"{scheme}://{bucket}", *segments])
    kv = wait(ts.KvStore.open(spec, context=context), where=url)
    return KvStore(kv, url, parallel=2 if scheme == "memory" else _PARALLEL)


@dataclass(frozen=True, slots=True)
class KvStore:
    """A prefix of a bucket."""

    kv: ts.KvStore
    base: str
    parallel: int
    within: str = ""

    @property
    def url(self) -> str:
        return f"{self.base}/{self.within}" if self.within else self.base

    @property
    def batch_bytes(self) -> int:
        return 1 << 20

    def read(self, name: str, *, limit: int) -> bytes:
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

    def open(self, name: str, *, size: int | None = None) -> KvReader:
        check_name(name)
        if size:
            # A range across the expected end: one byte brings the true size.
            try:
                self.get(name, size - 1, size + 1)
            except PastEnd as end:
                if end.size is not None:
                    return KvReader(self, name, size=end.size)
        found = self._sizes([name])[0]
        if found is None:
            raise self._absent(name)
        return KvReader(self, name, size=found)

    def write(self, name: str, *, size: int | None) -> KvWriter:
        check_name(name)
        return KvWriter(self, name, size=size)

    def create(self, name: str, data: bytes) -> bool:
        return self._put(name, data, _no_value())

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
        return sorted(key.decode(errors="surrogateescape")[skipped:] for key in keys)

    def size(self, name: str) -> int | None:
        return self._sizes([check_name(name)])[0]

    def make_folders(self, names: Iterable[str]) -> None:
        for name in names:
            check_prefix(name)

    def sync_folders(self, names: Iterable[str]) -> None:
        self.make_folders(names)

    def child(self, name: str) -> KvStore:
        return replace(self, within=self._key(name))

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
        return wait(future, where=self._where(name), size=size, outcome=outcome)

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
        return found.value

    def _find_generation(self, name: str, expected: bytes) -> bytes | None:
        """Return the generation of an object that equals `expected`."""
        if not self._holds(name, expected):
            return None
        found = self._wait(self.kv.read(self._key(name)), name)
        return found.stamp.generation if found.value == expected else None

    def _put(self, name: str, data: bytes | None, generation: bytes) -> bool:
        """Write, or remove without `data`, if the object is of this generation."""
        sent = self.kv.write(self._key(name), data, if_equal=generation)
        stamp = self._wait(sent, name, size=len(data or b""), outcome="unknown")
        if stamp.generation:
            return True
        # No generation: the condition did not hold. Either somebody was first, or
        # TensorStore sent this twice, as the first answer got lost, and met itself.
        try:
            return data is not None and self._holds(name, data)
        except StoreError as error:
            raise StoreError(str(error), outcome="unknown") from error

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return self.read(name, limit=len(data)) == data
        except (NotFound, LimitExceeded):
            return False

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
            marks = list(range(low, high, max(1, (high - low) // _PARALLEL)))
        try:
            self.get(name, max(low - 1, 0), high + 1)
        except PastEnd as end:
            return end.size or 0
        raise StoreError(
            "Expected the store to tell an object's size, found that it does not - at "
            f"{self._where(name)}. Read this checkpoint through another copy."
        )


class KvReader:
    """One object, read by ranges."""

    def __init__(self, store: KvStore, name: str, *, size: int) -> None:
        """Name an object that exists."""
        self._store = store
        self._name = name
        self.size = size

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` from `offset`; Damaged when the object ends before that."""
        view = view_bytes(buffer)
        if not len(view):
            return
        stop = offset + len(view)
        try:
            data = self._store.get(self._name, offset, stop)
        except PastEnd:
            data = b""
        if len(data) != len(view):
            raise Damaged(
                f"Expected {stop:,} bytes or more, found {self.size:,} (truncated) "
                f"- at `{self._name}` in {self._store.url}. Restore another step."
            )
        view[:] = data

    def close(self) -> None:
        """Do nothing: there is no connection to give back."""

    def __enter__(self) -> KvReader:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class KvWriter:
    """One new object, gathered in memory and sent whole when it is closed."""

    def __init__(self, store: KvStore, name: str, *, size: int | None) -> None:
        """Begin an object."""
        self._store = store
        self._name = name
        self._size = size
        self._pieces: list[bytes] | None = []

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers."""
        if self._pieces is None:
            raise ValueError("Expected an open writer, found a closed one.")
        self._pieces += [bytes(view_bytes(buffer)) for buffer in buffers]

    def close(self) -> None:
        """Send the object; it is durable when this returns."""
        if self._pieces is None:
            return
        data = b"".join(self._pieces)
        self.abort()
        if self._size is not None and self._size != len(data):
            raise ValueError(
                f"Expected {self._size:,} bytes to be written, found {len(data):,}."
            )
        if not self._store.create(self._name, data):
            raise StoreError(
                f"Expected no object, found one - at `{self._name}` in "
                f"{self._store.url}. Objects are written once: choose another name."
            )

    def abort(self) -> None:
        """Forget what was written: nothing was sent."""
        self._pieces = None

    def __enter__(self) -> KvWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        if raised[0] is None:
            self.close()
        else:
            self.abort()


def _folder(segments: Sequence[str]) -> str:
    return "".join(f"{segment}/" for segment in segments)


def _s3_options() -> dict[str, Any]:
    # Without this TensorStore first asks whether the condition holds, in a request of
    # its own, for every store but Amazon's.
    options: dict[str, Any] = {"use_conditional_write": True}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get(
        "AWS_ENDPOINT_URL"
    )
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint:
        options |= {"endpoint": endpoint, "aws_region": region or "us-east-1"}
    return options


@cache
def _memory_context() -> ts.Context:
    # One for the process: each other context would be a memory of its own.
    return ts.Context()


@cache
def _no_value() -> bytes:
    """Return the generation that stands for absence, as TensorStore itself tells it."""
    kv = wait(ts.KvStore.open({"driver": "memory"}), where="memory")
    return wait(kv.read("absent"), where="memory").stamp.generation
