"""What stands for the classes and functions that files of PyTorch may name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from .._errors import LimitExceeded, Untrusted
from ._torch_tensor import (
    ITEMSIZES,
    TENSOR_CLASSES,
    Refused,
    StorageType,
    read_sizes,
    rebuild_parameter,
    rebuild_typed,
    rebuild_v2,
    rebuild_v3,
)

_STORAGES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "QInt8": "qint8",
    "QUInt8": "quint8",
    "QInt32": "qint32",
    "QUInt4x2": "quint4x2",
    "QUInt2x4": "quint2x4",
}
_UNREADABLE = {
    "_rebuild_sparse_tensor": "that is sparse",
    "_rebuild_sparse_csr_tensor": "that is sparse",
    "_rebuild_qtensor": "that is quantised",
    "_rebuild_meta_tensor_no_storage": "without values (on the meta device)",
    "_rebuild_wrapper_subclass": "of a class that wraps others",
    "_rebuild_nested_tensor": "that is nested",
    "_rebuild_device_tensor_from_numpy": "of a device that PyTorch saves as numpy",
    "_rebuild_device_tensor_from_cpu_tensor": "of a device that PyTorch saves apart",
    "_rebuild_fake_tensor": "without values",
}


def _refuse(why: str) -> Callable[..., Refused]:
    return lambda *_: Refused(why)


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise Untrusted("expected bytes as a text in latin1")
    return text.encode("latin-1")


def _plain_dict(*pairs: Any) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for given in pairs:
        if isinstance(given, dict):
            made.update(cast(dict[Any, Any], given))
        else:
            made.update((_check(key), value) for key, value in given)
    return made


def _default_dict(_: Any = None, *pairs: Any) -> dict[Any, Any]:
    return _plain_dict(*pairs)


def _check(key: Any) -> Any:
    """Return a key whose hash is cheap and differs from others'."""
    if type(key) not in (str, int, float, bool, bytes, type(None)):
        raise Untrusted("expected a text or a number as a key")
    if type(key) is int and key.bit_length() > 64:
        raise LimitExceeded("expected numbers of at most 64 bits as keys")
    return key


def _plain_set(items: Iterable[Any] = ()) -> set[Any]:
    return {_check(item) for item in items}


def _plain_frozenset(items: Iterable[Any] = ()) -> frozenset[Any]:
    return frozenset(_plain_set(items))


def _plain_bytes(data: Any = b"", encoding: Any = None) -> bytes:
    if encoding is not None:
        return _encode(data, encoding)
    if not isinstance(data, (bytes, bytearray)):
        raise Untrusted("expected bytes")
    return bytes(data)


def _complex(real: Any, imag: Any = 0.0) -> complex:
    if type(real) is not float or type(imag) is not float:
        raise Untrusted("expected two numbers of a complex one")
    return complex(real, imag)


def _size(sizes: Iterable[Any] = ()) -> tuple[int, ...]:
    return read_sizes(tuple(sizes))


def _device(kind: Any, index: Any = None) -> str:
    if type(kind) is not str or not (index is None or type(index) is int):
        raise Untrusted("expected a device")
    return kind if index is None else f"{kind}:{index}"


def _layout(name: Any) -> str:
    if type(name) is not str:
        raise Untrusted("expected the name of a layout")
    return name


def _path(*parts: Any) -> str:
    if not all(type(part) is str for part in parts):
        raise Untrusted("expected the parts of a path")
    return "/".join(parts).replace("//", "/", 1)


def _items(items: Iterable[Any] = (), limit: Any = None) -> list[Any]:
    return list(items)


PLAIN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _plain_dict,
    ("collections", "Counter"): _plain_dict,
    ("collections", "defaultdict"): _default_dict,
    ("collections", "deque"): _items,
    ("_codecs", "encode"): _encode,
    ("argparse", "Namespace"): None,
    ("types", "SimpleNamespace"): None,
    ("functools", "partial"): None,
    **{
        (module, name): make
        for module in ("builtins", "__builtin__")
        for name, make in {
            "set": _plain_set,
            "frozenset": _plain_frozenset,
            "bytes": _plain_bytes,
            "bytearray": _plain_bytes,
            "complex": _complex,
            **dict.fromkeys(("int", "float", "list", "dict", "str", "bool", "tuple")),
            **dict.fromkeys(("long", "object", "range", "slice", "type", "xrange")),
            **dict.fromkeys(("Ellipsis", "NotImplemented")),
        }.items()
    },
    **{
        (module, name): _path
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
    },
}
"""Classes of plain Python values."""

NUMPY: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): None,
    ("numpy", "ndarray"): None,
} | {
    (f"numpy.{core}.{module}", name): None
    for core in ("core", "_core")
    for module, name in (
        ("multiarray", "scalar"),
        ("multiarray", "_reconstruct"),
        ("numeric", "_frombuffer"),
    )
}
"""Arrays and scalars of numpy, which stay records until all of them is known."""

TORCH_DTYPES: dict[tuple[str, str], Any] = {
    ("torch", name): name for name in ITEMSIZES
} | {
    ("torch", alias): name
    for alias, name in (
        ("float", "float32"),
        ("double", "float64"),
        ("half", "float16"),
        ("long", "int64"),
        ("int", "int32"),
        ("short", "int16"),
        ("cfloat", "complex64"),
        ("cdouble", "complex128"),
    )
}
"""The dtypes of PyTorch, which become their names."""

INERT = frozenset(
    (
        *("__main__", "_io", "datetime", "decimal", "fractions", "uuid", "zoneinfo"),
        *("accelerate", "addict", "argparse", "attr", "composer", "datasets"),
        *("deepspeed", "detectron2", "diffusers", "easydict", "enum", "fairseq"),
        *("fvcore", "hydra", "lightning", "lightning_fabric", "megatron"),
        *("ml_collections", "mmcv", "mmengine", "munch", "nemo", "omegaconf"),
        *("peft", "pydantic", "pytorch_lightning", "tokenizers", "torchdata"),
        *("torchmetrics", "torchvision", "transformers", "trl", "ultralytics"),
        *("yacs",),
    )
)
"""Packages whose objects lie beside tensors: options, dates and progress.

They are never imported: such objects are passed over, with a note.
"""

TORCH: dict[tuple[str, str], Any] = {
    **PLAIN,
    **NUMPY,
    **TORCH_DTYPES,
    **{("torch", f"{k}Storage"): StorageType(v) for k, v in _STORAGES.items()},
    ("torch.storage", "UntypedStorage"): StorageType(None),
    ("torch", "UntypedStorage"): StorageType(None),
    **dict.fromkeys(TENSOR_CLASSES),
    **{("torch._utils", name): _refuse(why) for name, why in _UNREADABLE.items()},
    ("torch._utils", "_rebuild_tensor"): rebuild_v2,
    ("torch._utils", "_rebuild_tensor_v2"): rebuild_v2,
    ("torch._utils", "_rebuild_tensor_v3"): rebuild_v3,
    ("torch._utils", "_rebuild_parameter"): rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): rebuild_parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): rebuild_typed,
    **{
        ("torch", f"per_{what}"): f"per_{what}"
        for what in (
            "tensor_affine",
            "channel_affine",
            "channel_affine_float_qparams",
            "tensor_symmetric",
            "channel_symmetric",
        )
    },
    ("torch", "Size"): _size,
    ("torch", "device"): _device,
    ("torch.serialization", "_get_layout"): _layout,
}
"""What `torch.save` writes: tensors, and plain values."""
