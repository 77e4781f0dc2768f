"""JSON of files from anywhere: objects, strict and within limits."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, NoReturn, cast

from .._errors import LimitExceeded, Untrusted

JSON_BYTES = 25_000_000
"""The longest header or index that is read: hubs refuse longer headers."""

_MOST_VALUES = 5 << 17
_FOUR = re.compile(rb"[\xf0-\xff]")


def parse_object(text: bytes, where: str, *, what: str) -> dict[str, Any]:
    """Parse a JSON object; Untrusted for keys twice, NaN, nesting or a space before.

    >>> parse_object(b'{"a": [1]}', "a file", what="a header")
    {'a': [1]}
    """

    def refuse(found: str) -> NoReturn:
        raise Untrusted(
            f"expected {what} in strict JSON, found {found} - in {where}: "
            "fetch it again, or write it anew"
        )

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            refuse(f"{show(twice)} twice")
        return made

    if text[:1] != b"{":
        refuse(f"{text[:8]!r} at its start")
    _check_limits(text, where, what)
    try:
        found = json.loads(
            text.decode(),
            object_pairs_hook=unique,
            parse_constant=lambda constant: refuse(constant),
        )
    except RecursionError:
        refuse("it nested too deep")
    except ValueError as error:
        refuse(f"{error!s:.200}")
    return cast("dict[str, Any]", found)


def _check_limits(text: bytes, where: str, what: str) -> None:
    if text.count(b",") + text.count(b"[") + text.count(b"{") > _MOST_VALUES:
        raise LimitExceeded(
            f"expected at most {_MOST_VALUES:,} values in {what}, found more - in "
            f"{where}: split the file"
        )
    # One wide character makes all of Python's text as wide.
    narrow = b"\\u" not in text and (text.isascii() or not _FOUR.search(text))
    limit = JSON_BYTES if narrow else JSON_BYTES // 2
    if len(text) > limit:
        raise LimitExceeded(
            f"expected {what} of at most {limit:,} bytes with such characters, found "
            f"{len(text):,} - in {where}: split the file"
        )


def show(value: Any) -> str:
    """Return a value from a file as messages may hold it: short, and never nested.

    >>> show("a" * 8), show([1, [2]])
    ("'aaaaaaaa'", 'a list')
    """
    if isinstance(value, str):
        return ascii(value if len(value) <= 200 else value[:40] + "...")
    if value is None or isinstance(value, (bool, float)):
        return repr(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 128 else "a huge integer"
    kind = type(value).__name__
    if isinstance(value, list):
        values = cast("list[Any]", value)
        if len(values) <= 8 and not any(isinstance(x, (list, dict)) for x in values):
            return f"[{', '.join(map(show, values))}]"
    return f"a {kind}"


def is_text(value: Any) -> bool:
    """Tell whether a value is text that UTF-8 can say: without lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_numbers(value: Any) -> bool:
    """Tell whether a value is a list of integers from 0 to 2**64."""
    if not isinstance(value, list):
        return False
    return all(type(n) is int and 0 <= n < 1 << 64 for n in cast("list[Any]", value))
