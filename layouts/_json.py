"""JSON that may be hostile, and the two-line frame that every document wears.

A framed document is a header line, {format, version, requires, length, sha256}, and
then the body of exactly `length` bytes; the SHA-256 is over the header line without
that field, a newline, and the body.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, NoReturn, cast

from ._errors import (
    CorruptLayout,
    InvalidLayout,
    LayoutError,
    TooLarge,
    UnknownFeature,
    show,
)

VERSION = 1
HEADER_BYTES = 4096
BODY_BYTES = 64 << 20
DOCUMENT_BYTES = HEADER_BYTES + BODY_BYTES + 2
VALUES = 5 << 17
"""At most this many JSON values in one document (a value costs about 60 bytes)."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def dump_json(value: Any) -> bytes:
    """Return compact JSON in ASCII; ValueError if it would hold NaN or infinity."""
    return json.dumps(
        value, ensure_ascii=True, separators=(",", ":"), allow_nan=False
    ).encode()


def parse_json(data: bytes | memoryview, *, limit: int = BODY_BYTES) -> Any:
    """Parse JSON from an untrusted source within limits, or say what is wrong.

    >>> parse_json(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
    layouts.InvalidLayout: expected unique JSON keys, found one twice
    """
    text = bytes(data)
    _check_limits(text, limit)
    try:
        value = json.loads(
            text.decode("utf-8", "strict"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_number,
            parse_float=_finite,
        )
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise TooLarge("expected JSON of reasonable depth, found it too deep") from None
    except LayoutError:
        raise
    except ValueError as error:
        raise InvalidLayout(f"expected strict JSON, found {error!s:.200}") from None
    return value


def _check_limits(text: bytes, limit: int) -> None:
    if len(text) > limit:
        raise TooLarge(f"expected at most {limit} bytes of JSON, found {len(text)}")
    values = text.count(b",") + text.count(b"[") + text.count(b"{")
    if values > VALUES:
        raise TooLarge(f"expected at most {VALUES} JSON values, found about {values}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidLayout("expected unique JSON keys, found one twice")
    return found


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_number(text)


def _refuse_number(text: str) -> NoReturn:
    raise InvalidLayout(f"expected a finite JSON number, found {text:.40}")


def check_depth(value: Any, *, depth: int) -> None:
    """Refuse a JSON value that is nested deeper than `depth`."""
    if isinstance(value, dict):
        inner = list(cast("dict[str, Any]", value).values())
    elif isinstance(value, list):
        inner = cast("list[Any]", value)
    else:
        return
    if not depth:
        raise TooLarge(f"expected fewer nested values, found {show(inner)}")
    for item in inner:
        check_depth(item, depth=depth - 1)


def frame(
    kind: str, body: Any, *, requires: tuple[str, ...] = (), least: int = 0
) -> bytes:
    """Return `body` as a framed document of this kind; TooLarge if none may read it.

    Spaces behind the body make it `least` bytes long.

    >>> unframe("ckpt-demo", frame("ckpt-demo", {"a": 1}))
    {'a': 1}
    """
    data = dump_json(body)
    _check_limits(data, BODY_BYTES)
    framed = _frame(kind, data, requires)
    while len(framed) < least:
        # The header grows by a digit of the length now and then.
        data += b" " * max(1, least - len(framed) - 1)
        framed = _frame(kind, data, requires)
    return framed


def _frame(kind: str, data: bytes, requires: tuple[str, ...]) -> bytes:
    header = {
        "format": kind,
        "version": VERSION,
        "requires": list(requires),
        "length": len(data),
    }
    checked = {**header, "sha256": _frame_digest(header, data)}
    return dump_json(checked) + b"\n" + data + b"\n"


def _frame_digest(header: dict[str, Any], body: bytes | memoryview) -> str:
    """Return the SHA-256 over the header's other fields and the body."""
    hasher = hashlib.sha256(dump_json(header) + b"\n")
    hasher.update(body)
    return hasher.hexdigest()


def unframe(kind: str, data: bytes) -> Any:
    """Check a framed document of this kind, which requires nothing; return its body.

    CorruptLayout for damage, UnknownFeature for a newer format, TooLarge for size.
    """
    return open_frame(kind, data)[0]


def open_frame(
    kind: str, data: bytes, *, known: tuple[str, ...] = ()
) -> tuple[Any, tuple[str, ...]]:
    """Check a framed document; return its body and what it requires, of the `known`."""
    end = data.find(b"\n", 0, HEADER_BYTES)
    try:
        header = parse_json(data[: max(end, 0)], limit=HEADER_BYTES)
        check_depth(header, depth=3)
    except LayoutError:
        raise CorruptLayout(f"expected a {kind} header line, found none") from None
    body = memoryview(data)[end + 1 : -1]
    sound = data[-1:] == b"\n" and data[:end] == dump_json(header)
    if not sound or not isinstance(header, dict) or "sha256" not in header:
        raise CorruptLayout(f"expected a {kind} header and body, found another")
    fields = cast("dict[str, Any]", header)
    sha256, length = fields.pop("sha256"), fields.get("length")
    if type(length) is not int or length != len(body):
        raise CorruptLayout(
            f"expected a {kind} body of {show(length)} bytes, found {len(body)}"
        )
    if sha256 != _frame_digest(fields, body):
        raise CorruptLayout(f"expected the {kind} with its SHA-256, found another")
    return parse_json(body), _check_header(kind, fields, known)


def _check_header(
    kind: str, header: dict[str, Any], known: tuple[str, ...]
) -> tuple[str, ...]:
    version, requires = header.get("version"), header.get("requires")
    if header.get("format") != kind:
        raise InvalidLayout(f"expected {kind}, found {show(header.get('format'))}")
    if type(version) is int and version > VERSION:
        raise UnknownFeature(
            f"expected {kind} version {VERSION}, found {version}: "
            "install a newer ckpt-jax to read it"
        )
    if header.keys() != {"format", "version", "requires", "length"}:
        raise InvalidLayout(
            f"expected the five header fields, found {show(sorted(header))}"
        )
    if type(version) is not int or version != VERSION:
        raise InvalidLayout(f"expected {kind} version {VERSION}, found {show(version)}")
    if not isinstance(requires, list):
        raise InvalidLayout(f"expected a list of features, found {show(requires)}")
    features = cast("list[Any]", requires)
    unknown = [f for f in features if type(f) is not str or f not in known]
    if unknown:
        raise UnknownFeature(
            f"expected features known here, found {', '.join(map(show, unknown))}: "
            "install a newer ckpt-jax to read it"
        )
    if len(set(features)) != len(features):
        raise InvalidLayout(f"expected each feature once, found {show(features)}")
    return tuple(features)


def digest(data: bytes | memoryview) -> str:
    """Return the SHA-256 of data in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
