"""Opening S3, GCS and memory by URL: the one place that builds specifications.

They are built from the caller's checked URL and options alone. TensorStore itself waits
for ever on a connection that stalls, so TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS and
_LIMIT_BYTES are set, unless they are set already, before the first one is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import tensorstore as ts

from ._kv_store import KvStore
from ._request import wait
from ._store_options import StoreOptions, s3_settings

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}[A-Za-z0-9]")


def open_kv_store(
    scheme: str, rest: str, *, options: StoreOptions, context: ts.Context | None
) -> KvStore:
    """Return the store at `scheme://rest`; ValueError when that is no clean URL."""
    bucket, _, prefix = rest.partition("/")
    segments = prefix.rstrip("/").split("/") if prefix else []
    # The text is not shown: it may hold a signature or a password.
    if not _BUCKET.fullmatch(bucket) and not (scheme == "memory" and bucket):
        raise ValueError(f"Expected {scheme}://name/prefix, found no valid name.")
    if re.search(r"[?#@\x00-\x1f\x7f]", rest) or {"", ".", ".."} & set(segments):
        raise ValueError(
            f"Expected {scheme}://name/prefix without ?, #, @ and control characters, "
            "and without empty and dot segments."
        )
    url = "/".join([f"{scheme}://{bucket}", *segments])
    if scheme == "memory":
        spec: dict[str, Any] = {"driver": "memory"}
        spec |= {"path": _folder([bucket, *segments])}
        kv = wait(ts.KvStore.open(spec, context=_memory_context()), where=url)
        return KvStore(kv, url, parallel=2, timeout=options.timeout)
    for name, value in (("TIME_SECONDS", "30"), ("LIMIT_BYTES", "1")):
        os.environ.setdefault(f"TENSORSTORE_CURL_LOW_SPEED_{name}", value)
    limit = {"limit": options.concurrency}
    context = context or ts.Context(
        {"s3_request_concurrency": limit, "gcs_request_concurrency": limit}
    )
    spec = {"driver": "gcs", "bucket": bucket, "path": _folder(segments)}
    if scheme == "s3":
        spec |= {"driver": "s3", **s3_settings(options)}
    kv = wait(ts.KvStore.open(spec, context=context), where=url)
    return KvStore(kv, url, parallel=options.concurrency, timeout=options.timeout)


def _folder(segments: Sequence[str]) -> str:
    return "".join(f"{segment}/" for segment in segments)


@cache
def _memory_context() -> ts.Context:
    # One for the process: each other context would be a memory of its own.
    return ts.Context()
