"""Files of `torch.save`: their values, and where the bytes of their tensors lie."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from .._errors import Damaged
from .._store import Reader, Store
from ._entry import Blob, Check
from ._naming import naming
from ._pickle import Globals, decode_pickle
from ._plain import Unknown, to_tree
from ._record import Limits
from ._torch_globals import TORCH
from ._torch_legacy import HEAD, Decode, find_magic, read_legacy
from ._torch_zip import open_archive
from ._window import fetch_bytes, fetch_from
from ._zip import TAIL, Fetch

_LIMITS = Limits(operations=1 << 24)
"""For some 100 000 tensors in a file."""


def read_torch(
    store: Store,
    blob: Blob,
    *,
    reader: Reader | None = None,
    globals: Globals = TORCH,
    inert: Collection[str] = (),
    unknown: Unknown | None = None,
    checks: list[Check] | None = None,
    limits: Limits = _LIMITS,
) -> Any:
    """Return the tree in a file of `torch.save` that lies in a blob of the store.

    Tensors have one Block each, in the blob; their bytes are not read. Only the zip
    directory, its pickle and the headers of storages are: one request below 64 KiB.
    `reader` is the object, open, where the caller has it. `checks` gets a Check of the
    checksums. See `decode_pickle` for `globals` and `inert`, `to_tree` for `unknown`.
    """
    if reader is None:
        with store.open(blob.name) as opened:
            if blob.offset + blob.length > opened.size:
                raise Damaged(
                    f"expected {blob.length} bytes at {blob.offset}, found an object "
                    f"of {opened.size} - in {store.url}/{blob.name}"
                )
            return read_torch(
                store,
                blob,
                reader=opened,
                globals=globals,
                inert=inert,
                unknown=unknown,
                checks=checks,
                limits=limits,
            )
    where = f"{store.url}/{blob.name}"
    decode = partial(
        decode_pickle, globals=globals, inert=inert, limits=limits, where=where
    )
    fetch = fetch_from(reader, blob)
    value, is_zip = _read(
        fetch,
        blob,
        length=blob.length,
        decode=decode,
        where=where,
        workers=store.parallel if store.is_remote and blob.length > TAIL else 1,
    )
    if is_zip and checks is not None:
        work = partial(check_torch, store, blob)
        checks.append(Check(blob.name, blob.length, work))
    return to_tree(value, where=where, unknown=unknown)


def read_torch_bytes(
    data: bytes | memoryview,
    blob: Blob,
    *,
    where: str,
    globals: Globals = TORCH,
    inert: Collection[str] = (),
    unknown: Unknown | None = None,
    limits: Limits = _LIMITS,
) -> Any:
    """Return the tree in bytes that `torch.save` wrote: what a blob holds, decoded.

    Blocks name the blob, and count its decoded bytes. `where` is for messages.
    """
    decode = partial(
        decode_pickle, globals=globals, inert=inert, limits=limits, where=where
    )
    fetch = fetch_bytes(data)
    value, _ = _read(fetch, blob, length=len(data), decode=decode, where=where)
    return to_tree(value, where=where, unknown=unknown)


def check_torch(store: Store, blob: Blob) -> None:
    """Compare the members of an archive with their checksums."""
    where = f"{store.url}/{blob.name}"
    with store.open(blob.name) as reader:
        fetch = fetch_from(reader, blob)
        with naming(where):
            open_archive(fetch, blob, length=blob.length)[0].check()


def is_torch(head: bytes) -> bool:
    """Tell whether the first bytes are of a file of `torch.save`."""
    return head[:4] == b"PK\3\4" or find_magic(head) > 0


def _read(
    fetch: Fetch,
    blob: Blob,
    *,
    length: int,
    decode: Decode,
    where: str,
    workers: int = 1,
) -> tuple[Any, bool]:
    """Return the value of a file, and whether it is a zip archive."""
    with naming(where):
        head = fetch(0, min(length, HEAD))
        if find_magic(head):
            return read_legacy(fetch, blob, length=length, decode=decode), False
        if head[:4] != b"PK\3\4":
            raise Damaged(f"expected a file of torch.save, found one of {head[:8]!a}")
        archive, data = open_archive(fetch, blob, length=length)
        if workers > 1:
            archive.locate(workers)
        value, _ = decode(data, persistent=archive.find)
        archive.close()
        return value, True
