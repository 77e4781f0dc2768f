"""The node that stands where a tree holds nothing."""

from __future__ import annotations

from typing import Any, Final, final

import jax


@final
class Absent:
    """The type of `ABSENT`, a pytree node without children; there is one of it."""

    __slots__ = ()

    def __new__(cls) -> Absent:
        """Return the one there is."""
        return ABSENT

    def __repr__(self) -> str:
        return "ABSENT"

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT: Final[Absent] = object.__new__(Absent)
"""Stands for a leaf that was not selected or has no value.

>>> import jax
>>> jax.tree_util.tree_leaves({"a": 1, "b": ABSENT})
[1]
"""


def _flatten(_: Absent) -> tuple[tuple[Any, ...], None]:
    return (), None


def _unflatten(_: object, __: object) -> Absent:
    return ABSENT


jax.tree_util.register_pytree_node(  # pyright: ignore[reportUnknownMemberType]
    Absent, _flatten, _unflatten
)
