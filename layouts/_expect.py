"""Checks of the kinds of JSON values, for documents that may be hostile.

JSON has one kind of number and Python counts True as 1: types are compared exactly.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from ._errors import InvalidLayout, show


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Tell whether a value is a JSON object."""
    return type(value) is dict


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return type(value) is list


def expect_list(value: Any, what: str, *, length: int | None = None) -> list[Any]:
    """Return a value that is a list, of this length if one is given."""
    if _is_list(value) and (length is None or len(value) == length):
        return value
    count = "" if length is None else f"{length} "
    raise InvalidLayout(f"expected a list of {count}{what}, found {show(value)}")


def expect_fields(value: Any, names: set[str], what: str) -> dict[str, Any]:
    """Return a value that is an object with exactly these fields."""
    if is_object(value) and value.keys() == names:
        return value
    raise InvalidLayout(
        f"expected {what} with the fields {', '.join(sorted(names))}, "
        f"found {show(value)}"
    )


def expect_int(value: Any, what: str, *, least: int = 0, below: int) -> int:
    """Return a value that is an int from `least` to under `below`."""
    if type(value) is int and least <= value < below:
        return value
    raise InvalidLayout(
        f"expected {what} from {least} to under {below}, found {show(value)}"
    )
