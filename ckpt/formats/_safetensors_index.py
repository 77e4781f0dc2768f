"""The index of a sharded set: which file has which tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from .._errors import LimitExceeded, Unsupported, Untrusted
from .._store import Store, check_name
from ._json import JSON_BYTES, is_text, parse_object, show

_MARK = ".safetensors.index"
_FIRST = ("model", "diffusion_pytorch_model", "adapter_model")


def find_index(names: Sequence[str], url: str) -> tuple[str, tuple[str, ...]]:
    """Return the index of a folder, "" without, and what to say of others.

    >>> find_index(["model.safetensors.index.json", "model.safetensors"], "a folder")
    ('model.safetensors.index.json', ())
    """
    found = [n for n in names if _MARK in n and n.endswith(".json")]
    if len(found) < 2:
        return (found[0] if found else ""), ()
    plain = (f"{prefix}{_MARK}.json" for prefix in _FIRST)
    chosen = next((n for n in plain if n in found), "")
    if not chosen:
        raise Unsupported(
            f"expected one index, found {', '.join(found[:20])} - in {url}: give the "
            "path of one"
        )
    others = ", ".join(n for n in found[:20] if n != chosen)
    return chosen, (f"{others}: passed over for {chosen}",)


def read_index(store: Store, name: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Read an index; return the file of each tensor, and its metadata.

    Untrusted where a file is anything else than one beside the index.
    """
    where = f"{store.url}/{name}"
    try:
        text = store.read(name, limit=JSON_BYTES)
    except LimitExceeded as error:
        raise LimitExceeded(f"{error} It is the index of a sharded set.") from None
    found = parse_object(text, where, what="an index")
    weights, metadata = found.get("weight_map"), found.get("metadata")
    if not isinstance(weights, dict):
        raise Untrusted(
            f"expected weight_map of names, found {show(weights)} - in {where}"
        )
    files = cast("dict[str, Any]", weights)
    if "__metadata__" in files or not all(map(is_text, files)):
        raise Untrusted(f"expected names of tensors, found others - in {where}")
    for file in dict.fromkeys(map(_hashable, files.values())):
        _check_file(file, where)
    told = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
    return cast("dict[str, str]", files), told


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str) else show(value)


def _check_file(name: str, where: str) -> None:
    try:
        fine = name.endswith(".safetensors") and "/" not in check_name(name)
    except Untrusted:
        fine = False
    if not fine:
        raise Untrusted(
            f"expected files .safetensors beside the index, found {show(name)} - in "
            f"{where}"
        )
