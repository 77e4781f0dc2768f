"""Writes a set of safetensors files so that readers see the old set or the new one.

The files of the new set have names that no file of the old one has; the index, or the
one plain file, takes its place last and whole; what the old set alone had is removed
after that. A set that is left unfinished is a set of files that no index names.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from layouts import Box

from .._catalog import PathLike, locate
from .._copy import Progress, count_up
from .._errors import CkptError, LimitExceeded, StepExists, Unsupported
from .._store import Store
from .._store_options import GivenOptions
from .._write import run_all
from .._written import check_budget
from ._entry import Array
from ._nibbles import pack_nibbles
from ._safetensors_index import read_index
from ._safetensors_items import Content, Item, Request, take_content
from ._safetensors_plan import (
    INDEX,
    SINGLE,
    File,
    choose_infix,
    cut_item,
    plan_files,
    split_items,
)

PIECE_BYTES = 32 << 20
_MEMORY_BATCH_BYTES = 1 << 20
"""What stores that need not wait for a disk like to be given at once."""

_LEAST_BYTES = 16 << 20
"""What a worker gets of a budget, or more: small pieces read their chunks again."""

_SENT_BYTES = 512 << 20
_LARGEST_SENT = 5_000_000_000
_HELD_BYTES = 4 << 30
_HELD_COPIES = 3
"""How often an object is held while it is sent to a store."""

_OURS = re.compile(
    r"model(\.[0-9a-f]{8})?-\d{5,}-of-\d{5,}\.safetensors|"
    r"model\.safetensors(\.index\.json)?"
)
_LEFT = re.compile(rf"(?:{_OURS.pattern})\.[0-9a-f]{{16}}\.tmp")


@dataclass(frozen=True, slots=True)
class Batch:
    """Boxes whose bytes follow one another in a file, from an offset on."""

    offset: int
    boxes: list[tuple[Item, Box]]


def write_set(request: Request) -> tuple[str, ...]:
    """Do what `ckpt.save_safetensors` says, in this process alone."""
    store, told = begin_set(request)
    names = list_free(store, overwrite=request.overwrite)
    content = take_content(request)
    refuse_ties(told, content)
    old = read_old(store, names)
    most = limit_files(store, content, request.max_shard_bytes, request.max_host_bytes)
    groups = split_items(content.items, most=most)
    infix = choose_infix(len(groups), taken=names, old=old, spare=make_infix())
    files, index = plan_files(groups, ties=content.ties, metadata=told, infix=infix)
    store.make_folders([""])
    _write_files(store, files, content, request.max_host_bytes, request.progress)
    store.sync_folders([""])
    made = [file.name for file in files]
    commit_set(store, index, made, names, old)
    return (*made, INDEX) if index else tuple(made)


def begin_set(request: Request) -> tuple[Store, dict[str, str]]:
    """Return where to write, and the metadata; refuse arguments that are wrong."""
    check_budget(request.max_host_bytes)
    check_shard(request.max_shard_bytes)
    told = check_metadata(request.metadata)
    return locate_set(request.out, request.options), told


def locate_set(out: PathLike, options: GivenOptions | None) -> Store:
    """Return the folder to write into; ValueError where that is the name of a file."""
    store = locate(out, options)
    if store.url.endswith((".safetensors", ".json")):
        raise ValueError(
            f"expected a folder for safetensors files, found the name of a file - "
            f"{store.url}: give the folder"
        )
    return store


def list_free(store: Store, *, overwrite: bool) -> list[str]:
    """Return the names in a folder where a set may be written; refuse others."""
    names = store.list("")
    if "manifest.json" in names or any(n.startswith("steps/") for n in names):
        raise ValueError(
            f"expected a folder for safetensors files, found a checkpoint or a run - "
            f"in {store.url}: choose another"
        )
    there = [n for n in names if _OURS.fullmatch(n)]
    if there and not overwrite:
        raise StepExists(
            f"expected a folder without a set of safetensors files, found {there[0]} - "
            f"in {store.url}: choose another, or pass overwrite=True"
        )
    return names


def make_infix() -> str:
    """Return what no other set has in the names of its files."""
    return f".{secrets.token_hex(4)}"


def check_shard(max_shard_bytes: int) -> None:
    """Refuse a size of files that none could have."""
    if max_shard_bytes < 1:
        raise ValueError(f"expected max_shard_bytes above 0, found {max_shard_bytes}")


def check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return metadata of texts; TypeError or ValueError for others."""
    found = dict(metadata or {})
    for key, value in found.items():
        if type(key) is not str or type(value) is not str:
            raise TypeError(
                f"expected metadata= of texts, found {key!r:.80}: {value!r:.80}"
            )
        if key == "total_size":
            raise ValueError("expected metadata= without total_size, found it")
        f"{key}{value}".encode()
    return found


def refuse_ties(metadata: Mapping[str, str], content: Content) -> None:
    """Refuse metadata that readers would take for names of arrays."""
    if both := sorted(set(metadata).intersection(content.ties)):
        raise ValueError(
            f"expected metadata= without the names of ties, found {both[0]!r}"
        )
    names = {item.name for item in content.items}
    for key, value in metadata.items():
        if value in names and key not in names and key != "format":
            raise ValueError(
                f"expected metadata= that ties no name to an array, found {key!r:.80}: "
                f"{value!r:.80}: choose another text"
            )


def limit_files(
    store: Store, content: Content, max_shard_bytes: int, max_host_bytes: int | None
) -> int:
    """Return how large files may be; refuse arrays that the store cannot be sent."""
    if not store.is_remote:
        return max_shard_bytes
    held = (max_host_bytes or _HELD_BYTES) // _HELD_COPIES
    largest = max(content.items, key=lambda x: x.nbytes, default=None)
    if largest and largest.nbytes > _LARGEST_SENT:
        raise Unsupported(
            f"expected arrays of at most {_LARGEST_SENT:,} bytes in an object "
            f"store, found {largest.nbytes:,} - at `{largest.name}`: write to a "
            "disk, and copy the files"
        )
    if largest and max_host_bytes and largest.nbytes > held:
        raise LimitExceeded(
            f"expected arrays of at most {held:,} bytes, which are sent whole, "
            f"found {largest.nbytes:,} - at `{largest.name}`: raise max_host_bytes"
        )
    return min(max_shard_bytes, _SENT_BYTES, held)


def read_old(store: Store, names: Sequence[str]) -> frozenset[str]:
    """Return the files that an index names that is there already."""
    if INDEX in names:
        with contextlib.suppress(CkptError):
            return frozenset(read_index(store, INDEX)[0].values())
    return frozenset()


def commit_set(
    store: Store,
    index: bytes,
    made: Sequence[str],
    names: Sequence[str],
    old: frozenset[str],
) -> None:
    """Put the index, if there is one, and remove what the old set alone had."""
    if index:
        with store.write(INDEX, size=len(index), over=True) as last:
            last.write([index])
        store.sync_folders([""])
        made = [*made, INDEX]
    _remove_stale(store, names, old, made)


def _remove_stale(
    store: Store, names: Sequence[str], old: frozenset[str], made: Sequence[str]
) -> None:
    """Remove the old set: first what would be read in place of the new one."""
    stale = {n for n in names if _OURS.fullmatch(n) or _LEFT.fullmatch(n)}
    stale.update(old.intersection(names))
    for name in sorted(
        stale.difference(made), key=lambda n: (n not in (INDEX, SINGLE), n)
    ):
        store.remove(name)


def _write_files(
    store: Store,
    files: Sequence[File],
    content: Content,
    max_host_bytes: int | None,
    progress: Progress | None,
) -> None:
    """Write several files at once, and several pieces of each."""
    workers = store.parallel
    piece = PIECE_BYTES
    if store.is_remote:
        largest = max(file.size for file in files)
        held = (max_host_bytes or _HELD_BYTES) // (_HELD_COPIES * largest)
        workers = max(1, min(workers, held))
    if max_host_bytes is not None:
        # A piece is held twice where it is gathered, beside the chunk it comes from.
        chunk = max((x.chunk_bytes for file in files for x in file.items), default=0)
        least = max(_LEAST_BYTES, 3 * chunk)
        workers = max(1, min(workers, max_host_bytes // least))
        piece = min(piece, max_host_bytes // (3 * workers))
    count = count_up(progress, sum(file.size for file in files))
    parallel = min(workers, len(files))
    within = workers // parallel
    # A file takes one write at a time: more help only while an array is read or a
    # disk is waited for.
    if content.is_at_hand and store.batch_bytes <= _MEMORY_BATCH_BYTES:
        within = 1

    def write(file: File) -> None:
        over = file.name == SINGLE
        with store.write(file.name, size=file.size, over=over) as out:

            def work(batch: Batch) -> None:
                found = content.read(batch.boxes)
                values = [
                    lay(x, v) for (x, _), v in zip(batch.boxes, found, strict=True)
                ]
                out.write_at(batch.offset, values)
                count(sum(x.nbytes for x in values))

            out.write_at(0, [file.header])
            count(len(file.header))
            run_all(work, list(_batch(file, piece)), parallel=within)
            out.close()

    run_all(write, files, parallel=parallel)


def _batch(file: File, piece: int) -> Iterator[Batch]:
    """Yield boxes in the order of their bytes, together about `piece` bytes."""
    boxes: list[tuple[Item, Box]] = []
    at, held = len(file.header), 0
    for item in file.items:
        # A float4 is a whole byte in memory.
        for box in cut_item(item, most=piece * min(item.bits, 8) // 8):
            size = box.size * item.bits // 8
            if boxes and held + size > piece:
                yield Batch(at, boxes)
                at, held, boxes = at + held, 0, []
            boxes.append((item, box))
            held += size
    if boxes:
        yield Batch(at, boxes)


def lay(item: Item, values: Array) -> Array:
    """Return the bytes of values as a file has them."""
    if item.dtype == "float4_e2m1fn":
        return pack_nibbles(np.ascontiguousarray(values))
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
