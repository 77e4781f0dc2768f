"""JSON of an Orbax checkpoint: within limits, and NaN and infinities as they are."""

from __future__ import annotations

import json
from typing import Any, cast

from .._errors import Damaged, LimitExceeded, Untrusted
from .._store import Store

JSON_BYTES = 64 << 20
MAX_DEPTH = 64

_VALUES = 5 << 17
"""At most this many JSON values in one object: each is about 60 bytes or more."""


def read_json(store: Store, name: str) -> Any:
    """Return a JSON object of a store; Damaged, Untrusted or LimitExceeded say why not.

    NotFound when there is none.
    """
    data = store.read(name, limit=JSON_BYTES)
    return parse(data, where=f"{store.url}/{name}")


def parse(data: bytes, *, where: str) -> Any:
    """Return what JSON of a checkpoint says: at most 64 levels of text in Unicode.

    >>> parse(b'{"loss": NaN}', where="metrics")
    {'loss': nan}
    """
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    if values > _VALUES:
        raise LimitExceeded(
            f"expected at most {_VALUES:,} JSON values, found about {values:,} - at "
            f"{where}: save it in several items"
        )
    try:
        value = json.loads(data.decode())
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"expected JSON, found none ({error!s:.80}) - at {where}: restore another "
            "step"
        ) from None
    _check_depth(value, where)
    return value


def _check_depth(value: Any, where: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += cast("dict[str, Any]", item).values()
            elif isinstance(item, list):
                inner += cast("list[Any]", item)
        level = inner
    if level:
        raise LimitExceeded(
            f"expected at most {MAX_DEPTH} nested JSON values, found more - at "
            f"{where}: get the checkpoint again"
        )


def as_object(value: Any) -> dict[str, Any]:
    """Return a JSON object as it is, and an empty one for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def untrusted(expected: str, found: object, where: str) -> Untrusted:
    return Untrusted(
        f"expected {expected}, found {found!r:.80} - at {where}: no writer makes this, "
        "get the checkpoint again"
    )
