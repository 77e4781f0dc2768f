"""The commit record: the small file that makes a step exist."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

from ._errors import InvalidLayout
from ._json import frame, unframe

RECORD = "ckpt-commit"
_FIELDS = {"step", "commit", "directory", "manifest"}
_DIRECTORY = re.compile(r"(0|[1-9][0-9]{0,18})-([0-9a-f]{8,64})")
_RECORD_NAME = re.compile(r"(0|[1-9][0-9]{0,18})\.json")
_ATTEMPT_NAME = re.compile(r"(0|[1-9][0-9]{0,18})-([0-9a-f]{8,64})\.attempt")


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """Which directory is a step, and the digest of the manifest it must hold."""

    step: int
    commit: str
    manifest_bytes: int
    manifest_sha256: str

    @property
    def directory(self) -> str:
        """The checkpoint's directory, relative to the run."""
        return attempt_directory(self.step, self.commit)

    def encode(self) -> bytes:
        """Return the record as its file."""
        manifest = [self.manifest_bytes, self.manifest_sha256]
        body = {
            "step": self.step,
            "commit": self.commit,
            "directory": self.directory,
            "manifest": manifest,
        }
        return frame(RECORD, body)


def parse_record(data: bytes, step: int) -> CommitRecord:
    """Read the commit record of a step, refusing whatever is not one."""
    body = unframe(RECORD, data)
    if not isinstance(body, dict) or cast(Any, body).keys() != _FIELDS:
        raise InvalidLayout("expected the commit record's fields, found others")
    fields = cast("dict[str, Any]", body)
    try:
        size, sha256 = fields["manifest"]
        record = CommitRecord(fields["step"], fields["commit"], size, sha256)
        sound = (
            record.step == step
            and type(record.step) is int
            and type(size) is int
            and 0 < size < 1 << 40
            and isinstance(sha256, str)
            and fields["directory"] == record.directory
            and _DIRECTORY.fullmatch(record.directory)
        )
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise InvalidLayout(f"expected the commit record of step {step}, found another")
    return record


def attempt_directory(step: int, commit: str) -> str:
    """Return the name of an attempt's directory, relative to the run."""
    return f"{step}-{commit}"


def record_name(step: int) -> str:
    """Return the name of a step's commit record, relative to the run."""
    return f"steps/{step}.json"


def attempt_name(step: int, commit: str) -> str:
    """Return the name of the note that says an attempt's directory may exist."""
    return f"steps/{step}-{commit}.attempt"


def step_of_record(name: str) -> int | None:
    """Return the step a record's name stands for, or None if it is no record's.

    >>> step_of_record("steps/12.json"), step_of_record("steps/012.json")
    (12, None)
    """
    found = _RECORD_NAME.fullmatch(name.removeprefix("steps/"))
    return int(found[1]) if found else None


def attempt_of_name(name: str) -> tuple[int, str] | None:
    """Return (step, commit) of an attempt's note, or None if it is no such name."""
    found = _ATTEMPT_NAME.fullmatch(name.removeprefix("steps/"))
    return (int(found[1]), found[2]) if found else None
