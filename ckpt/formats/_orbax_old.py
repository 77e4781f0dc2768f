"""Trees of old Orbax layouts: a msgpack file of them, or no more than names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from .._errors import CkptError, LimitExceeded
from .._store import Store
from ._flax import read_flax
from ._orbax_json import MAX_DEPTH
from ._orbax_tree import Entry, Key
from ._orbax_values import Databases, Values
from ._skim import Skim

AGGREGATE = "checkpoint"
"""The file that holds the structure of a tree, and values of it, in msgpack."""

_ELSEWHERE = "PLACEHOLDER://"
_DOCUMENTS = ("/.zarray", "/zarr.json")


def read_aggregate(store: Store, *, prefix: str) -> list[Entry]:
    """Return the entries of a `checkpoint` file: small values, and names of arrays."""
    where = f"{store.url}/{AGGREGATE}"
    with store.open(AGGREGATE) as reader:
        tree = read_flax(Skim(reader, where=where), name=f"{prefix}{AGGREGATE}")
    found: list[Entry] = []
    pending: list[tuple[tuple[Key, ...], Any]] = [((), tree)]
    while pending:
        keys, value = pending.pop()
        if len(keys) > MAX_DEPTH:
            raise LimitExceeded(
                f"expected at most {MAX_DEPTH} levels, found more - at {where}: "
                "get the checkpoint again"
            )
        if value and isinstance(value, dict):
            items = [*cast("dict[str, Any]", value).items()]
        elif value and isinstance(value, list):
            items = [*enumerate(cast("list[Any]", value))]
        elif isinstance(value, str) and value.startswith(_ELSEWHERE):
            name = value.removeprefix(_ELSEWHERE)
            found.append(Entry(keys, "array", name))
            continue
        else:
            found.append(Entry(keys, "value", ".".join(map(str, keys)), value))
            continue
        # Backwards, since the last is taken first: the order is that of the file.
        pending += [((*keys, key), item) for key, item in reversed(items)]
    return found


def is_aggregate(store: Store, name: str) -> bool:
    """Tell whether a file is such a one: others call theirs the same."""
    try:
        with store.open(name) as reader:
            head = bytearray(min(reader.size, 1))
            reader.read_into(0, head)
            empty = reader.size == 1
    except CkptError:
        return False
    # Maps and lists; pickles begin as an empty map does, and go on.
    return bool(head) and (
        0x80 < head[0] < 0xA0 or 0xDC <= head[0] < 0xE0 or (head[0] == 0x80 and empty)
    )


def join_entries(told: Sequence[Entry], old: Sequence[Entry]) -> list[Entry]:
    """Return the entries of a tree, with those in an aggregate file where they are.

    What is there is marked as not saved. Sequences may be dicts by number there.
    """
    kept = {tuple(map(str, e.keys)): e.value for e in old if e.kind == "value"}
    joined: list[Entry] = []
    for entry in told:
        found = kept.get(tuple(map(str, entry.keys)))
        if found is not None and entry.kind == "unsaved":
            entry = replace(entry, kind="value", value=found)
        joined.append(entry)
    return joined


def list_entries(values: Values, names: Sequence[str]) -> list[Entry]:
    """Return the arrays that are there, by name, where nothing tells of a tree."""
    if isinstance(values, Databases):
        names = list(values.values)
    arrays = {
        name.removesuffix(document)
        for name in names
        for document in _DOCUMENTS
        if name.endswith(document)
    }
    return [Entry((name,), "array", name) for name in sorted(arrays)]
