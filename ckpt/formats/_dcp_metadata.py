"""The metadata of PyTorch DCP: what was saved, in which boxes, and where."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, cast

import layouts
from layouts import Box

from .._errors import CkptError, Damaged, LimitExceeded, Unsupported, Untrusted
from .._store import check_name
from ._entry import Blob, Shape
from ._pickle import decode_pickle
from ._plain import show_place
from ._record import Record
from ._torch_globals import TORCH
from ._torch_tensor import read_sizes

_BOX_BYTES = 16
"""Each box takes more bytes than this in the metadata, unless one is there twice."""

DEPTH = 90
"""The most levels of a tree."""

_METADATA = "torch.distributed.checkpoint.metadata"
_FILESYSTEM = "torch.distributed.checkpoint.filesystem"
_SHARDED = "torch.distributed._shard.sharded_tensor.metadata"
_OLD = "torch.distributed._shard.checkpoint"
"""Where torch 1.13 had it."""

_ZSTD = "stream.zstd"
_INFLATION = 40_000
"""No zstd stream becomes more times larger than this: a block of 128 KiB takes 4."""

_CLASSES: dict[tuple[str, str], Any] = {
    **{
        (module, name): None
        for module in (_METADATA, f"{_OLD}.metadata")
        for name in (
            "Metadata",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "_MEM_FORMAT_ENCODING",
        )
    },
    **{
        (module, name): None
        for module in (_FILESYSTEM, f"{_OLD}.filesystem")
        for name in ("_StorageInfo", "_StoragePrefix")
    },
    (_SHARDED, "TensorProperties"): None,
    (_SHARDED, "MEM_FORMAT_ENCODING"): None,
}
"""All that becomes records; the dtypes, sizes and paths of PyTorch are values."""

Key = tuple[str, Shape | None]
"""A name, and where its box begins; None for a value that is no tensor."""


@dataclass(slots=True)
class SavedTensor:
    """A tensor: the boxes in which it was saved, each once, those without items not."""

    dtype: str
    shape: Shape
    boxes: dict[Box, None] = field(default_factory=dict[Box, None])


@dataclass(slots=True)
class Saved:
    """What one or several metadata files say."""

    tensors: dict[str, SavedTensor] = field(default_factory=dict[str, SavedTensor])
    values: dict[str, None] = field(default_factory=dict[str, None])
    paths: dict[str, tuple[str | int, ...]] = field(
        default_factory=dict[str, "tuple[str | int, ...]"]
    )
    items: dict[Key, Blob] = field(default_factory=dict[Key, Blob])
    copies: dict[str, list[Blob]] = field(default_factory=dict[str, "list[Blob]"])
    files: set[str] = field(default_factory=set[str])


def read_metadata(data: bytes, saved: Saved, *, prefix: str, where: str) -> None:
    """Add what one metadata file says; its objects lie in the folder `prefix`.

    Damaged or Untrusted, naming the tensor and the file, for what DCP never writes.
    """
    value, end = decode_pickle(data, globals=TORCH | _CLASSES, where=where)
    if end != len(data):
        raise Untrusted(
            f"expected the end of a pickle at byte {end:,}, found {len(data) - end:,} "
            f"more bytes in {where}"
        )
    name, left = "", len(data) // _BOX_BYTES
    try:
        state = _state(value, "Metadata")
        for name, entry in _pairs(state.get("state_dict_metadata")):
            left -= _add_entry(saved, _text(name), entry, left)
        for name, path in _pairs(state.get("planner_data") or {}):
            _add_path(saved, _text(name), path)
        for index, info in _pairs(state.get("storage_data")):
            name = _add_item(saved, index, info, prefix)
    except CkptError as error:
        raise type(error)(f"{error} - at `{show_place((name,))}`, in {where}") from None


def _add_entry(saved: Saved, name: str, entry: Any, left: int) -> int:
    """Add a tensor or value; return how many boxes it has, of the `left` ones."""
    if isinstance(entry, Record) and entry.name == "BytesStorageMetadata":
        if name in saved.tensors:
            raise Untrusted("expected a tensor or a value, found both")
        saved.values[name] = None
        return 0
    state = _state(entry, "TensorStorageMetadata")
    dtype, shape = _dtype(state.get("properties")), read_sizes(state.get("size"))
    itemsize = layouts.stored_dtype(dtype).itemsize
    if math.prod(n or 1 for n in shape) * itemsize >= 2**62:
        raise LimitExceeded(f"expected less than 2**62 bytes, found {dtype}{shape}")
    tensor = saved.tensors.setdefault(name, SavedTensor(dtype, shape))
    if (tensor.dtype, tensor.shape) != (dtype, shape) or name in saved.values:
        raise Untrusted(
            f"expected one dtype and shape, found {tensor.dtype}{list(tensor.shape)} "
            f"and {dtype}{list(shape)}"
        )
    chunks = cast(list[Any], state.get("chunks"))
    if not isinstance(state.get("chunks"), list):
        raise Untrusted("expected a list of boxes, found another value")
    if len(chunks) > left:
        raise Untrusted(f"expected boxes of its own, found {len(chunks):,} shared ones")
    for chunk in chunks:
        known = _state(chunk, "ChunkStorageMetadata")
        box = Box(read_sizes(known.get("offsets")), read_sizes(known.get("sizes")))
        if not _lies_within(box, shape):
            raise Untrusted(
                f"expected a box within {shape}, found one of {box.shape} at "
                f"{box.start}"
            )
        if 0 not in box.shape:
            tensor.boxes[box] = None
    return len(chunks)


def _lies_within(box: Box, shape: Shape) -> bool:
    if not len(box.start) == len(box.shape) == len(shape):
        return False
    for start, length, size in zip(*box, shape, strict=True):
        if start + length > size:
            return False
    return True


def _dtype(properties: Any) -> str:
    """Return the dtype of tensor properties, which are pickled as a tuple."""
    if not isinstance(properties, Record) or properties.name != "TensorProperties":
        raise Untrusted("expected the properties of a tensor, found another value")
    state = properties.state
    if isinstance(state, dict):
        known = cast(dict[str, Any], state)
        state = known.get("dtype"), known.get("layout", "torch.strided")
    if not isinstance(state, tuple) or len(cast(tuple[Any, ...], state)) < 2:
        raise Untrusted("expected the properties of a tensor, found another value")
    dtype, layout = cast(tuple[Any, ...], state)[:2]
    if layout != "torch.strided" or type(dtype) is not str:
        raise Unsupported(
            f"expected a dense tensor, found {str(layout)[:80]!a}: save it as one"
        )
    if dtype not in layouts.DTYPES:
        raise Unsupported(f"expected a dtype that JAX has, found torch.{dtype[:80]}")
    return dtype


def _add_path(saved: Saved, name: str, path: Any) -> None:
    parts = cast(tuple[Any, ...], path)
    if not isinstance(path, tuple):
        raise Untrusted("expected keys and positions as a path, found another value")
    if len(parts) > DEPTH:
        raise LimitExceeded(f"expected at most {DEPTH} levels, found {len(parts)}")
    if not all(type(p) in (str, int) for p in parts):
        raise Untrusted("expected keys and positions as a path, found another value")
    if not parts or any(type(p) is int and p < 0 for p in parts):
        raise Untrusted("expected keys and positions from 0 as a path, found others")
    if saved.paths.setdefault(name, parts) != parts:
        raise Untrusted(f"expected one path, found {parts!a:.200}")


def _add_item(saved: Saved, index: Any, info: Any, prefix: str) -> str:
    """Add where a box or value is stored, and return its name."""
    key = _state(index, "MetadataIndex")
    name, offset = _text(key.get("fqn")), key.get("offset")
    start = None if offset is None else read_sizes(offset)
    place = _state(info, "_StorageInfo")
    path = _text(place.get("relative_path"))
    if path not in saved.files:
        if "/" in check_name(path):
            raise Untrusted(f"expected an object in one folder, found {path!a}")
        saved.files.add(path)
    first, length = place.get("offset"), place.get("length")
    for number in (first, length):
        if type(number) is not int or not 0 <= number < 2**62:
            raise Untrusted(
                "expected where an item begins and ends, found other values"
            )
    codec = _codec(place.get("transform_descriptors"))
    blob = Blob(prefix + path, cast(int, first), cast(int, length), codec)
    # Ranks that saved on their own have copies: the first one's are taken.
    known = saved.items.setdefault((name, start), blob)
    if start is None and known != blob:
        saved.copies.setdefault(name, []).append(blob)
    return name


def _codec(descriptors: Any) -> Any:
    if not descriptors:
        return None
    found = cast(list[Any], descriptors)
    if isinstance(descriptors, list) and len(found) == 1 and type(found[0]) is str:
        kind, _, version = found[0].partition("/")
        if kind == _ZSTD and version.partition(".")[0] == "1":
            return "zstd"
    raise Unsupported(
        f"expected items as they are or {_ZSTD}/1, found {descriptors!a:.100}: save "
        "the checkpoint again without such extensions"
    )


def check_items(saved: Saved, sizes: dict[str, int | None], *, where: str) -> None:
    """Refuse boxes and values whose item is missing or not a part of an object."""
    wanted = ((name, box) for name, t in saved.tensors.items() for box in t.boxes)
    blobs: list[tuple[str, int, int, str]] = []

    def at(name: str) -> str:
        return f"at `{show_place((name,))}`, in {where}"

    for name, box in chain(wanted, ((name, None) for name in saved.values)):
        blob = saved.items.get((name, None if box is None else box.start))
        if blob is None:
            raise Damaged(f"expected an item for each box, found none - {at(name)}")
        size = sizes.get(blob.name)
        if size is None:
            raise Damaged(f"expected the object {blob.name}, found none - {at(name)}")
        if blob.offset + blob.length > size:
            raise Damaged(
                f"expected {blob.length:,} bytes at byte {blob.offset:,} of "
                f"{blob.name}, found its end at {size:,} - {at(name)}: fetch it again"
            )
        if box is not None:
            dtype = saved.tensors[name].dtype
            nbytes = box.size * layouts.stored_dtype(dtype).itemsize
            if nbytes > blob.length * (1 if blob.codec is None else _INFLATION):
                raise Untrusted(
                    f"expected an item of {nbytes:,} bytes or more, found "
                    f"{blob.length:,} in {blob.name} - {at(name)}"
                )
        blobs.append((blob.name, blob.offset, blob.offset + blob.length, name))
    blobs.sort()
    for (one, _, stop, first), (other, start, _, second) in pairwise(blobs):
        if one == other and start < stop:
            raise Untrusted(
                f"expected items apart, found those of `{show_place((first,))}` and "
                f"`{show_place((second,))}` at byte {start:,} of {one}, in {where}"
            )


def _state(value: Any, name: str) -> dict[str, Any]:
    """Return the attributes of an object of a class."""
    if not isinstance(value, Record) or value.name != name:
        raise Untrusted(f"expected a {name}, found another value")
    if not isinstance(value.state, dict):
        raise Untrusted(f"expected the attributes of a {name}, found none")
    return cast(dict[str, Any], value.state)


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(value, dict):
        raise Untrusted("expected a dict, found another value")
    return cast(dict[Any, Any], value).items()


def _text(value: Any) -> str:
    if type(value) is not str:
        raise Untrusted("expected a name, found another value")
    return value
