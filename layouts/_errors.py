"""What can be wrong with a layout that comes from outside.

LayoutError (ValueError)
    InvalidLayout     a manifest or part says something impossible or hostile
        CorruptLayout its bytes are not the ones that were written
    UnknownFeature    a newer format, or a feature this version does not know
    TooLarge          a size, depth or count limit, checked before allocation
"""

from __future__ import annotations

import reprlib

_REPR = reprlib.Repr()
_REPR.maxlevel = 2
_REPR.maxstring = _REPR.maxother = 80


class LayoutError(ValueError):
    """The root: something about a layout is wrong."""

    __module__ = "layouts"


class InvalidLayout(LayoutError):
    """A manifest, part or record breaks a rule of the format."""

    __module__ = "layouts"


class CorruptLayout(InvalidLayout):
    """The bytes of a document do not have the length or digest they should."""

    __module__ = "layouts"


class UnknownFeature(LayoutError):
    """The format version, or an entry of `requires`, is not known here."""

    __module__ = "layouts"


class TooLarge(LayoutError):
    """A limit on size, depth or count was passed before anything was built."""

    __module__ = "layouts"


def show(value: object) -> str:
    """Return a value for a message: short, however large or deeply nested it is.

    >>> show([[[[[0]]]]]), len(show("x" * 10**6))
    ('[[[...]]]', 80)
    """
    return _REPR.repr(value)[:120]


def show_path(path: str) -> str:
    """Return a leaf's path for a message: as it is, unless it is long or strange."""
    return path if path.isprintable() and len(path) <= 200 else show(path)
