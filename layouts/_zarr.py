"""Zarr v3 metadata and shard indexes, as plain JSON values and bytes.

Source: the Zarr core specification, version 3.0, and its sharding_indexed codec.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from ._dtype import stored_dtype
from ._leaf import Chunked, Leaf
from ._manifest import Manifest
from ._mesh import format_spec

MISSING = np.iinfo(np.uint64).max
"""Offset and length of an inner chunk that lies outside the array."""


def array_document(leaf: Leaf, codecs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the zarr.json of a chunked leaf; `codecs` compress its chunks."""
    store = cast(Chunked, leaf.store)
    dtype = stored_dtype(leaf.dtype)
    inner = [bytes_codec(dtype), *codecs, {"name": "crc32c"}]
    sharding = {
        "chunk_shape": list(store.chunk),
        "codecs": inner,
        "index_codecs": [bytes_codec(np.dtype(np.uint64)), {"name": "crc32c"}],
        "index_location": "end",
    }
    attributes: dict[str, Any] = {"path": leaf.path, "dtype": leaf.dtype}
    if leaf.placement and leaf.placement.spec is not None:
        attributes["spec"] = format_spec(leaf.placement.spec)
        attributes["mesh"] = str(leaf.placement.mesh)
    return _array(
        leaf.shape,
        dtype,
        store.object,
        [{"name": "sharding_indexed", "configuration": sharding}],
        attributes,
    )


def pack_document(size: int) -> dict[str, Any]:
    """Return the zarr.json of a pack: its bytes, in one chunk."""
    dtype = np.dtype(np.uint8)
    return _array((size,), dtype, (size,), [bytes_codec(dtype)], {})


def bytes_codec(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the codec that lays an array's elements out as bytes."""
    if dtype.itemsize == 1:
        return {"name": "bytes"}
    return {"name": "bytes", "configuration": {"endian": "little"}}


def _array(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    chunk: tuple[int, ...],
    codecs: list[dict[str, Any]],
    attributes: dict[str, Any],
) -> dict[str, Any]:
    fill: Any = 0
    if dtype.kind == "b":
        fill = False
    elif dtype.kind == "c":
        fill = [0.0, 0.0]
    elif dtype.kind == "f":
        fill = 0.0
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype.name,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": list(chunk)},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": codecs,
        "attributes": attributes,
    }


def group_document(arrays: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the root zarr.json: a group with the metadata of all nodes below."""
    nodes: dict[str, Any] = {}
    for name, document in arrays.items():
        for parent in parents(name):
            nodes.setdefault(parent, _group())
        nodes[name] = document
    consolidated = {"kind": "inline", "must_understand": False, "metadata": nodes}
    return _group() | {"consolidated_metadata": consolidated}


def parents(name: str) -> list[str]:
    """Return the groups a name lies in, outermost first.

    >>> parents("a/b/c")
    ['a', 'a/b']
    """
    segments = name.split("/")
    return ["/".join(segments[:n]) for n in range(1, len(segments))]


def _group() -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": {}}


def zarr_documents(
    manifest: Manifest, codecs: dict[str, list[dict[str, Any]]], packs: dict[str, int]
) -> dict[str, dict[str, Any]]:
    """Return every zarr.json of a checkpoint by its name.

    `codecs` maps a leaf's stored dtype name to its codecs; `packs` names to sizes. A
    leaf with objects in other directories has none: what is not there reads as zeros.
    """
    arrays: dict[str, dict[str, Any]] = {}
    elsewhere = set(manifest.reused.leaves if manifest.reused else ())
    for number, leaf in enumerate(manifest.leaves):
        if isinstance(leaf.store, Chunked) and number not in elsewhere:
            chosen = codecs.get(stored_dtype(leaf.dtype).name, [])
            arrays[leaf.store.name] = array_document(leaf, chosen)
    arrays |= {name: pack_document(size) for name, size in packs.items()}
    files = {f"{name}/zarr.json": document for name, document in arrays.items()}
    for group in {parent for name in arrays for parent in parents(name)}:
        files[f"{group}/zarr.json"] = _group()
    return files | {"zarr.json": group_document(arrays)}


def shard_index(
    object_cells: tuple[int, ...], present: tuple[int, ...], lengths: Iterable[int]
) -> bytes:
    """Return a shard's index without its checksum: (offset, length) a cell.

    `object_cells` is the grid of chunks of a whole object, `present` that of those
    inside the array, whose stored `lengths` (checksums included) come in C order.
    """
    sizes = np.fromiter(lengths, np.uint64)
    index = np.full((*object_cells, 2), MISSING, "<u8")
    inside = tuple(slice(0, n) for n in present)
    index[(*inside, 0)] = (np.cumsum(sizes, dtype=np.uint64) - sizes).reshape(present)
    index[(*inside, 1)] = sizes.reshape(present)
    return index.tobytes()
