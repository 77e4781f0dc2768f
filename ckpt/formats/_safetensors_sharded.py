"""safetensors files with parts of tensors, as PyTorch DCP writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from layouts import Box

from .._errors import Damaged, Untrusted
from ._entry import Block, Shape, Tensor, tiles
from ._json import is_numbers, parse_object, show
from ._safetensors_header import Header

SHARDING = "DCP_SHARDING_INFO"
_LARGEST = 1 << 62


def join_parts(
    headers: Sequence[Header], url: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors that the parts in some files make, and the files' metadata.

    A tensor reaches as far as its parts do: nothing else says how large it was. Equal
    boxes are replicas. Damaged where parts are missing or overlap.
    """
    blocks: dict[str, dict[Box, Block]] = {}
    dtypes: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    for header in headers:
        starts = _read_starts(header)
        told = {k: v for k, v in header.metadata.items() if k != SHARDING}
        metadata.update(told)
        for name, row in header.rows.items():
            start = starts.get(name, (0,) * len(row.shape))
            if len(start) != len(row.shape):
                raise Untrusted(
                    f"expected {len(row.shape)} offsets, found {len(start)} - at "
                    f"{show(name)}, in {header.where}"
                )
            box = Box(start, row.shape)
            known = blocks.setdefault(name, {})
            same = not known or len(next(iter(known)).shape) == len(row.shape)
            if not same or dtypes.setdefault(name, row.dtype) != row.dtype:
                raise Untrusted(
                    "expected parts of one tensor, found others dtypes or ranks - at "
                    f"{show(name)}, in {header.where}"
                )
            if row.dtype == "float4_e2m1fn":
                raise Untrusted(
                    "expected parts of whole bytes, found float4 in parts - at "
                    f"{show(name)}, in {header.where}"
                )
            known.setdefault(box, Block(box, header.blob(name)))
    tree = {n: _join(n, dtypes[n], found, url) for n, found in blocks.items()}
    return tree, metadata


def _read_starts(header: Header) -> dict[str, Shape]:
    where = f"{header.where}, {SHARDING}"
    text = header.metadata[SHARDING].encode()
    found = parse_object(text, where, what="offsets of parts")
    starts: dict[str, Shape] = {}
    for name, entry in found.items():
        fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        offsets: Any = fields.get("saved_offsets")
        if not is_numbers(offsets) or any(n >= _LARGEST for n in offsets):
            raise Untrusted(
                f"expected saved_offsets of integers, found {show(offsets)} - at "
                f"{show(name)}, in {where}"
            )
        starts[name] = tuple(offsets)
    return starts


def _join(name: str, dtype: str, found: dict[Box, Block], url: str) -> Tensor:
    boxes = list(found)
    shape = tuple(map(max, zip(*(box.stop for box in boxes), strict=True)))
    if not tiles(shape, boxes):
        raise Damaged(
            f"expected parts that cover {list(shape)}, each item once, found "
            f"{len(boxes)} that do not - at {show(name)}, in {url}: a file is missing, "
            "or they are of different saves"
        )
    return Tensor(dtype, shape, tuple(found.values()))
