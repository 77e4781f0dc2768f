"""What Orbax keeps beside a tree: texts, kinds of PRNG keys, and shardings."""

from __future__ import annotations

import base64
import re
from collections.abc import Container, Sequence
from typing import Any, cast

from layouts import Placement, parse_json, placement_from_json

from .._errors import Damaged, LimitExceeded
from .._store import Store
from ._orbax_json import JSON_BYTES, as_object, parse, read_json, untrusted

_TEXTS = 64
"""Files of texts that are read: there is one, or a few of them."""

_DEVICES = re.compile(rb',\s*\\"device_mesh\\":\s*\{[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+\}')
"""All devices of the mesh, once more for each array: never needed here."""


def read_strings(store: Store, names: Sequence[str]) -> dict[str, str]:
    """Return the text leaves of an item, by name.

    Old layouts keep all of them in the folder of one of them.
    """
    texts: dict[str, str] = {}
    for name in [n for n in names if n.rpartition("/")[2] == "_strings.json"][:_TEXTS]:
        found = as_object(read_json(store, name))
        if not all(isinstance(text, str) for text in found.values()):
            raise untrusted("texts by name", found, f"{store.url}/{name}")
        texts |= found
    return texts


def read_impls(store: Store, names: list[str]) -> dict[str, str]:
    """Return the implementations of typed PRNG keys, by the name of their array."""
    found: dict[str, str] = {}
    for name in names:
        listed = as_object(read_json(store, name)).get("array_metadatas")
        if not isinstance(listed, list):
            raise untrusted("array_metadatas", None, f"{store.url}/{name}")
        for item in cast("list[Any]", listed):
            match item:
                case {
                    "array_metadata": {
                        "param_name": str(param),
                        "ext_metadata": {"random_key_impl": str(impl)},
                    }
                }:
                    if not re.fullmatch(r"\w{1,64}", impl):
                        raise untrusted("a kind of key", impl, f"{store.url}/{name}")
                    found[param] = impl
                case _:
                    pass
    return found


def read_placements(
    store: Store, known: Container[str]
) -> tuple[dict[str, Placement], str | None]:
    """Return how arrays were laid out, by name, and a note where that is not told.

    `known` are the names of all arrays.
    """
    where = f"{store.url}/_sharding"
    try:
        data = _DEVICES.sub(b"", store.read("_sharding", limit=JSON_BYTES))
        document = parse(data, where=where)
    except (LimitExceeded, Damaged) as error:
        return {}, f"Saved shardings are passed over: {error}"
    found: dict[str, Placement] = {}
    passed = 0
    for key, text in as_object(document).items():
        if text == "":
            # So the first that wrote them said that an array was on one device.
            continue
        try:
            placement = _placement(parse_json(text.encode(), limit=1 << 20))
            if placement is not None:
                found[_name(key, known)] = placement
        except (ValueError, TypeError, LookupError, AttributeError):
            passed += 1
    note = f"{passed} saved shardings in {where} cannot be read."
    return found, note if passed else None


def _name(key: str, known: Container[str]) -> str:
    """Return the name of an array, which old layouts say as it is."""
    try:
        found = base64.urlsafe_b64decode(key).decode()
    except ValueError:
        return key
    return found if found in known else key


def _placement(value: dict[str, Any]) -> Placement | None:
    """Return one sharding; LayoutError or another ValueError unless it makes sense."""
    if value.get("sharding_type") != "NamedSharding":
        return None
    names, sizes = value["axis_names"], value["shape"]
    types = value.get("axis_types") or ["AxisType.Auto"] * len(names)
    return placement_from_json(
        {
            "mesh": {
                "axes": [list(axis) for axis in zip(names, sizes, strict=True)],
                "types": [kind.removeprefix("AxisType.") for kind in types],
            },
            "spec": [
                [] if axes is None else [axes] if isinstance(axes, str) else axes
                for axes in value["partition_spec"]
            ],
            "memory": value.get("memory_kind"),
        }
    )
