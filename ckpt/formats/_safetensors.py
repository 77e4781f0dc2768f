"""safetensors: files of a JSON header and plain tensors, alone or in sets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from .._errors import Damaged, Unsupported, Untrusted
from .._write import run_all
from ._entry import Catalogue, Folder, Tensor
from ._safetensors_header import Header, read_header
from ._safetensors_index import find_index, read_index
from ._safetensors_sharded import SHARDING, join_parts

_SUFFIX = ".safetensors"
_OF = re.compile(r"(.+)-(\d{5,9})-of-(\d{5,9})\.safetensors")
_RANDOM = re.compile(r"\.[0-9a-f]{8}$")
_WHOLE = (
    "model.safetensors",
    "diffusion_pytorch_model.safetensors",
    "adapter_model.safetensors",
)
"""Where several files have the same names, the first of these is the one to read."""

_SHOWN = 20
_MOST_FILES = 100_000


def find_safetensors(folder: Folder) -> Catalogue | None:
    """Return what a safetensors file, or a folder of such files, holds; else None.

    The tree is a flat dict: names are its keys as they are, dots and all, in the order
    of the file (of the index, where there is one). A name that the metadata records as
    tied to a tensor is that same Tensor again. `meta["metadata"]` has the metadata of
    the index, or else of the files. Only headers are read.

    In a folder the index decides which files count; without one there is a single
    file, a set of parts that PyTorch DCP wrote (`shard-*`, in `sharded/` too), or
    several files with different names. The files of DCP do not say how many there
    were: parts that are missing at the end of a dimension cannot be seen.

    Booleans are a byte each; those that are neither 0 nor 1 are for the reader of the
    blocks to refuse.
    """
    if folder.file:
        return _find_file(folder)
    own = [n for n in folder.names if "/" not in n]
    files = [n for n in own if n.endswith(_SUFFIX)]
    index, notes = find_index(own, folder.store.url)
    if index:
        return _open_index(folder, index, files, notes)
    if files:
        return _open_files(folder, files)
    below = [
        n
        for n in folder.names
        if n.startswith("sharded/") and n.count("/") == 1 and n.endswith(_SUFFIX)
    ]
    if parts := _take_parts(folder, _read_all(folder, below)):
        note = "the consolidated files are missing: sharded/ was read"
        return _open_parts(folder, parts, (note,))
    return None


def _find_file(folder: Folder) -> Catalogue | None:
    name = folder.file
    if name.endswith(_SUFFIX):
        header = read_header(folder.store, name)
        if SHARDING not in header.metadata:
            return _catalogue([header])
        beside = [n for n in folder.store.list("") if "/" not in n]
        if any(n.endswith(_SUFFIX) and n != name for n in beside):
            raise Unsupported(
                "expected a file of whole tensors, found one of several with parts of "
                f"them - in {header.where}: open its folder instead"
            )
        return _open_parts(folder, [header], ())
    if name.endswith(".json") and ".safetensors.index" in name:
        files = [n for n in folder.names if "/" not in n and n.endswith(_SUFFIX)]
        return _open_index(folder, name, files, ())
    return None


def _open_index(
    folder: Folder, index: str, files: Sequence[str], notes: tuple[str, ...]
) -> Catalogue:
    """Return the tensors that an index names, each of the file that it names."""
    where = f"{folder.store.url}/{index}"
    weights, metadata = read_index(folder.store, index)
    wanted = list(dict.fromkeys(weights.values()))
    # Told before any file is read: they may be large in number.
    there = folder.store.has if folder.file else files.__contains__
    if missing := [n for n in wanted if not there(n)]:
        raise Damaged(
            f"expected {len(wanted)} files, found {len(missing)} missing: "
            f"{_list(missing)} - in {where}: complete the download"
        )
    headers = {h.name: h for h in _read_all(folder, wanted)}
    if lost := [f"`{n}`" for n, f in weights.items() if n not in headers[f].rows]:
        raise Damaged(
            f"expected the tensors of the index, found {len(lost)} missing from the "
            f"files that it names: {_list(lost)} - in {where}: the files and the index "
            "are of different saves"
        )
    told = [*notes]
    if extra := [n for n in files if n not in headers]:
        told.append(f"{index} does not name {_list(extra)}: passed over")
    spare = [
        f"`{n}` in {h.name}"
        for h in headers.values()
        for n in h.rows
        if weights.get(n) != h.name
    ]
    if spare:
        told.append(f"{index} does not take {_list(spare)}: passed over")
    tree = {n: headers[f].tensor(n) for n, f in weights.items()}
    _tie(tree, metadata)
    return Catalogue(
        "safetensors",
        tree,
        (index, *wanted),
        notes=tuple(told),
        meta={"metadata": metadata},
    )


def _open_files(folder: Folder, files: Sequence[str]) -> Catalogue:
    """Return what the files of a folder without an index hold."""
    whole = next((n for n in _WHOLE if n in files), "")
    groups: dict[str, dict[int, set[int]]] = {}
    for name in files:
        if found := _OF.fullmatch(name):
            prefix, number, count = found[1], int(found[2]), int(found[3])
            groups.setdefault(prefix, {}).setdefault(count, set()).add(number)
    passed = [
        n
        for n in files
        if ((found := _OF.fullmatch(n)) and _is_one_of(found[1], files))
        or (n.startswith("consolidated") and whole)
    ]
    kept = [n for n in files if n not in passed]
    headers = _read_all(folder, kept)
    notes = tuple([f"{_list(passed)}: passed over"] if passed else [])
    if parts := _take_parts(folder, headers):
        return _open_parts(folder, parts, notes)
    for prefix, counts in groups.items():
        if not _is_one_of(prefix, files):
            _check_complete(folder, prefix, counts)
    shared = _find_shared(headers)
    if shared and whole:
        others = [n for n in kept if n != whole]
        notes = (*notes, f"{_list(others)} have the same names: passed over")
        headers = [h for h in headers if h.name == whole]
    elif shared:
        raise Unsupported(
            f"expected files with different names, found {shared} in several - in "
            f"{folder.store.url}: give the path of one file"
        )
    return _catalogue(headers, notes)


def _is_one_of(prefix: str, files: Sequence[str]) -> bool:
    """Tell whether the whole of what the files of a prefix are parts of is there.

    What an export that was killed has left has a random word behind the prefix.
    """
    names = {f"{prefix}{_SUFFIX}", f"{_RANDOM.sub('', prefix)}{_SUFFIX}"}
    return not names.isdisjoint(files)


def _check_complete(folder: Folder, prefix: str, counts: dict[int, set[int]]) -> None:
    """Refuse a set whose files say of how many they are, and are fewer."""
    for count, there in counts.items():
        if count > _MOST_FILES or there != set(range(1, count + 1)):
            lost = [n for n in range(1, min(count, _MOST_FILES) + 1) if n not in there]
            names = [f"{prefix}-{n:05}-of-{count:05}{_SUFFIX}" for n in lost]
            raise Damaged(
                f"expected {count} files, found {len(lost)} missing: {_list(names)} - "
                f"in {folder.store.url}: complete the download"
            )


def _find_shared(headers: Sequence[Header]) -> str:
    """Return a name that two files have, "" without."""
    seen: set[str] = set()
    for header in headers:
        if not seen.isdisjoint(header.rows):
            return f"`{min(seen.intersection(header.rows))}`"
        seen.update(header.rows)
    return ""


def _take_parts(folder: Folder, headers: Sequence[Header]) -> list[Header]:
    """Return the files if they hold parts of tensors, none if they hold whole ones."""
    parts = [h for h in headers if SHARDING in h.metadata]
    others = [h.name for h in headers if SHARDING not in h.metadata]
    if parts and others:
        raise Unsupported(
            f"expected files of parts, or of whole tensors, found both: "
            f"{_list([parts[0].name, *others])} - in {folder.store.url}: give the "
            "path of one file"
        )
    return parts


def _open_parts(
    folder: Folder, headers: Sequence[Header], notes: tuple[str, ...]
) -> Catalogue:
    _check_parts(folder, [h.name for h in headers])
    tree, metadata = join_parts(headers, folder.store.url)
    _tie(tree, metadata)
    return Catalogue(
        "safetensors",
        tree,
        tuple(h.name for h in headers),
        notes=notes,
        meta={"metadata": metadata},
    )


def _check_parts(folder: Folder, names: Iterable[str]) -> None:
    """Refuse shards of DCP among which a number is missing: 1, 2, 4."""
    numbers = {
        int(found[1])
        for n in names
        if (found := re.search(r"(?:^|/)shard-(\d{5,9})-model-", n))
    }
    if numbers and max(numbers) != len(numbers):
        # Lazily: a name may say any number.
        lost = (n for n in range(1, max(numbers) + 1) if n not in numbers)
        shown = [f"shard-{n:05}-*" for n in islice(lost, _SHOWN)]
        raise Damaged(
            f"expected the files of {max(numbers)} processes, found none of "
            f"{_list(shown)} - in {folder.store.url}: complete the copy"
        )


def _catalogue(headers: Sequence[Header], notes: tuple[str, ...] = ()) -> Catalogue:
    tree = {n: h.tensor(n) for h in headers for n in h.rows}
    metadata: dict[str, Any] = {}
    for header in headers:
        metadata.update(header.metadata)
    _tie(tree, metadata)
    names = tuple(h.name for h in headers)
    return Catalogue(
        "safetensors", tree, names, notes=notes, meta={"metadata": metadata}
    )


def _tie(tree: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    """Add the names that the metadata records as other names of a tensor."""
    ties = {
        alias: tree[source]
        for alias, source in metadata.items()
        if alias not in tree
        # It is there in nearly every file, and "pt" may be a tensor as well.
        and alias != "format"
        and isinstance(source, str)
        and source in tree
    }
    tree.update(ties)


def _read_all(folder: Folder, names: Sequence[str]) -> list[Header]:
    if len(names) > _MOST_FILES:
        raise Untrusted(
            f"expected at most {_MOST_FILES:,} files, found {len(names):,} - in "
            f"{folder.store.url}"
        )
    store = folder.store
    return run_all(lambda n: read_header(store, n), names, parallel=store.parallel)


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
