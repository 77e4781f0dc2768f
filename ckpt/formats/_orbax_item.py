"""One Orbax item: the tree of arrays, texts and empty nodes that one folder holds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from layouts import Box, Placement

from .._errors import Damaged
from .._store import Store
from ._entry import Lazy, Tensor
from ._orbax_json import as_object, read_json
from ._orbax_old import (
    AGGREGATE,
    is_aggregate,
    join_entries,
    list_entries,
    read_aggregate,
)
from ._orbax_side import read_impls, read_placements, read_strings
from ._orbax_tree import Entry, Key, build_tree, parse_entries, restore_types
from ._orbax_values import Files, Values, open_databases
from ._zarr_meta import DOCUMENT_BYTES, parse_zarr
from ._zarr_read import Source, check_claim, join_name, make_lazy

_DATABASE = re.compile(r"(ocdbt\.process_[^/]*)/manifest\.ocdbt")
_NESTED = re.compile(r"(.+)/manifest\.ocdbt")
_PROCESSES = 8
"""Files of array metadata that are read: each process writes the same of them."""

_ARRAYS = ("array", "numpy", "scalar")
_PYTHON = {"int64": int, "float64": float, "bool": bool, "complex128": complex}
_WIDE = {"int64", "float64", "complex128"}


@dataclass(frozen=True, slots=True)
class Part:
    """A folder within a checkpoint: its objects by their names below it.

    `prefix` is what their names begin with in the checkpoint.
    """

    store: Store
    names: Sequence[str]
    prefix: str = ""

    def below(self) -> dict[str, Part]:
        """Return the folders in this one, by name."""
        return {
            name: Part(self.store.child(name), inner, f"{self.prefix}{name}/")
            for name, inner in group(self.names).items()
        }


def group(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names below each folder, by the folder's own.

    >>> group(["a/b", "a/c/d", "e"])
    {'a': ['b', 'c/d']}
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        first, slash, rest = name.partition("/")
        if slash:
            groups.setdefault(first, []).append(rest)
    return groups


@dataclass(frozen=True, slots=True)
class Item:
    """A tree, and what the caller should be warned of."""

    tree: Any
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Header:
    """What _METADATA says; None for the entries where there is none."""

    entries: list[Entry] | None
    version: int
    ocdbt: bool | None
    filled: bool
    tells_scalars: bool
    types: str = ""


def is_item(names: Sequence[str], store: Store, *, below: str = "") -> bool:
    """Tell whether the objects of a folder of a store are those of an item.

    `below` is what the folder's objects have before their names in the store.
    """
    files = {name for name in names if "/" not in name}
    if files & {"_METADATA", "manifest.ocdbt"}:
        return True
    if any(_DATABASE.fullmatch(name) for name in names):
        return True
    if any(name.count("/") == 1 and name.endswith("/.zarray") for name in names):
        return True
    return AGGREGATE in files and is_aggregate(store, f"{below}{AGGREGATE}")


def read_item(part: Part) -> Item:
    """Return the tree of an item, whose arrays are read later."""
    store, names = part.store, part.names
    header = _read_header(store, names)
    old = read_aggregate(store, prefix=part.prefix) if AGGREGATE in names else []
    entries = join_entries(header.entries, old) if header.entries else old
    if entries and not any(e.kind in _ARRAYS for e in entries):
        values = Files(store, frozenset(names))
    else:
        values = _open_values(store, names, header.ocdbt)
    entries = entries or list_entries(values, names)
    texts = read_strings(store, names)
    arrays = {e.keys: e for e in entries if e.kind in _ARRAYS}
    opened = _open_arrays(values, list(arrays.values()), header, store, texts)
    told = "_sharding" in names
    placements, note = read_placements(store, opened) if told else ({}, None)
    listed = [name for name in names if name.startswith("array_metadatas/process_")]
    impls = read_impls(store, listed[:_PROCESSES])
    with ThreadPoolExecutor(min(8, store.parallel)) as pool:

        def finish(entry: Entry) -> Any:
            return _finish(opened[entry.name], entry, header, placements, impls)

        finished = dict(zip(arrays, pool.map(finish, arrays.values()), strict=True))
    leaves: dict[tuple[Key, ...], Any] = {}
    notes = [note] if note else []
    for entry in entries:
        match entry.kind:
            case "value":
                leaves[entry.keys] = entry.value
            case "unsaved":
                notes.append(f"`{entry.name}` in {store.url} was not saved.")
            case "text":
                if entry.name not in texts:
                    raise Damaged(
                        f"expected a text, found none - at `{entry.name}`, in "
                        f"{store.url}/_strings.json: restore another step"
                    )
                leaves[entry.keys] = texts[entry.name]
            case _:
                leaves[entry.keys] = finished[entry.keys]
    tree = build_tree(leaves, where=store.url)
    if header.types:
        tree = restore_types(tree, header.types, where=f"{store.url}/_METADATA")
    return Item(tree, tuple(notes))


def _read_header(store: Store, names: Sequence[str]) -> _Header:
    if "_METADATA" not in names:
        return _Header(None, 2, None, True, False)
    where = f"{store.url}/_METADATA"
    fields = as_object(read_json(store, "_METADATA"))
    ocdbt, types = fields.get("use_ocdbt"), fields.get("value_metadata_tree")
    return _Header(
        parse_entries(fields.get("tree_metadata"), where=where),
        3 if fields.get("use_zarr3") is True else 2,
        ocdbt if isinstance(ocdbt, bool) else None,
        # Orbax began to store what equals the fill value when it began to say so.
        fields.get("store_array_data_equal_to_fill_value") is not True,
        "tree_metadata" in fields,
        types if isinstance(types, str) else "",
    )


def _open_values(store: Store, names: Sequence[str], ocdbt: bool | None) -> Values:
    """Return where arrays are: the merged database, each process's own, or files."""
    merged = "manifest.ocdbt" in names
    folders = sorted(m[1] for name in names if (m := _DATABASE.fullmatch(name)))
    if AGGREGATE in names and not folders:
        # Names with slashes were taken for folders, with databases of their own.
        nested = [m[1] for name in names if (m := _NESTED.fullmatch(name))]
        if nested:
            first = [""] if merged else []
            return open_databases(store, [*first, *sorted(nested)], names, nested=True)
    if ocdbt is False or (ocdbt is None and not merged and not folders):
        return Files(store, frozenset(names))
    if not merged and not folders:
        raise Damaged(
            f"expected a database, found none - at {store.url}/manifest.ocdbt: restore "
            "another step"
        )
    return open_databases(store, [""] if merged else folders, names)


def _open_arrays(
    values: Values,
    entries: Sequence[Entry],
    header: _Header,
    store: Store,
    texts: Mapping[str, str],
) -> dict[str, Any]:
    """Return Tensors by name, or texts, which old layouts do not tell from them."""
    names = [entry.name for entry in entries]
    counts = Counter(names)
    if twice := next((name for name in names if counts[name] > 1), None):
        raise Damaged(
            "expected a name for each array, found two arrays that Orbax wrote over "
            f"one another - at `{twice}`, in {store.url}: save it anew without dots in "
            "keys"
        )
    document = ".zarray" if header.version == 2 else "zarr.json"
    asked = [join_name(name, document) for name in names]
    found = values.read_all(asked, limit=DOCUMENT_BYTES)
    opened: dict[str, Any] = {}
    for entry, at, data in zip(entries, asked, found, strict=True):
        name = entry.name
        where = f"`{name}`, in {values.where(at)}"
        if data is not None:
            array = parse_zarr(data, version=header.version, where=where)
            source = Source(array, values, name, filled=header.filled)
            check_claim(source, count=values.count)
            opened[name] = Tensor(array.dtype, array.shape, make_lazy(source))
        elif header.entries is None and name in texts:
            opened[name] = texts[name]
        else:
            raise Damaged(
                f"expected an array, found none - at {where}: restore another step"
            )
    return opened


def _finish(
    tensor: Any,
    entry: Entry,
    header: _Header,
    placements: Mapping[str, Placement],
    impls: Mapping[str, str],
) -> Any:
    """Return a tensor with what is told beside, or a Python number as one.

    Old layouts tell no scalars apart: there a number that JAX would have narrowed is
    taken for one of Python.
    """
    if not isinstance(tensor, Tensor):
        return tensor
    placement = placements.get(entry.name)
    if placement and placement.spec and len(placement.spec) <= len(tensor.shape):
        missing = len(tensor.shape) - len(placement.spec)
        spec = (*placement.spec, *((),) * missing)
        tensor = replace(tensor, placement=replace(placement, spec=spec))
    if (impl := impls.get(entry.name)) and tensor.dtype == "uint32":
        return replace(tensor, kind="key", impl=impl)
    if entry.kind == "numpy":
        return replace(tensor, kind="numpy", placement=None)
    if tensor.shape or not isinstance(tensor.data, Lazy):
        return tensor
    if entry.kind == "scalar" or (not header.tells_scalars and tensor.dtype in _WIDE):
        number = tensor.data.read(Box((), ()))
        kind = _PYTHON.get(tensor.dtype)
        return kind(number.item()) if kind else replace(tensor, data=number)
    return tensor
