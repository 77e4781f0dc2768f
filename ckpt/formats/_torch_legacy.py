"""What `torch.save` wrote before it wrote zip archives: pickles, then storages."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from .._errors import Damaged, LimitExceeded, Unsupported, Untrusted
from ._entry import Blob
from ._torch_tensor import Storage, StorageType, check_size, find_storage
from ._torch_zip import MAX_PICKLE
from ._zip import Fetch

_MAGIC = re.compile(
    rb"\x80(?:[\2\3]|[\4\5]\x95.{8})\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19\.", re.DOTALL
)

HEAD = 32
"""More bytes than the pickle takes that such files begin with."""

_FIRST = 1 << 16


def find_magic(head: bytes) -> int:
    """Return where the pickle of a number ends that such files begin with, 0 without.

    It is written by the protocol that the caller of `torch.save` chose, 2 to 5.
    """
    found = _MAGIC.match(head)
    return found.end() if found else 0


Decode = Callable[..., tuple[Any, int]]
"""Decodes a pickle in `data`, at `at`, with `persistent`; returns where it ends."""


def read_legacy(fetch: Fetch, blob: Blob, *, length: int, decode: Decode) -> Any:
    """Return the value of a file of the old kind.

    The pickle is decoded twice: where storages lie is known once all are.
    """
    span = _FIRST
    while True:
        data = fetch(0, min(span, length))
        try:
            return _read(fetch, blob, data=data, length=length, decode=decode)
        except _Short:
            if span >= length:
                raise Damaged("expected more of a pickle, found its end") from None
            if span >= MAX_PICKLE:
                raise LimitExceeded(
                    f"expected pickles of at most {MAX_PICKLE} bytes"
                ) from None
            span *= 8


class _Short(Exception):
    """The pickles go on behind the bytes that were read."""


def _read(fetch: Fetch, blob: Blob, *, data: bytes, length: int, decode: Decode) -> Any:
    found: dict[str, tuple[StorageType, int]] = {}

    def note(pid: Any) -> Storage:
        kind, key, size = find_storage(pid)
        if found.setdefault(key, (kind, size)) != (kind, size):
            raise Untrusted(f"expected storage {key[:80]!a} to be of one type and size")
        return Storage(kind, blob, 0, size)

    def run(at: int, persistent: Callable[[Any], Storage] | None) -> tuple[Any, int]:
        try:
            return decode(data, at=at, persistent=persistent)
        except Damaged as error:
            if len(data) < length:
                raise _Short from error
            raise

    at = find_magic(data)
    version, at = run(at, None)
    if version != 1001:
        raise Unsupported("expected version 1001 of the old format of torch.save")
    system, at = run(at, None)
    _check_system(system)
    begin = at
    _, at = run(begin, note)
    keys, at = run(at, None)
    starts = _place(fetch, keys, found, at=at, length=length)

    storages = {
        key: Storage(kind, blob, starts[key], size)
        for key, (kind, size) in found.items()
    }

    def find(pid: Any) -> Storage:
        return storages[find_storage(pid)[1]]

    return run(begin, find)[0]


def _check_system(system: Any) -> None:
    """Refuse files of machines whose numbers are not as here."""
    known = cast(dict[Any, Any], system) if isinstance(system, dict) else {}
    if known.get("protocol_version") != 1001:
        raise Untrusted("expected a description of the machine, found another value")
    if known.get("little_endian") is not True:
        raise Unsupported(
            "expected little-endian storages, found others: save the file again on a "
            "little-endian machine"
        )


def _place(
    fetch: Fetch,
    keys: Any,
    found: dict[str, tuple[StorageType, int]],
    *,
    at: int,
    length: int,
) -> dict[str, int]:
    """Return where each storage begins: its count of items comes before it."""
    if not isinstance(keys, list) or sorted(found) != sorted(
        key for key in cast(list[Any], keys) if type(key) is str
    ):
        raise Untrusted("expected the keys of all storages, found others")
    starts: dict[str, int] = {}
    for key in cast(list[str], keys):
        kind, size = found[key]
        if at + 8 + size > length:
            raise Damaged(
                f"expected {size} bytes of storage {key[:80]!a}, found the end of the "
                "file"
            )
        items = int.from_bytes(fetch(at, at + 8), "little", signed=True)
        check_size(items * kind.itemsize, size, key=key)
        starts[key] = at + 8
        at += 8 + size
    return starts
