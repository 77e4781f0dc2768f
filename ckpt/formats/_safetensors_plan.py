"""Which arrays go into which safetensors file, and what headers and index say."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import layouts
from layouts import Box

from .._errors import LimitExceeded
from ._safetensors_items import NAMES, Item

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_HEADER_BYTES = 25_000_000
_INDEX_BYTES = 10_000_000
_FILE_VALUES = 500_000
"""Values in the headers that readers take, ours among them: some 50,000 arrays."""


@dataclass(frozen=True, slots=True)
class File:
    """One file: its name, its header, and the arrays in the order of their bytes."""

    name: str
    header: bytes
    items: tuple[Item, ...]

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return len(self.header) + sum(item.nbytes for item in self.items)


def split_items(items: Sequence[Item], *, most: int) -> list[list[Item]]:
    """Return the arrays of each file, in order: at most `most` bytes, or one array."""
    files: list[list[Item]] = []
    held: list[Item] = []
    size = text = values = 0
    for item in items:
        if item.nbytes > most:
            files.append([item])
            continue
        # What the entry takes of the header, rather more than less.
        more = 6 * len(item.name) + 20 * len(item.shape) + 120
        full = (
            size + item.nbytes > most
            or text + more > _HEADER_BYTES // 2
            or values > _FILE_VALUES
        )
        if held and full:
            files.append(held)
            held, size, text, values = [], 0, 0, 0
        held.append(item)
        size += item.nbytes
        text += more
        values += len(item.shape) + 8
    return [*files, held] if held or not files else files


def plan_files(
    groups: Sequence[Sequence[Item]],
    *,
    ties: Mapping[str, str],
    metadata: Mapping[str, str],
    infix: str | None,
) -> tuple[list[File], bytes]:
    """Return the files of a set and its index, b"" for one file without.

    Where `infix` is None, a set of one file is a plain one.
    """
    told = {"format": "pt", **{k: v for k, v in metadata.items() if k == "format"}}
    if infix is None and len(groups) == 1:
        header = _make_header(groups[0], {**told, **metadata, **ties})
        return [File(SINGLE, header, _sort(groups[0]))], b""
    files = [
        File(
            name_file(infix, number, len(groups)),
            _make_header(group, told),
            _sort(group),
        )
        for number, group in enumerate(groups, 1)
    ]
    places = {item.name: file.name for file in files for item in file.items}
    total = sum(item.nbytes for group in groups for item in group)
    beside = {k: v for k, v in metadata.items() if k != "format"}
    index = json.dumps(
        {
            "metadata": {"total_size": total, **beside, **ties},
            "weight_map": dict(sorted(places.items())),
        },
        indent=2,
        ensure_ascii=False,
    )
    data = index.encode() + b"\n"
    if len(data) > _INDEX_BYTES:
        raise LimitExceeded(
            f"expected an index of at most {_INDEX_BYTES:,} bytes, found {len(data):,} "
            f"for {len(places):,} arrays: select= fewer, or shorten their names"
        )
    return files, data


def name_file(infix: str | None, number: int, count: int) -> str:
    """Return the name of one of the files that an index names, counted from 1.

    >>> name_file(None, 2, 3), name_file(".c0ffee00", 1, 1)
    ('model-00002-of-00003.safetensors', 'model.c0ffee00-00001-of-00001.safetensors')
    """
    return f"model{infix or ''}-{number:05}-of-{count:05}.safetensors"


def choose_infix(
    count: int, *, taken: Iterable[str], old: Iterable[str], spare: str
) -> str | None:
    """Return what tells the files of a set apart from those that are there.

    `taken` are the names in the folder, `old` those of them that an index names. None
    and "" are none: None where one file may be a plain one. `spare` is a free one.
    """
    if count == 1 and SINGLE not in old:
        # An old set may lie in the plain file although an index names it.
        return None
    names = {name_file("", number, count) for number in range(1, count + 1)}
    return spare if names.intersection(taken) else ""


def assign_files(files: Sequence[File], processes: int) -> list[int]:
    """Return which process writes each file: the largest go first, to the least busy.

    >>> sizes = [File("a", b"1", ()), File("b", b"333", ()), File("c", b"22", ())]
    >>> assign_files(sizes, 2)
    [1, 0, 1]
    """
    loads = [(0, process) for process in range(processes)]
    owners = [0] * len(files)
    for number in sorted(range(len(files)), key=lambda n: -files[n].size):
        load, process = heapq.heappop(loads)
        owners[number] = process
        heapq.heappush(loads, (load + files[number].size, process))
    return owners


def _sort(items: Sequence[Item]) -> tuple[Item, ...]:
    return tuple(sorted(items, key=lambda x: (-x.bits, x.name)))


def _make_header(items: Sequence[Item], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes before the data: they end where 8 divides."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for item in _sort(items):
        entries[item.name] = {
            "dtype": NAMES[item.dtype],
            "shape": item.shape,
            "data_offsets": [at, at + item.nbytes],
        }
        at += item.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _HEADER_BYTES:
        raise LimitExceeded(
            f"expected at most {_HEADER_BYTES:,} bytes of header, found "
            f"{len(text):,}: shorten names or metadata"
        )
    return len(text).to_bytes(8, "little") + text


def cut_item(item: Item, *, most: int) -> Iterator[Box]:
    """Yield boxes of an array, each a run of its bytes, of about `most` bytes at most.

    Where the array is stored in rows, whole ones are taken if they fit.

    >>> from ._safetensors_items import Item
    >>> [b.shape for b in cut_item(Item("a", "int8", (5, 4), 0), most=8)]
    [(2, 4), (2, 4), (1, 4)]
    """
    shape = item.shape
    if item.nbytes <= most:
        yield layouts.whole(shape)
        return
    # Two float4 are a byte, which no cut may part.
    least = 8 // item.bits or 1
    inner = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    d = next(
        (d for d, size in enumerate(inner) if size * item.bits <= 8 * most),
        len(shape) - 1,
    )
    while d and shape[d] * inner[d] % least:
        d -= 1
    rows = max(1, 8 * most // (inner[d] * item.bits))
    if inner[d] % least:
        rows = max(least, rows - rows % least)
    elif item.rows and rows > item.rows[d]:
        rows -= rows % item.rows[d]
    cell = (*(1 for _ in range(d)), rows, *shape[d + 1 :])
    grid = layouts.Grid(shape, cell)
    for number in range(grid.length):
        yield grid.box(grid.coordinates(number))
