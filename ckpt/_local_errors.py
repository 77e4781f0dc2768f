"""What a file system's refusals mean, in the words of the project."""

from __future__ import annotations

import errno

from ._errors import Outcome, StoreError

_ADVICE = {
    errno.ENOSPC: "Free some space and try again.",
    errno.EDQUOT: "Free some of the quota and try again.",
    errno.EACCES: "Check the permissions there.",
    errno.EPERM: "Check the permissions there.",
    errno.EROFS: "Mount it writable, or choose another path.",
    errno.EIO: "Check the disk before you trust what is on it.",
    errno.EEXIST: "Objects are written once: choose another name.",
    errno.ENOENT: "Make its folder first.",
    errno.EMFILE: "Raise the limit on open files (ulimit -n).",
}
_REFUSALS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EMLINK,
}
"""After these a name was surely not made or moved."""

_FULL = {errno.ENOSPC, errno.EDQUOT}

_DOUBTS = {
    "unknown": "Whether it was done is not known.",
    "unsynced": "It was done, but may not survive a power cut.",
}


def settle(outcome: Outcome, error: OSError) -> Outcome:
    """Return what came of one link or rename that raised."""
    refused = outcome == "unknown" and error.errno in _REFUSALS
    return "failed" if refused else outcome


def describe_failure(
    error: OSError, name: str, *, url: str, outcome: Outcome
) -> StoreError:
    """Return the error of one request on an object, or on the store itself ("")."""
    if outcome == "failed" and error.errno in _FULL:
        outcome = "full"
    reason = error.strerror or type(error).__name__
    advice = _ADVICE.get(error.errno or 0, "")
    if outcome in _DOUBTS:
        advice = f"{_DOUBTS[outcome]} {advice}"
    where = f"at `{name}` in" if name else "in"
    return StoreError(
        f"Expected the file system to do as asked, found: {reason} - {where} "
        f"{url}. {advice}".rstrip(),
        outcome=outcome,
    )
