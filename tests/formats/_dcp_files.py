"""Checkpoints of DCP made without PyTorch: pickles and archives, byte by byte."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"
SHARDED = "torch.distributed._shard.sharded_tensor.metadata"
STORAGES = {"float32": "FloatStorage", "int64": "LongStorage", "uint8": "ByteStorage"}


@dataclass(frozen=True)
class Name:
    """A class or function."""

    module: str
    name: str


@dataclass(frozen=True)
class Made:
    """What a class makes of arguments, and is given as its state."""

    of: Name
    args: tuple = ()
    state: Any = None
    reduced: bool = False


@dataclass(frozen=True)
class Persistent:
    """A reference to something outside of the pickle."""

    value: Any


def pickled(value: Any) -> bytes:
    """Pickle a value by protocol 2, without a memo."""
    return b"\x80\x02" + spell(value) + b"."


def spell(value: Any) -> bytes:
    match value:
        case Name(module, name):
            return f"c{module}\n{name}\n".encode()
        case Made(of, args, state, reduced):
            built = b"" if state is None else spell(state) + b"b"
            return spell(of) + spell(args) + (b"R" if reduced else b"\x81") + built
        case Persistent(inner):
            return spell(inner) + b"Q"
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            text = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return b"\x8a" + bytes([len(text)]) + text
        case float():
            return b"G" + struct.pack(">d", value)
        case str():
            return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
        case tuple():
            return b"(" + b"".join(map(spell, value)) + b"t"
        case list():
            return b"](" + b"".join(map(spell, value)) + b"e"
        case dict():
            pairs = b"".join(spell(k) + spell(v) for k, v in value.items())
            return b"}(" + pairs + b"u"
        case _:
            raise TypeError(type(value))


def size(*sizes: Any) -> Made:
    return Made(Name("torch", "Size"), (sizes,), reduced=True)


def saved(value: Any, storage: bytes | None = None) -> bytes:
    """Write a pickle and a storage as torch.save does."""
    text = io.BytesIO()
    with zipfile.ZipFile(text, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(value))
        archive.writestr("archive/byteorder", "little")
        if storage is not None:
            archive.writestr("archive/data/0", storage)
        archive.writestr("archive/version", "3\n")
    return text.getvalue()


def item(array: np.ndarray) -> bytes:
    storage = Name("torch", STORAGES[array.dtype.name])
    pid = Persistent(("storage", storage, "0", "cpu", array.size))
    strides = tuple(n // array.itemsize for n in array.strides)
    hooks = Made(Name("collections", "OrderedDict"), (), reduced=True)
    args = (pid, 0, array.shape, strides, False, hooks)
    made = Made(Name("torch._utils", "_rebuild_tensor_v2"), args, reduced=True)
    return saved(made, array.tobytes("A"))


def properties(dtype: str, *, old: bool = False, layout: str = "torch.strided") -> Made:
    module = SHARDED if old else METADATA
    encoding = Name(module, "MEM_FORMAT_ENCODING" if old else "_MEM_FORMAT_ENCODING")
    layouts = Made(Name("torch.serialization", "_get_layout"), (layout,), reduced=True)
    memory = Made(encoding, (0,), reduced=True)
    state = (Name("torch", dtype), layouts, False, memory, False)
    return Made(Name(module, "TensorProperties"), state=state)


def chunk(offsets: Sequence[Any], sizes: Sequence[Any]) -> Made:
    return Made(
        Name(METADATA, "ChunkStorageMetadata"),
        state={"offsets": size(*offsets), "sizes": size(*sizes)},
    )


def tensor(
    dtype: str, shape: Sequence[Any], chunks: list[Any], *, old: bool = False
) -> Made:
    state = {
        "properties": properties(dtype, old=old),
        "size": size(*shape),
        "chunks": chunks,
    }
    return Made(Name(METADATA, "TensorStorageMetadata"), state=state)


def plain() -> Made:
    return Made(Name(METADATA, "BytesStorageMetadata"), state={})


def index(name: Any, offset: Sequence[Any] | None) -> Made:
    state = {"fqn": name, "index": None if offset is None else 0}
    if offset is not None:
        state["offset"] = size(*offset)
    return Made(Name(METADATA, "MetadataIndex"), state=state)


def place(path: Any, offset: Any, length: Any, **more: Any) -> Made:
    state = {"relative_path": path, "offset": offset, "length": length, **more}
    return Made(Name(FILESYSTEM, "_StorageInfo"), state=state)


def metadata(
    entries: Any, items: Sequence[tuple[Made, Made]], paths: Any = None
) -> bytes:
    """Write the metadata of entries by name and of places of boxes."""
    state: dict[Any, Any] = {
        "state_dict_metadata": entries,
        "storage_data": Pairs(items),
    }
    if paths is not None:
        state["planner_data"] = paths
    return pickled(Made(Name(METADATA, "Metadata"), state=state))


class Pairs(dict):
    """A dict of which the keys may be equal."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        super().__init__()
        self.pairs = pairs

    def items(self) -> Any:
        return self.pairs


def write(
    folder: Path,
    arrays: Mapping[str, np.ndarray],
    *,
    rows: int,
    paths: Any = None,
    old: bool = False,
) -> None:
    """Save arrays cut into boxes of so many rows, each box in the next of two files."""
    files = {"__0_0.distcp": b"", "__1_0.distcp": b""}
    entries: dict[str, Made] = {}
    items: list[tuple[Made, Made]] = []
    for name, array in arrays.items():
        chunks: list[Made] = []
        for row in range(0, max(len(array), 1), rows):
            part = array[row : row + rows]
            offset = (row, *(0 for _ in array.shape[1:]))
            file = f"__{row // rows % 2}_0.distcp"
            chunks.append(chunk(offset, part.shape))
            items.append(
                (index(name, offset), place(file, len(files[file]), len(item(part))))
            )
            files[file] += item(part)
        entries[name] = tensor(array.dtype.name, array.shape, chunks, old=old)
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in files.items():
        (folder / file).write_bytes(data)
    (folder / ".metadata").write_bytes(metadata(entries, items, paths))
