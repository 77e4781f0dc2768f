"""What DCP saves that is no tensor: archives of plain Python values, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from .._errors import CkptError, LimitExceeded
from .._store import Store
from .._write import run_all
from ._dcp_metadata import Saved
from ._entry import Blob
from ._plain import show_place
from ._torch import read_torch_bytes
from ._torch_globals import INERT
from ._zstd import decode_zstd

_VALUE_BYTES = 256 * 1024 * 1024
_TOGETHER = 4 * 1024 * 1024
"""Values that lie side by side are read together, up to so many bytes."""

_GUESS = 1261
"""The size of an archive of a number."""

_LEAST = 16 * 1024 * 1024
_RATIO = 256
"""A compressed value may become so many times larger, and `_LEAST` in any case."""


def read_values(
    store: Store, saved: Saved, notes: list[str]
) -> Iterator[tuple[str, Any]]:
    """Yield what is no tensor, by name; take note where copies of ranks differ."""
    blobs = {
        name: [saved.items[name, None], *saved.copies.get(name, ())]
        for name in saved.values
    }
    wanted = {blob for group in blobs.values() for blob in group}
    total = sum(blob.length for blob in wanted)
    if total > _VALUE_BYTES:
        raise LimitExceeded(
            f"expected at most {_VALUE_BYTES:,} bytes of plain values, found {total:,} "
            f"in {store.url}"
        )
    data: dict[Blob, bytes] = {}
    for part in run_all(
        partial(_read_group, store), list(_together(wanted)), parallel=store.parallel
    ):
        data.update(part)
    for name, group in blobs.items():
        values = [_decode(store, name, blob, data[blob], notes) for blob in group]
        # Copies of NaN, or of tensors, are never equal: their text is.
        if any(repr(value) != repr(values[0]) for value in values[1:]):
            notes.append(
                f"`{show_place((name,))}` differs between ranks: the first one is taken"
            )
        yield name, values[0]


def _decode(store: Store, name: str, blob: Blob, data: bytes, notes: list[str]) -> Any:
    where = f"`{show_place((name,))}` of {store.url}/{blob.name}"

    def take_note(path: str, kind: str) -> None:
        place = show_place((name, path) if path else (name,))
        notes.append(f"`{place}` is left out: {kind}")

    if blob.codec is not None:
        try:
            limit = min(_VALUE_BYTES, max(_LEAST, _RATIO * blob.length))
            data = decode_zstd(data, limit=limit, guess=_GUESS)
        except CkptError as error:
            raise type(error)(f"{error} That is {where}.") from None
    return read_torch_bytes(data, blob, where=where, inert=INERT, unknown=take_note)


def _together(blobs: Iterable[Blob]) -> Iterator[list[Blob]]:
    """Yield items of one object that follow one another."""
    group: list[Blob] = []
    for blob in sorted(blobs, key=lambda blob: (blob.name, blob.offset)):
        if group and (
            blob.name != group[0].name
            or blob.offset != group[-1].offset + group[-1].length
            or blob.offset + blob.length - group[0].offset > _TOGETHER
        ):
            yield group
            group = []
        group.append(blob)
    if group:
        yield group


def _read_group(store: Store, group: list[Blob]) -> dict[Blob, bytes]:
    first = group[0].offset
    buffer = bytearray(group[-1].offset + group[-1].length - first)
    with store.open(group[0].name) as reader:
        reader.read_into(first, buffer)
    data = bytes(buffer)
    return {b: data[b.offset - first : b.offset - first + b.length] for b in group}
