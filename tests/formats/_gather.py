"""Arrays put together from what a catalogue says, by numpy alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import layouts
from ckpt._store import Store, open_store
from ckpt.formats._entry import Array, Block, Folder, Lazy, Tensor
from ckpt.formats._zstd import decode_zstd

PEERS = Path(__file__).parents[1] / "data" / "peers"


def look_in(path: Path | str, *, file: str = "", step: int | None = None) -> Folder:
    store = open_store(path)
    return Folder(store, tuple(store.list("")), file, step)


def expected_tensors(name: str) -> dict[str, dict[str, Any]]:
    document = json.loads((PEERS / f"{name}.expected.json").read_text())
    return document.get("tensors") or document["leaves"]


def describe(store: Store, tensor: Tensor) -> dict[str, Any]:
    """Say of a tensor what the expected files say."""
    values = materialise(store, tensor)
    return {
        "shape": list(values.shape),
        "dtype": tensor.dtype,
        "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
    }


def materialise(store: Store, tensor: Tensor) -> Array:
    if isinstance(tensor.data, np.ndarray):
        return tensor.data
    dtype = layouts.dtype_of(tensor.dtype)
    values = np.zeros(tensor.shape, dtype)
    covered = np.zeros(tensor.shape, int)
    assert not isinstance(tensor.data, Lazy)
    for block in tensor.data:
        found = block
        if block.find is not None:
            with store.open(block.blob.name) as reader:
                found = block.find(reader)
        values[block.box.slices] = (
            found if isinstance(found, np.ndarray) else read_block(store, found, dtype)
        )
        covered[block.box.slices] += 1
    assert (covered == 1).all()
    return values


def read_block(store: Store, block: Block, dtype: np.dtype[Any]) -> Array:
    whole = store.read(block.blob.name, limit=1 << 30)
    assert block.blob.offset + block.blob.length <= len(whole)
    data = whole[block.blob.offset :][: block.blob.length]
    if block.blob.codec == "zstd":
        data = decode_zstd(data, limit=1 << 30, guess=1)
    shape, size = block.box.shape, dtype.itemsize
    if 0 in shape:
        return np.zeros(shape, dtype)
    strides = block.strides
    if strides is None:
        strides = tuple(size * int(np.prod(shape[d + 1 :])) for d in range(len(shape)))
    items = np.ndarray(shape, f"V{size}", data, block.offset, strides)
    return np.ascontiguousarray(items).view(dtype).reshape(shape)


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from leaves(value, (*path, number))
    else:
        yield path, tree
