"""Tensors of a catalogue as numpy arrays, read by the plainest code that can."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

import layouts
from ckpt._store import open_store
from ckpt.formats._entry import Block, Catalogue, Folder, Lazy, Tensor
from layouts import Box

PEERS = Path(__file__).parents[1] / "data" / "peers"


def folder_of(path: Any, file: str = "") -> Folder:
    store = open_store(path)
    return Folder(store, (file,) if file else tuple(store.list("")), file=file)


def expected_of(name: str) -> dict[str, Any]:
    return json.loads((PEERS / f"{name}.expected.json").read_text())


def materialise(folder: Folder, tensor: Tensor) -> np.ndarray:
    """Return a tensor's values; every item of it must be set exactly once."""
    dtype = layouts.dtype_of(tensor.dtype)
    values = np.zeros(tensor.shape, dtype)
    times = np.zeros(tensor.shape, int)
    if isinstance(tensor.data, np.ndarray):
        return tensor.data
    if isinstance(tensor.data, Lazy):
        return tensor.data.read(layouts.whole(tensor.shape))
    for block in tensor.data:
        box: Box = block.box
        values[box.slices] = read_block(folder, block, dtype)
        times[box.slices] += 1
    assert (times == 1).all()
    return values


def read_block(folder: Folder, block: Block, dtype: np.dtype) -> np.ndarray:
    raw = bytearray(block.blob.length)
    with folder.store.open(block.blob.name) as reader:
        reader.read_into(block.blob.offset, raw)
    assert block.blob.codec is None
    strides = block.strides
    if strides is None:
        inner = [
            int(np.prod(block.box.shape[d + 1 :])) for d in range(len(block.box.shape))
        ]
        strides = tuple(dtype.itemsize * n for n in inner)
    found = np.zeros(block.box.shape, dtype)
    for index in np.ndindex(*block.box.shape):
        at = block.offset + sum(i * s for i, s in zip(index, strides, strict=True))
        found[index] = np.frombuffer(raw[at : at + dtype.itemsize], dtype)[0]
    return found


def check_values(folder: Folder, found: Catalogue, expected: dict[str, Any]) -> None:
    """Compare each tensor of a flat tree with its shape, dtype and SHA-256."""
    assert set(found.tree) == set(expected)
    for name, told in expected.items():
        tensor = found.tree[name]
        assert (list(tensor.shape), tensor.dtype) == (told["shape"], told["dtype"]), (
            name
        )
        data = materialise(folder, tensor).tobytes()
        assert hashlib.sha256(data).hexdigest() == told["sha256"], name
