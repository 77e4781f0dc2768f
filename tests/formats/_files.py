"""safetensors files as bytes, made by rules of their own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMES = {"float32": "F32", "int32": "I32", "uint8": "U8", "float64": "F64"}


def make_file(
    tensors: Mapping[str, Any], metadata: dict[str, str] | None = None
) -> bytes:
    """Return a file of tensors, in the order of the dict."""
    header: dict[str, Any] = {}
    if metadata is not None:
        header["__metadata__"] = metadata
    at = 0
    for name, values in tensors.items():
        header[name] = {
            "dtype": NAMES[values.dtype.name],
            "shape": list(values.shape),
            "data_offsets": [at, at + values.nbytes],
        }
        at += values.nbytes
    data = b"".join(x.tobytes() for x in tensors.values())
    return with_header(json.dumps(header).encode(), data)


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def put_set(folder: Path, files: dict[str, bytes], index: Any = None) -> Path:
    """Write files by their names and, unless None, model.safetensors.index.json."""
    folder.mkdir(exist_ok=True, parents=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    if index is not None:
        text = index if isinstance(index, bytes) else json.dumps(index).encode()
        (folder / "model.safetensors.index.json").write_bytes(text)
    return folder
