"""Named objects on a disk or in an object store: the only door to storage.

A name is relative and "/"-separated, and every name is checked before use, so that
nothing a checkpoint says can reach outside the folder its caller named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from urllib.parse import unquote

import numpy as np

from ._errors import Damaged, Untrusted
from ._store_options import GivenOptions, choose_options

if TYPE_CHECKING:
    import tensorstore as ts

Buffer: TypeAlias = "bytes | bytearray | memoryview[Any] | np.ndarray[Any, Any]"
"""C-contiguous bytes or an array of any dtype."""

MAX_NAME = 1024
"""The longest object name, in characters: S3 and GCS allow no more."""

_NAME = re.compile(r"[A-Za-z0-9._~%-]+(?:/[A-Za-z0-9._~%-]+)*")
_DOTS = re.compile(r"(?:^|/)\.\.?(?:/|$)")
_SCHEMES = "a path, file:///path, s3://bucket/prefix, gs://bucket/prefix, memory://name"


class CutShort(Damaged):
    """An object ends before the bytes that were asked for."""


class Reader(Protocol):
    """One object, open for reading by byte ranges, from any thread."""

    @property
    def size(self) -> int:
        """The object's length in bytes."""
        ...

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` from `offset`; CutShort when the object ends before that."""
        ...

    def sync(self) -> None:
        """Make the object's bytes durable, whoever wrote them."""
        ...

    def close(self) -> None:
        """Give the object back; harmless when repeated."""
        ...

    def __enter__(self) -> Reader: ...

    def __exit__(self, *raised: object) -> None: ...


class Writer(Protocol):
    """One new object; left by an exception, it aborts."""

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers, which are no longer needed when this returns."""
        ...

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers where they belong, in any order and from any thread."""
        ...

    def close(self) -> None:
        """Make the object durable; its folder's entry is `sync_folders`' business."""
        ...

    def abort(self) -> None:
        """Remove what was written, as far as that is possible."""
        ...

    def __enter__(self) -> Writer: ...

    def __exit__(self, *raised: object) -> None: ...


class Store(Protocol):
    """A folder of objects; all its names are checked, and Untrusted when wrong.

    Anything the storage refuses or fails to do is a StoreError that names the object.
    """

    @property
    def url(self) -> str:
        """Where the store is, for messages: never holds a secret."""
        ...

    @property
    def parallel(self) -> int:
        """How many requests at once are worth making."""
        ...

    @property
    def batch_bytes(self) -> int:
        """How many bytes are worth writing at once."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether each request costs a round trip, and may bring other bytes again."""
        ...

    @property
    def absence_hint(self) -> str:
        """What messages add where nothing was found, and that may mean more."""
        ...

    @property
    def request_bytes(self) -> int:
        """How many bytes are worth reading at once."""
        ...

    def hurried(self) -> Store:
        """Return the same store, whose requests are given up after a few seconds."""
        ...

    def read(self, name: str, *, limit: int, size: int | None = None) -> bytes:
        """Return a whole small object; LimitExceeded, unread, when it is larger.

        With `size`, a remote store may return so many bytes of a longer one: what
        they are must then tell how many they should be. That spares a request.
        """
        ...

    def open(
        self, name: str, *, size: int | None = None, trusted: bool = False
    ) -> Reader:
        """Open an object for reading; a link or special file is Untrusted.

        `size` is what the caller expects it to be: right, it spares remote requests.
        `trusted`, a remote store asks nothing: that the object is absent or too short
        shows when it is read, and that it is longer does not.
        """
        ...

    def write(self, name: str, *, size: int | None, over: bool = False) -> Writer:
        """Begin a new object, of exactly `size` bytes when that is known.

        With `over` it takes the place of what has that name, whole, when it is closed.
        """
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Create a small object whole and durably; False when the name is taken.

        `data` must be the caller's alone (hold an identifier, say): where an answer
        was lost, finding these bytes under the name counts as having put them there.
        """
        ...

    def replace(self, name: str, data: bytes, *, expected: bytes) -> bool:
        """Replace a small object whole and durably if it equals `expected`."""
        ...

    def remove(self, name: str, *, expected: bytes | None = None) -> bool:
        """Remove one object durably, only if it is `expected`; False when it is not."""
        ...

    def remove_tree(self, prefix: str) -> int:
        """Remove a folder and all below it; return how many bytes that freed."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Return the sorted names of all objects below a folder ("" is all)."""
        ...

    def size(self, name: str) -> int | None:
        """Return the length of an object in bytes, None when it is absent."""
        ...

    def has(self, name: str) -> bool:
        """Tell whether an object is there."""
        ...

    def hold(self, name: str) -> AbstractContextManager[bool]:
        """Lock an object against others of this host; False while one has it.

        Where there are no locks nobody is kept out.
        """
        ...

    def make_folders(self, names: Iterable[str]) -> None:
        """Make folders that hold across a power cut, and the store's own above."""
        ...

    def sync_folders(self, names: Iterable[str]) -> None:
        """Make the entries of these folders durable."""
        ...

    def child(self, name: str) -> Store:
        """Return the store of a sub-folder, which shares this one's context."""
        ...

    def sibling(self, name: str) -> Store | None:
        """Return the store of a folder beside this one, if it lies in any."""
        ...


def open_store(
    path: str | os.PathLike[str],
    *,
    options: GivenOptions | None = None,
    context: ts.Context | None = None,
) -> Store:
    """Return the store at a path or URL given by the caller, never by a checkpoint.

    Relative paths become absolute at once and a leading `~` is the home folder.
    `options` say how to reach remote stores; `context` shares TensorStore's limits and
    credentials between them.
    ValueError for anything else than a path, file://, s3://, gs:// or memory://.

    >>> open_store("memory://docs/run").url
    'memory://docs/run'
    """
    text = os.fspath(path)
    scheme, separator, rest = text.partition("://")
    chosen = choose_options(options, text)
    if not text:
        raise ValueError(f"Expected {_SCHEMES}, found an empty text.")
    if not separator:
        if collapsed := re.match(r"(file|s3|gs|memory):/", text):
            raise ValueError(
                f"Expected {collapsed[1]}://, found {collapsed[0]} - pathlib drops a "
                "slash of a URL: pass the URL as a str."
            )
        return _open_local(os.path.expanduser(text))
    if scheme == "file":
        if not rest.startswith("/") or re.search(r"[?#]", rest):
            raise ValueError("Expected file:///absolute/path, without ? and #.")
        return _open_local(unquote(rest))
    if scheme in ("s3", "gs", "memory"):
        from ._kv_open import open_kv_store

        return open_kv_store(scheme, rest, options=chosen, context=context)
    raise ValueError(f"Expected {_SCHEMES}, found {scheme[:20]!r}://.")


def check_name(name: str) -> str:
    """Return an object's name as it is, or raise Untrusted.

    >>> check_name("parts/0.json")
    'parts/0.json'
    """
    if len(name) > MAX_NAME or not _NAME.fullmatch(name) or _DOTS.search(name):
        shown = name if len(name) <= 80 else name[:80] + "..."
        raise Untrusted(
            "Expected a relative object name of letters, digits and ._~%- between "
            f"slashes, without . and .. and at most {MAX_NAME} long, found {shown!a}."
        )
    return name


def check_prefix(prefix: str) -> str:
    """Return a folder's name as it is, "" being the store's own, or raise Untrusted."""
    return check_name(prefix) if prefix else ""


def view_bytes(buffer: Buffer) -> memoryview[Any]:
    """Return a buffer's bytes, in place; ValueError unless it is C-contiguous."""
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise ValueError(
                f"Expected a C-contiguous buffer, found strides {buffer.strides}."
            )
        # The buffer protocol refuses ml_dtypes, and memoryview casts refuse zeros in
        # a shape: only flat bytes always work.
        return buffer.reshape(-1).view(np.uint8).data
    return memoryview(buffer).cast("B")


def _open_local(path: str) -> Store:
    from ._local_store import LocalStore

    if "\0" in path:
        raise ValueError(f"Expected a path, found one with a NUL: {path!a}.")
    return LocalStore(os.path.abspath(path))
