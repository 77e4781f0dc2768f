"""One request to TensorStore: its answer before a deadline, or one clean line."""

from __future__ import annotations

import re
from typing import TypeVar

import tensorstore as ts

from ._errors import Outcome, StoreError

_T = TypeVar("_T")

REQUEST_SECONDS = 120.0
"""How long a small request may take, with all its retries."""

_SLOWEST = 1 << 20
"""Bytes a second below which a transfer is given up."""

_SIZES = (
    re.compile(r"total size (\d+)"),
    re.compile(r"value of size (\d+)"),
    re.compile(r"<ActualObjectSize>(\d+)<"),
)

_S3_KEYS = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE or "
    'store_options={"profile": ...}, to what may use this bucket.'
)
_GS_KEYS = (
    "Run `gcloud auth application-default login`, or set "
    "GOOGLE_APPLICATION_CREDENTIALS to the key of an account that may use this bucket."
)
_OTHER = "Check the store, the network and the credentials, then try again."

_REFUSALS: tuple[tuple[str, str, str], ...] = (
    (
        r"NoSuchBucket|bucket does not exist|InvalidBucketName",
        "no such bucket",
        "Create the bucket, or correct its name.",
    ),
    (
        r"AuthorizationHeaderMalformed|PermanentRedirect|TemporaryRedirect|"
        r"IllegalLocationConstraint|aws_region",
        "that the bucket is in another region",
        'Set AWS_REGION or store_options={"region": ...} to the region of the bucket.',
    ),
    (
        r"ExpiredToken|InvalidToken|TokenRefreshRequired",
        "credentials that have expired",
        "",
    ),
    (
        r"InvalidAccessKeyId|SignatureDoesNotMatch|PERMISSION_DENIED|UNAUTHENTICATED|"
        r"AccessDenied|credentials",
        "credentials that are wrong, absent or not enough",
        "",
    ),
)
"""What no retry changes: how TensorStore says it, what that is, and what to do."""


class PastEnd(StoreError):
    """A byte range ends behind the object, whose size the store may have told."""

    def __init__(self, size: int | None) -> None:
        super().__init__("Expected more bytes, found the end of the object.")
        self.size = size


def wait(
    future: ts.Future[_T],
    *,
    where: str,
    size: int = 0,
    outcome: Outcome = "failed",
    seconds: float = REQUEST_SECONDS,
) -> _T:
    """Return a request's result before its deadline, or say in one line why not."""
    seconds += size / _SLOWEST
    told = None
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
    for pattern, found, advice in _REFUSALS:
        if re.search(pattern, reason):
            if not advice:
                advice = _S3_KEYS if "s3://" in where else _GS_KEYS
                # What servers say of keys may repeat them.
                reason = re.sub(r"^(\w+(?:: \w+)?): .*", r"\1", reason)
            raise StoreError(
                f"Expected the store to do as asked, found {found} ({reason}) - at "
                f"{where}. {advice}",
                outcome="refused",
            )
    doubt = "Whether it was done is not known. " if outcome != "failed" else ""
    raise StoreError(
        f"Expected the store to do as asked, found: {reason} - at {where}. {doubt}"
        f"{_OTHER}",
        outcome=outcome,
    )


def _shorten(text: str) -> str:
    """Keep an error's status and first line, without what may hold a secret."""
    line = re.split(r"[\[{\n]", text, maxsplit=1)[0]
    line = re.sub(r"//[^/@\s]*@", "//...@", line)
    return re.sub(r"\?\S+", "?...", line).strip()[:200]
