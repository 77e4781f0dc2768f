"""What one process of a job raised, as the others raise it."""

from __future__ import annotations

import traceback
from typing import Any

from ._errors import BarrierTimeout, CkptError, StoreError

Post = dict[str, Any]
"""JSON that one process has to say."""

_KINDS = {
    kind.__name__: kind
    for kind in CkptError.__subclasses__()
    if kind.__module__ == CkptError.__module__
}


def report_failure(process: int, error: BaseException) -> Post:
    """Return what the others need to know of an error."""
    kind = type(error).__name__
    known = isinstance(error, CkptError)
    return {
        "process": process,
        "kind": kind if known else "",
        "message": str(error) if known else f"{kind}: {error}",
        "outcome": getattr(error, "outcome", "failed"),
    }


def forget_frames(error: BaseException) -> None:
    """Drop the local values of an error's frames and of those that led to it."""
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__


def rebuild_failure(failed: Post) -> CkptError:
    """Return what another process raised, as this one raises it."""
    kind, text = failed["kind"], failed["message"]
    if kind == "BarrierTimeout":
        return BarrierTimeout(text)
    where = f"process {failed['process']}"
    if kind == "StoreError":
        return StoreError(f"{text} ({where})", outcome=failed["outcome"])
    if kind in _KINDS:
        return _KINDS[kind](f"{text} ({where})")
    return CkptError(f"expected all processes to succeed, found {where}: {text}")
