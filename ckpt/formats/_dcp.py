"""PyTorch DCP: `.metadata`, a pickle, and `__<rank>_<n>.distcp`, archives in a row."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

import layouts

from .._errors import Damaged, NotFound, Untrusted
from .._store import Store
from .._write import run_all
from ._dcp_item import find_box
from ._dcp_metadata import Saved, SavedTensor, check_items, read_metadata
from ._dcp_tree import build_tree
from ._dcp_values import read_values
from ._entry import Blob, Block, Catalogue, Check, Folder, Shape, Tensor, tiles
from ._plain import show_place
from ._torch import check_torch

_METADATA_BYTES = 512 * 1024 * 1024

_PROVEN = 1000
"""Shapes with boxes that are remembered: no file can make many of their hashes meet."""

_Proven = tuple[Shape, tuple[layouts.Box, ...]]

_DATA = re.compile(r"__\d+_\d+\.distcp")
_RANK = re.compile(r"__(\d{1,9})\.metadata")
_STEP = re.compile(r"(?:.*[_-])?step[_=-]?(\d{1,18})")


def find_dcp(folder: Folder) -> Catalogue | None:
    """Return what a folder of DCP holds, or None where there is none.

    The folder itself, or the newest `step-<n>` in it or the one of the step that is
    wanted. Tensors are looked for in their files when they are read.
    """
    prefix, step = _choose(folder)
    if prefix is None:
        if any(_DATA.fullmatch(name) for name in folder.names):
            raise Damaged(
                f"expected .metadata beside the .distcp files in {folder.store.url}, "
                "found none: this save was never finished"
            )
        return None
    names = [n.removeprefix(prefix) for n in folder.names if n.startswith(prefix)]
    ranks = sorted((n for n in names if _RANK.fullmatch(n)), key=_rank)
    notes: list[str] = []
    metadata = [".metadata"] if ".metadata" in names else ranks
    if ranks and metadata != ranks:
        notes.append(f"{len(ranks)} metadata files of single ranks beside .metadata")
    store, saved = folder.store, Saved()
    for name in metadata:
        where = f"{store.url}/{prefix}{name}"
        data = store.read(prefix + name, limit=_METADATA_BYTES)
        read_metadata(data, saved, prefix=prefix, where=where)
    where = f"{store.url}/{prefix}{metadata[0] if len(metadata) == 1 else ''}"
    objects = sorted({blob.name for blob in saved.items.values()})
    known = [name for name in objects if folder.has(name)]
    found = run_all(store.size, known, parallel=store.parallel)
    check_items(saved, dict(zip(known, found, strict=True)), where=where)
    order = dict.fromkeys((*saved.paths, *saved.tensors, *saved.values))
    leaves: dict[str, Any] = {
        name: None for name in order if name in saved.tensors or name in saved.values
    }
    proven: set[_Proven] = set()
    for name, tensor in saved.tensors.items():
        leaves[name] = _tensor(store, saved, name, tensor, where, proven)
    for name, value in read_values(store, saved, notes):
        leaves[name] = value
    other = [prefix + n for n in names if _DATA.fullmatch(n)]
    unread = sorted(set(other) - set(objects))
    # A rank that had nothing to save leaves an empty file.
    if any(run_all(store.size, unread, parallel=store.parallel)):
        notes.append(f"{len(unread)} .distcp files that the metadata do not name")
    return Catalogue(
        "dcp",
        build_tree(leaves, saved.paths, where=where),
        (*(prefix + name for name in metadata), *objects),
        step=step,
        notes=tuple(notes),
        checks=tuple(_checks(store, saved)),
    )


def _choose(folder: Folder) -> tuple[str | None, int]:
    """Return the prefix of the names of a checkpoint, None for none, and its step."""
    steps: dict[int, str] = {}
    for name in folder.names:
        above, slash, last = name.rpartition("/")
        if last != ".metadata" and not _RANK.fullmatch(last):
            continue
        if not slash:
            return "", 0
        if found := _STEP.fullmatch(above):
            steps[int(found[1])] = f"{above}/"
    if not steps:
        return None, 0
    step = max(steps) if folder.step is None else folder.step
    if step not in steps:
        shown = ", ".join(map(str, sorted(steps)[-10:]))
        raise NotFound(
            f"expected step {step} in {folder.store.url}, found {shown} of PyTorch DCP"
        )
    return steps[step], step


def _rank(name: str) -> int:
    found = _RANK.fullmatch(name)
    return int(found[1]) if found else -1


def _tensor(
    store: Store,
    saved: Saved,
    name: str,
    tensor: SavedTensor,
    where: str,
    proven: set[_Proven],
) -> Tensor:
    """Return a tensor whose boxes cover it exactly, each found when it is read.

    `proven` are shapes with boxes of which that is known: those of layers are alike.
    """
    boxes = tuple(tensor.boxes)
    is_proven = (tensor.shape, boxes) in proven
    if not is_proven and not tiles(tensor.shape, boxes):
        kind = Damaged if _lacks_items(tensor) else Untrusted
        raise kind(
            f"expected boxes that cover {tensor.dtype}{list(tensor.shape)} exactly, "
            f"found {len(boxes):,} that overlap or leave holes - at "
            f"`{show_place((name,))}`, in {where}: a rank's part is missing, or the "
            "folder holds parts of several checkpoints"
        )
    if len(proven) < _PROVEN:
        proven.add((tensor.shape, boxes))
    blocks: list[Block] = []
    for box in boxes:
        blob = saved.items[name, box.start]
        find = partial(
            find_box, store, blob, name=name, dtype=tensor.dtype, shape=box.shape
        )
        blocks.append(Block(box, blob, find=find))
    if not blocks:
        empty = np.zeros(tensor.shape, layouts.dtype_of(tensor.dtype))
        return Tensor(tensor.dtype, tensor.shape, empty)
    return Tensor(tensor.dtype, tensor.shape, tuple(blocks))


def _checks(store: Store, saved: Saved) -> Iterator[Check]:
    """Yield a look at the checksums of each object's archives."""
    blobs: dict[str, dict[tuple[int, int], Blob]] = {}
    for blob in saved.items.values():
        if blob.codec is None:
            blobs.setdefault(blob.name, {})[blob.offset, blob.length] = blob
    for name, group in blobs.items():
        size = sum(length for _, length in group)
        yield Check(name, size, partial(_check_archives, store, group.values()))


def _check_archives(store: Store, blobs: Iterable[Blob]) -> None:
    for blob in sorted(blobs, key=lambda blob: blob.offset):
        check_torch(store, blob)


def _lacks_items(tensor: SavedTensor) -> bool:
    """Tell whether the boxes hold too few items, so that one may be missing."""
    return sum(box.size for box in tensor.boxes) < math.prod(tensor.shape)
