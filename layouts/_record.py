"""The commit record: the small file that makes a step exist."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeGuard

from ._errors import InvalidLayout, show
from ._expect import expect_fields, expect_int, expect_list
from ._json import DOCUMENT_BYTES, frame, unframe

RECORD = "ckpt-commit"
RECORD_BYTES = 512
"""How long a record is, so that a store's answer to one request can hold it."""
_FIELDS = {"step", "commit", "directory", "manifest"}
_COMMIT = re.compile(r"[0-9a-f]{8,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_END = 1 << 63
_RECORD_NAME = re.compile(r"(0|[1-9][0-9]{0,18})\.json")
_ATTEMPT_NAME = re.compile(r"(0|[1-9][0-9]{0,18})-([0-9a-f]{8,64})\.attempt")
_MIRROR = ".mirror"
_REUSE = ".reuse"


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
        return frame(RECORD, body, least=RECORD_BYTES)


def parse_record(data: bytes, step: int) -> CommitRecord:
    """Read the commit record of a step, refusing whatever is not one."""
    fields = expect_fields(unframe(RECORD, data), _FIELDS, "a commit record")
    commit = fields["commit"]
    if type(fields["step"]) is not int or fields["step"] != step:
        raise InvalidLayout(
            f"expected the record of step {step}, found that of {show(fields['step'])}"
        )
    if not is_commit(commit):
        raise InvalidLayout(f"expected a commit id, found {show(commit)}")
    size, sha256 = parse_reference(fields["manifest"], "the manifest")
    record = CommitRecord(step, commit, size, sha256)
    if fields["directory"] != record.directory:
        raise InvalidLayout(
            f"expected the directory {record.directory}, "
            f"found {show(fields['directory'])}"
        )
    return record


def parse_reference(value: Any, what: str) -> tuple[int, str]:
    """Read the (bytes, SHA-256) by which one document names another."""
    size, sha256 = expect_list(value, f"the bytes and SHA-256 of {what}", length=2)
    size = expect_int(size, f"the bytes of {what}", least=1, below=DOCUMENT_BYTES + 1)
    if type(sha256) is not str or not _SHA256.fullmatch(sha256):
        raise InvalidLayout(f"expected the SHA-256 of {what}, found {show(sha256)}")
    return size, sha256


def is_commit(value: Any) -> TypeGuard[str]:
    """Tell whether a value is a commit id."""
    return isinstance(value, str) and bool(_COMMIT.fullmatch(value))


def attempt_directory(step: int, commit: str) -> str:
    """Return the name of an attempt's directory, relative to the run."""
    return f"{step}-{commit}"


def attempt_of_directory(name: str) -> tuple[int, str] | None:
    """Return (step, commit) of an attempt's directory, or None if it is none.

    >>> attempt_of_directory("12-0123456789abcdef")
    (12, '0123456789abcdef')
    """
    return attempt_of_name(f"{name}.attempt")


def record_name(step: int) -> str:
    """Return the name of a step's commit record, relative to the run."""
    return f"steps/{step}.json"


def attempt_name(step: int, commit: str) -> str:
    """Return the name of the note that says an attempt's directory may exist."""
    return f"steps/{step}-{commit}.attempt"


def mirror_name(step: int, commit: str) -> str:
    """Return the name of the note that says a commit is to be copied to a mirror."""
    return f"steps/{step}-{commit}{_MIRROR}"


def mirror_of_name(name: str) -> tuple[int, str] | None:
    """Return (step, commit) of a note for a mirror, or None if it is no such name."""
    return _parse_note(name, _MIRROR)


def reuse_name(step: int, commit: str) -> str:
    """Return the name of the note that says what directories a commit may need."""
    return f"steps/{step}-{commit}{_REUSE}"


def reuse_of_name(name: str) -> tuple[int, str] | None:
    """Return (step, commit) of a note of what is reused, or None if it is none."""
    return _parse_note(name, _REUSE)


def _parse_note(name: str, suffix: str) -> tuple[int, str] | None:
    stem = name.removesuffix(suffix)
    return None if stem == name else attempt_of_name(f"{stem}.attempt")


def step_of_record(name: str) -> int | None:
    """Return the step a record's name stands for, or None if it is no record's.

    >>> step_of_record("steps/12.json"), step_of_record("steps/012.json")
    (12, None)
    """
    found = _RECORD_NAME.fullmatch(name.removeprefix("steps/"))
    step = int(found[1]) if found else _END
    return step if step < _END else None


def attempt_of_name(name: str) -> tuple[int, str] | None:
    """Return (step, commit) of an attempt's note, or None if it is no such name."""
    found = _ATTEMPT_NAME.fullmatch(name.removeprefix("steps/"))
    return (int(found[1]), found[2]) if found and int(found[1]) < _END else None
