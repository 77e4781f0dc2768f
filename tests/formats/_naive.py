"""A reader of its own: whole tensors from the bytes that a catalogue points at."""

from pathlib import Path
from typing import Any

import numpy as np

from ckpt.formats._entry import Tensor
from layouts import DTYPES


def gather(root: Path, tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the values of a tensor, an item at a time."""
    dtype = DTYPES[tensor.dtype]
    if isinstance(tensor.data, np.ndarray):
        return tensor.data
    assert isinstance(tensor.data, tuple)
    out = np.zeros(tensor.shape, dtype)
    seen = np.zeros(tensor.shape, int)
    for block in tensor.data:
        whole = (root / block.blob.name).read_bytes()
        data = whole[block.blob.offset :][: block.blob.length]
        strides = block.strides
        if strides is None:
            steps = [dtype.itemsize]
            for n in reversed(block.box.shape[1:]):
                steps.append(steps[-1] * n)
            strides = tuple(reversed(steps[: len(block.box.shape)]))
        for index in np.ndindex(*block.box.shape):
            at = block.offset + sum(i * s for i, s in zip(index, strides, strict=True))
            item = data[at : at + dtype.itemsize]
            assert len(item) == dtype.itemsize
            place = tuple(a + i for a, i in zip(block.box.start, index, strict=True))
            out[place] = np.frombuffer(item, f"V{dtype.itemsize}").view(dtype)[0]
            seen[place] += 1
    assert (seen == 1).all()
    return out


def tensors(tree: Any, path: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Return the tensors of a tree by path."""
    if isinstance(tree, Tensor):
        return {"/".join(path): tree}
    if isinstance(tree, dict):
        items = list(tree.items())
    elif isinstance(tree, (list, tuple)):
        items = list(enumerate(tree))
    else:
        return {}
    found: dict[str, Tensor] = {}
    for key, item in items:
        found |= tensors(item, (*path, str(key)))
    return found
