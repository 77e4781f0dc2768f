"""Files as they were when a checkpoint was opened, told from what came after."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress

from .._errors import Damaged
from .._local_file import LocalReader
from .._local_store import LocalStore
from .._store import Reader, Store
from ._entry import Tensor

Mark = tuple[int, int, int]
"""What another file, or this one written to, does not share: inode, size, time."""

Marks = Mapping[str, Mark]


def mark_files(store: Store, tensors: Iterable[Tensor | None]) -> Marks:
    """Return what tells each file that tensors lie in from others; {} off a disk."""
    if not isinstance(store, LocalStore):
        return {}
    blocks = (t.data for t in tensors if t is not None and isinstance(t.data, tuple))
    marks: dict[str, Mark] = {}
    for name in {block.blob.name for data in blocks for block in data}:
        with suppress(OSError, ValueError):
            marks[name] = _mark(os.stat(os.path.join(store.url, name)))
    return marks


def check_mark(marks: Marks, name: str, reader: Reader | None, *, url: str) -> None:
    """Raise Damaged where an open file is not the one that was marked."""
    known = marks.get(name)
    if known and isinstance(reader, LocalReader) and _mark(reader.status()) != known:
        raise Damaged(
            "expected the file that was there when the checkpoint was opened, found it "
            f"replaced or changed - in {url}/{name}: open it again"
        )


def _mark(status: os.stat_result) -> Mark:
    return status.st_ino, status.st_size, status.st_mtime_ns
