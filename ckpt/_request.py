"""One request to TensorStore: its answer before a deadline, or one clean line."""

from __future__ import annotations

import re
from typing import TypeVar

import tensorstore as ts

from ._errors import Outcome, StoreError

_T = TypeVar("_T")

_DEADLINE_SECONDS = 120.0
_SLOWEST = 1 << 20
"""Bytes a second below which a transfer is given up."""

_SIZES = (
    re.compile(r"total size (\d+)"),
    re.compile(r"value of size (\d+)"),
    re.compile(r"<ActualObjectSize>(\d+)<"),
)


class PastEnd(StoreError):
    """A byte range ends behind the object, whose size the store may have told."""

    def __init__(self, size: int | None) -> None:
        super().__init__("Expected more bytes, found the end of the object.")
        self.size = size


def wait(
    future: ts.Future[_T], *, where: str, size: int = 0, outcome: Outcome = "failed"
) -> _T:
    """Return a request's result before its deadline, or say in one line why not."""
    seconds = _DEADLINE_SECONDS + size / _SLOWEST
    told = None
    doubt = "Whether it was done is not known. " if outcome != "failed" else ""
    try:
        return future.result(timeout=seconds)
    except TimeoutError:
        future.cancel()  # pyright: ignore[reportUnknownMemberType]
        reason = f"no answer in {seconds:.0f} s"
    except Exception as error:
        told = str(error)
        reason = _shorten(told)
    # Raised out here, unchained: TensorStore's text holds the whole specification.
    if told and told.startswith("OUT_OF_RANGE"):
        size_told = next(filter(None, (size.search(told) for size in _SIZES)), None)
        raise PastEnd(int(size_told[1]) if size_told else None)
    raise StoreError(
        f"Expected the store to do as asked, found: {reason} - at {where}. {doubt}"
        "Check the store, the network and the credentials, then try again.",
        outcome=outcome,
    )


def _shorten(text: str) -> str:
    """Keep an error's status and first line, without what may hold a secret."""
    line = re.split(r"[\[{\n]", text, maxsplit=1)[0]
    return re.sub(r"\?\S+", "?...", line).strip()[:200]
