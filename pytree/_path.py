"""Leaf paths: an injective text for a sequence of container keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias, cast
from urllib.parse import quote, unquote_to_bytes

Key: TypeAlias = str | int | float | bool | None
"""What names a child: a dict key, a field's name or an index."""

# Names that no number and no constant starts like: most keys take this way only.
_PLAIN = re.compile(r"[A-EGHJ-MO-SU-Za-hj-mo-z_][A-Za-z0-9_.-]*")
_CONSTANTS: dict[str, Key] = {"True": True, "False": False, "None": None}


def format_path(keys: Sequence[Key]) -> str:
    """Return the text of a path; different key sequences give different texts.

    Integers, floats, True, False and None stand bare. Strings that would read as one
    of those, and the empty one, are quoted; in all strings whatever is not a letter,
    a digit or one of `_.-` is percent-escaped. The root leaf is "".

    Raises ValueError for a lone surrogate or an integer above 4300 digits, and
    TypeError for any other type of key, subclasses included.

    >>> format_path(["layers", 0, "w/b", "0", 0.5, None, ""])
    "layers/0/w%2Fb/'0'/0.5/None/''"
    """
    return "/".join([format_key(key) for key in keys])


def format_key(key: Key) -> str:
    """Return one segment of a path."""
    # Exact types: a subclass would come back as the plain one.
    kind: type[object] = type(key)
    if kind is str:
        text = cast(str, key)
        return text if _PLAIN.fullmatch(text) else _format_text(text)
    if kind is int:
        return str(key)
    if kind is float:
        return repr(key).replace("+", "%2B")
    if kind is bool or key is None:
        return repr(key)
    raise TypeError(
        f"Expected a key of type str, int, float, bool or None, found {kind.__name__}."
    )


def parse_path(text: str) -> tuple[Key, ...]:
    """Return the keys of a path, the inverse of `format_path`.

    Raises ValueError for a text that `format_path` never makes.

    >>> parse_path("layers/0/w%2Fb/'0'")
    ('layers', 0, 'w/b', '0')
    """
    if text == "":
        return ()
    return tuple([_parse_key(segment, text) for segment in text.split("/")])


def _format_text(key: str) -> str:
    """Escape a string key, and quote it where it would read as another type."""
    if key in (".", ".."):
        return "%2E" * len(key)
    try:
        escaped = quote(key, safe="").replace("~", "%7E")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"Expected a key that is valid Unicode, found {key!a}. "
            "Remove its lone surrogates."
        ) from error
    return f"'{escaped}'" if _reads_otherwise(key) else escaped


def _reads_otherwise(key: str) -> bool:
    """Say whether anybody might take the string for a number or a constant."""
    if key == "" or key in _CONSTANTS:
        return True
    # Every integer int() accepts float() accepts too, and no limit of digits applies.
    try:
        float(key)
    except ValueError:
        return False
    return True


def _parse_key(segment: str, path: str) -> Key:
    if _PLAIN.fullmatch(segment):
        return segment
    # One way to write each key: what does not come back the same is no path of ours.
    try:
        key = _read_key(segment)
        same = format_key(key) == segment
    except ValueError:
        key, same = None, False
    if not same:
        raise ValueError(
            f"Expected a leaf path, found {path!a}: the segment {segment!a} is not how "
            "any key is written. Make paths with format_path."
        )
    return key


def _read_key(segment: str) -> Key:
    quoted = len(segment) >= 2 and segment[0] == segment[-1] == "'"
    text = unquote_to_bytes(segment[1:-1] if quoted else segment).decode(
        "utf-8", "replace"
    )
    if quoted or not _reads_otherwise(text):
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    return float(text) if text else text
