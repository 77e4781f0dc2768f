"""msgpack documents, read without the payloads of their extension types."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .._errors import Damaged, LimitExceeded, Untrusted
from ._skim import Skim

_DEPTH = 200
_ITEMS = 300_000
_CONTAINER = 4
"""How many values a container counts for, which one byte can make."""
_TEXT = 32 * 1024 * 1024

Extension = Callable[[int, int, int], Any]
"""Returns the value of an extension type, given its code and where its bytes lie."""

Closed = Callable[[dict[str, Any]], Any]
"""Returns what a map that is complete stands for."""


@dataclass(frozen=True, slots=True)
class Binary:
    """The bytes of a `bin` value, left where they are."""

    start: int
    stop: int


@dataclass(slots=True)
class _Open:
    """A map or list of which `left` values are to come."""

    value: Any
    left: int
    is_map: bool
    key: str = ""


@dataclass(slots=True)
class _Scan:
    """Where a document is read, and how much of it may still come."""

    skim: Skim
    at: int
    stop: int
    extension: Extension | None
    closed: Closed | None
    keep: bool
    items: int
    text: int = _TEXT
    stack: list[_Open] = field(default_factory=list[_Open])


def decode_msgpack(
    skim: Skim,
    *,
    at: int = 0,
    stop: int | None = None,
    extension: Extension | None = None,
    closed: Closed | None = None,
    keep: bool = True,
    items: int = _ITEMS,
) -> tuple[Any, int]:
    """Return the value at `at`, and where it ends, which is `stop` at most.

    Lists are lists, maps dicts with str keys; `closed` may put something in a map's
    place. Without `keep`, bytes are Binary: where they lie. Damaged for what is no
    msgpack, Untrusted for keys twice, LimitExceeded for too much of anything.

    >>> decode_msgpack(Skim(b"\\x81\\xa1a\\x93\\x01\\xc0\\xc3", where="a text"))
    ({'a': [1, None, True]}, 7)
    """
    scan = _Scan(
        skim,
        at,
        skim.size if stop is None else stop,
        extension=extension,
        closed=closed,
        keep=keep,
        items=items,
    )
    stack = scan.stack
    while True:
        if stack and stack[-1].is_map:
            stack[-1].key = _read_key(scan, stack[-1].value)
        value = _read_value(scan)
        if type(value) is _Open:
            if value.left:
                stack.append(value)
                continue
            value = _close(scan, value)
        while stack:
            parent = stack[-1]
            if parent.is_map:
                parent.value[parent.key] = value
            else:
                parent.value.append(value)
            parent.left -= 1
            if parent.left:
                break
            value = _close(scan, stack.pop())
        else:
            return value, scan.at


def _close(scan: _Scan, opened: _Open) -> Any:
    if scan.closed is not None and opened.is_map:
        return scan.closed(opened.value)
    return opened.value


def _read_key(scan: _Scan, known: dict[str, Any]) -> str:
    key = _read_value(scan)
    if type(key) is bytes:
        key = _decode(scan, key)
    if type(key) is not str:
        found = type(key.value if type(key) is _Open else key).__name__
        raise _refuse(scan, "keys of text", found)
    if key in known:
        raise Untrusted(
            f"expected each key once, found {key[:80]!a} twice at byte "
            f"{scan.at:,} in {scan.skim.where}: do not trust this file"
        )
    return key


def _read_value(scan: _Scan) -> Any:
    scan.items -= 1
    if scan.items < 0:
        raise _exceed(scan, "as many values as arrays and trees need")
    at = scan.at
    if at >= scan.stop:
        raise _refuse(scan, "a value", "the end of the document")
    code = scan.skim.byte(at)
    scan.at = at + 1
    if code < 0x80:
        return code
    if code >= 0xE0:
        return code - 256
    if code < 0x90:
        return _open(scan, {}, code & 15)
    if code < 0xA0:
        return _open(scan, [], code & 15)
    if code < 0xC0:
        return _decode(scan, _bytes(scan, code & 31))
    return _read_coded(scan, code)


def _read_coded(scan: _Scan, code: int) -> Any:
    match code:
        case 0xC0:
            return None
        case 0xC2 | 0xC3:
            return code == 0xC3
        case 0xC4 | 0xC5 | 0xC6:
            return _binary(scan, _number(scan, 1 << code - 0xC4))
        case 0xC7 | 0xC8 | 0xC9:
            return _extended(scan, _number(scan, 1 << code - 0xC7))
        case 0xCA | 0xCB:
            text = _bytes(scan, 4 if code == 0xCA else 8)
            return struct.unpack(">f" if code == 0xCA else ">d", text)[0]
        case 0xCC | 0xCD | 0xCE | 0xCF:
            return _number(scan, 1 << code - 0xCC)
        case 0xD0 | 0xD1 | 0xD2 | 0xD3:
            return int.from_bytes(_bytes(scan, 1 << code - 0xD0), "big", signed=True)
        case 0xD4 | 0xD5 | 0xD6 | 0xD7 | 0xD8:
            return _extended(scan, 1 << code - 0xD4)
        case 0xD9 | 0xDA | 0xDB:
            return _decode(scan, _bytes(scan, _number(scan, 1 << code - 0xD9)))
        case 0xDC | 0xDD:
            return _open(scan, [], _number(scan, 2 << code - 0xDC))
        case 0xDE | 0xDF:
            return _open(scan, {}, _number(scan, 2 << code - 0xDE))
        case _:
            raise _refuse(scan, "a msgpack value", f"the byte {code:#04x}")


def _open(scan: _Scan, value: Any, count: int) -> _Open:
    # Each value takes a byte at least: what cannot be there is not waited for.
    least = count * (2 if isinstance(value, dict) else 1)
    if least > scan.stop - scan.at:
        raise _refuse(scan, f"{count:,} values", "the end of the document")
    if len(scan.stack) >= _DEPTH:
        raise _exceed(scan, f"{_DEPTH} levels")
    scan.items -= _CONTAINER - 1
    return _Open(value, count, isinstance(value, dict))


def _extended(scan: _Scan, length: int) -> Any:
    _skip(scan, 1)
    code, start = scan.skim.byte(scan.at - 1), scan.at
    code -= 256 if code > 127 else 0
    _skip(scan, length)
    if scan.extension is None:
        raise _refuse(scan, "a plain value", f"extension type {code}")
    return scan.extension(code, start, scan.at)


def _binary(scan: _Scan, length: int) -> Any:
    if scan.keep:
        return _bytes(scan, length)
    start = scan.at
    _skip(scan, length)
    return Binary(start, scan.at)


def _skip(scan: _Scan, length: int) -> None:
    if length > scan.stop - scan.at:
        raise _refuse(scan, f"{length:,} bytes", "the end of the document")
    scan.at += length


def _bytes(scan: _Scan, length: int) -> bytes:
    start = scan.at
    _skip(scan, length)
    scan.text -= length
    if scan.text < 0:
        raise _exceed(scan, f"{_TEXT:,} bytes beside the arrays")
    return scan.skim.take(start, length)


def _number(scan: _Scan, length: int) -> int:
    start = scan.at
    _skip(scan, length)
    return int.from_bytes(scan.skim.take(start, length), "big")


def _decode(scan: _Scan, text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise _refuse(scan, "UTF-8", f"{text[:40]!a}") from None


def _refuse(scan: _Scan, expected: str, found: str) -> Damaged:
    return Damaged(
        f"expected {expected}, found {found} - at byte {scan.at:,} in "
        f"{scan.skim.where}: the file is damaged or of another kind"
    )


def _exceed(scan: _Scan, limit: str) -> LimitExceeded:
    return LimitExceeded(
        f"expected at most {limit}, found more - at byte {scan.at:,} in "
        f"{scan.skim.where}"
    )
