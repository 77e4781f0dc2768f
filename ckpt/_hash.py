"""Hashes of the values of objects, by which equal ones are known."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

import layouts
from layouts import Chunked, Leaf, ObjectPart

from ._crc import checksum

Array = np.ndarray[Any, Any]


class ValueHash:
    """A hash of an object's chunks, in C order, before any codec, and of their form.

    It is SHA-256, which processors compute in hardware, cut to 128 bits; it frees the
    GIL.
    """

    def __init__(self, leaf: Leaf, shape: tuple[int, ...], store: Chunked) -> None:
        form = [leaf.dtype, shape, store.chunk]
        self._hash = hashlib.sha256(layouts.dump_json(form) + b"\n")

    def add(self, raw: Array) -> None:
        """Add the bytes of the next chunk."""
        self._hash.update(raw.data)

    def digest(self) -> bytes:
        """Return the hash of what was added."""
        return self._hash.digest()[: layouts.HASH_BYTES]


def lay_flat(chunk: Array, room: Array) -> Array:
    """Return a chunk's bytes in C order, in `room` if it does not lie so."""
    if chunk.flags.c_contiguous:
        return chunk.reshape(-1).view(np.uint8)
    raw = room[: chunk.nbytes]
    raw.view(chunk.dtype).reshape(chunk.shape)[...] = chunk
    return raw


def hash_if_like(
    chunks: Iterable[Array], known: ObjectPart, hasher: ValueHash, room: Array
) -> bytes:
    """Return the hash of an object's chunks; b"" once one is not like the known.

    Without a codec checksums are of the values, and tell most differences early. `room`
    has the bytes of a chunk: fresh memory for each would cost as much as the hash.
    """
    for number, chunk in enumerate(chunks):
        raw = lay_flat(chunk, room)
        if known.lengths is None and checksum(raw) != known.crcs[number]:
            return b""
        hasher.add(raw)
    return hasher.digest()
