"""Zarr metadata and shard indexes, against zarr-python and TensorStore."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
import zarr
from hypothesis import given, strategies as st
from zarr.storage import MemoryStore

import layouts
from layouts import Chunked, Leaf, Placement
from tests.layouts._documents import dump, example

CORE = [n for n in sorted(layouts.DTYPES) if layouts.stored_dtype(n).name == n]


def open_group(documents: dict[str, dict[str, Any]]) -> zarr.Group:
    """Open what the documents describe with zarr-python, in memory."""
    store = MemoryStore()
    for name, document in documents.items():
        data = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(  # pyright: ignore[reportAttributeAccessIssue]
            dump(document)
        )
        asyncio.run(store.set(name, data))
    return zarr.open_group(store, mode="r", zarr_format=3)


def chunked(
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    cell: tuple[int, ...],
    chunk: tuple[int, ...],
) -> Leaf:
    return Leaf(name, "jax", dtype, shape, store=Chunked(name, cell, chunk))


def test_zarr_python_lists_groups_arrays_and_packs_with_their_attributes() -> None:
    manifest, _ = example()
    mesh = layouts.mesh_layout({"x": 2, "y": 4})
    deep = chunked("a/b/c%2F", "bfloat16", (4, 6), (4, 6), (2, 3))
    deep = replace(deep, placement=Placement(mesh, (("x",), ("y",))))
    manifest = replace(manifest, leaves=(*manifest.leaves, deep))
    sizes = {"~packs/0-0": 16}
    group = open_group(layouts.zarr_documents(manifest, {}, sizes))
    found = dict(group.members(max_depth=None))
    assert sorted(found) == ["W", "a", "a/b", "a/b/c%2F", "~packs", "~packs/0-0"]
    array = found["a/b/c%2F"]
    assert isinstance(array, zarr.Array)
    assert (array.shape, array.dtype, array.shards) == ((4, 6), np.uint16, (4, 6))
    assert array.chunks == (2, 3)
    assert dict(array.attrs) == {
        "path": "a/b/c%2F",
        "dtype": "bfloat16",
        "spec": "P('x', 'y')",
        "mesh": "(x=2, y=4)",
    }
    pack = found["~packs/0-0"]
    assert isinstance(pack, zarr.Array)
    assert (pack.shape, pack.dtype, pack.chunks) == ((16,), np.uint8, (16,))


@pytest.mark.parametrize("dtype", sorted(layouts.DTYPES))
def test_zarr_python_opens_arrays_of_every_dtype(dtype: str) -> None:
    manifest, _ = example()
    leaf = chunked("w", dtype, (5, 4), (4, 4), (2, 4))
    group = open_group(
        layouts.zarr_documents(replace(manifest, leaves=(leaf,)), {}, {})
    )
    array = group["w"]
    assert isinstance(array, zarr.Array)
    assert array.dtype == layouts.stored_dtype(dtype)
    assert array.attrs["dtype"] == dtype


@given(st.data())
def test_a_shard_index_is_the_one_that_tensorstore_writes(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    lengths = st.integers(1, 3)
    chunk = tuple(data.draw(lengths) for _ in range(rank))
    cells = tuple(data.draw(lengths) for _ in range(rank))
    cell = tuple(c * n for c, n in zip(chunk, cells, strict=True))
    shape = tuple(data.draw(st.integers(1, n)) for n in cell)
    leaf = chunked("w", data.draw(st.sampled_from(CORE)), shape, cell, chunk)
    spec = {
        "driver": "zarr3",
        "kvstore": "memory://",
        "metadata": layouts.array_document(leaf, []),
        "create": True,
        "open": True,
        "store_data_equal_to_fill_value": True,
    }
    array = ts.open(spec).result()
    array.write(np.zeros(shape, array.dtype.numpy_dtype)).result()
    assert array.kvstore
    shard = array.kvstore.read("c/" + "/".join(["0"] * rank)).result().value
    present = tuple(-(-n // c) for n, c in zip(shape, chunk, strict=True))
    count = math.prod(present)
    stored = math.prod(chunk) * leaf.itemsize + layouts.CHECKSUM_BYTES
    index = layouts.shard_index(cells, present, [stored] * count)
    # The index is followed by its own checksum of four bytes.
    assert len(shard) == count * stored + len(index) + 4
    assert shard[count * stored : -4] == index


def test_a_shard_index_places_chunks_of_unequal_lengths_one_after_another() -> None:
    index = layouts.shard_index((2, 3), (2, 2), [5, 6, 7, 8])
    missing = (1 << 64) - 1
    rows = np.frombuffer(index, "<u8").reshape(2, 3, 2).tolist()
    assert rows == [
        [[0, 5], [5, 6], [missing, missing]],
        [[11, 7], [18, 8], [missing, missing]],
    ]
