"""All keys of an OCDBT database, and where their values lie, by reading its tree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from .._errors import CkptError, Damaged, LimitExceeded, NotFound, Unsupported
from .._store import Store
from ._ocdbt_node import Child, Span, Value, most_entries, parse_manifest, parse_node

_MANIFEST_BYTES = 4 << 20
_NODE_BYTES = 64 << 20
_NODES = 1 << 16
_KEYS = 1 << 22
_HEIGHT = 16

_NUMBERED = re.compile(r"manifest\.[0-9a-f]{16}")


def read_database(
    store: Store, folder: str, names: Iterable[str]
) -> dict[bytes, Value]:
    """Return the values of the database in a folder: as they are, or where they lie.

    Paths are those in the store, not yet checked. Damaged, Unsupported or LimitExceeded
    say what is wrong with a manifest or a node.
    """
    prefix = f"{folder}/" if folder else ""
    name = f"{prefix}manifest.ocdbt"
    numbered, root = _read_manifest(store, name)
    if numbered:
        inside = (n.removeprefix(prefix) for n in names if n.startswith(prefix))
        newest = max(filter(_NUMBERED.fullmatch, inside), default=None)
        if newest is None:
            raise Damaged(
                f"expected a numbered manifest, found none - beside {store.url}/"
                f"{name}: restore another step"
            )
        _, root = _read_manifest(store, prefix + newest)
    found: dict[bytes, Value] = {}
    level = [root] if root else []
    seen: set[tuple[str, int]] = set()
    taken = stored = 0
    with ThreadPoolExecutor(min(16, store.parallel)) as pool:
        while level:
            for child in level:
                place = (child.span.path, child.span.offset)
                if place in seen or child.height > _HEIGHT:
                    raise Unsupported(
                        "expected a tree, found a node in two places of it - at "
                        f"{store.url}/{prefix}{child.span.path}: save it anew"
                    )
                seen.add(place)
            below: list[Child] = []
            read = pool.map(partial(_read_node, store, prefix), level)
            for child, entries in zip(level, read, strict=True):
                stored += child.span.length
                taken += len(entries)
                if taken > min(_KEYS, most_entries(stored)):
                    # The others would be waited for otherwise.
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise LimitExceeded(
                        f"expected at most {_KEYS:,} keys, or {most_entries(stored):,} "
                        f"in {stored:,} bytes, found more - in {store.url}/{name}: "
                        "save it in several items"
                    )
                for entry in entries:
                    if isinstance(entry, Child):
                        below.append(entry)
                    else:
                        found[entry[0]] = _placed(entry[1], prefix)
            if len(seen) + len(below) > _NODES:
                raise LimitExceeded(
                    f"expected at most {_NODES:,} nodes, found more - in {store.url}/"
                    f"{name}: save it in several items"
                )
            level = below
    return found


def _placed(value: Value, prefix: str) -> Value:
    if isinstance(value, bytes) or not prefix:
        return value
    return Span(prefix + value.path, "", value.offset, value.length)


def _read_manifest(store: Store, name: str) -> tuple[bool, Child | None]:
    try:
        return parse_manifest(store.read(name, limit=_MANIFEST_BYTES))
    except NotFound:
        raise _damaged("a manifest", "none", f"{store.url}/{name}") from None
    except (ValueError, CkptError) as error:
        raise _explain(error, f"{store.url}/{name}") from None


def _read_node(
    store: Store, prefix: str, child: Child
) -> Sequence[Child | tuple[bytes, Value]]:
    span = child.span
    where = f"{store.url}/{prefix}{span.path} at byte {span.offset:,}"
    if span.length > _NODE_BYTES:
        raise LimitExceeded(
            f"expected a node of at most {_NODE_BYTES:,} bytes, found {span.length:,} "
            f"- at {where}: save it in several items"
        )
    data = read_span(store, Span(prefix + span.path, "", span.offset, span.length))
    try:
        return parse_node(data, child)
    except (ValueError, CkptError) as error:
        raise _explain(error, where) from None


def read_span(store: Store, span: Span) -> bytes:
    """Return bytes of a data file; Damaged where there are none, or not so many."""
    buffer = bytearray(span.length)
    try:
        with store.open(span.path, trusted=True) as reader:
            reader.read_into(span.offset, buffer)
    except NotFound:
        where = f"{store.url}/{span.path}"
        raise _damaged("a part of a database", "none", where) from None
    return bytes(buffer)


def _explain(error: Exception, where: str) -> CkptError:
    kind = type(error) if isinstance(error, CkptError) else Damaged
    if issubclass(kind, Damaged | LimitExceeded | Unsupported):
        text = str(error).rstrip(".").removeprefix("Expected ")
        text = text.removeprefix("expected ")
        return kind(f"expected {text} - at {where}: restore another step")
    return error if isinstance(error, CkptError) else _damaged("", "", where)


def _damaged(expected: str, found: str, where: str) -> Damaged:
    return Damaged(
        f"expected {expected}, found {found} - at {where}: restore another step"
    )
