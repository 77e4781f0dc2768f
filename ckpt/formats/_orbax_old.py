"""Trees of old Orbax layouts: a msgpack file of them, or no more than names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from .._errors import LimitExceeded
from .._store import Store
from ._flax import read_flax
from ._orbax_json import MAX_DEPTH
from ._orbax_tree import Entry, Key
from ._orbax_values import Databases, Values
from ._skim import Skim

_ELSEWHERE = "PLACEHOLDER://"
_DOCUMENTS = ("/.zarray", "/zarr.json")


def read_aggregate(store: Store, *, prefix: str) -> list[Entry]:
    """Return the entries of a `checkpoint` file: small values, and names of arrays."""
    where = f"{store.url}/checkpoint"
    with store.open("checkpoint") as reader:
        tree = read_flax(Skim(reader, where=where), name=f"{prefix}checkpoint")
    found: list[Entry] = []
    pending: list[tuple[tuple[Key, ...], Any]] = [((), tree)]
    while pending:
        keys, value = pending.pop()
        if len(keys) > MAX_DEPTH:
            raise LimitExceeded(
                f"Expected at most {MAX_DEPTH} levels, found more - at {where}. "
                "Get the checkpoint again."
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
