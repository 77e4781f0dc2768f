"""How to reach an object store: the caller's `store_options` and the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from ._request import REQUEST_SECONDS

GivenOptions = Mapping[str, Any]
"""Options by name, or such mappings by URL prefix."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How to reach one store; what is None comes from the environment.

    `endpoint`, `region`, `profile`, `anonymous` and `requester_pays` are S3's.
    `concurrency` is how many requests are made at once, `timeout` how many seconds a
    small one may take with its retries (large ones get more: a second a MiB).
    """

    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False
    requester_pays: bool = False
    concurrency: int = 64
    timeout: float = REQUEST_SECONDS


_KINDS: dict[str, tuple[type, ...]] = {
    "endpoint": (str,),
    "region": (str,),
    "profile": (str,),
    "anonymous": (bool,),
    "requester_pays": (bool,),
    "concurrency": (int,),
    "timeout": (int, float),
}


def choose_options(given: GivenOptions | None, url: str) -> StoreOptions:
    """Return the options for a URL: those of the longest prefix, or the only ones.

    >>> choose_options({"s3://a": {"region": "x"}, "gs://": {}}, "s3://a/run").region
    'x'
    """
    chosen: Any = given or {}
    if not isinstance(chosen, Mapping):
        raise TypeError(f"expected store_options to be a dict, found {given!r:.80}")
    if any("://" in str(key) for key in cast("Mapping[Any, Any]", chosen)):
        by_prefix = cast("Mapping[str, Any]", chosen)
        found = [key for key in by_prefix if _begins(url, key)]
        chosen = by_prefix[max(found, key=len)] if found else {}
    return _parse(chosen)


def _begins(url: str, prefix: str) -> bool:
    """Tell whether a URL is at a prefix or below it: `s3://a` is not above `s3://ab`."""
    if prefix.endswith("/"):
        return url.startswith(prefix)
    return url == prefix or url.startswith(f"{prefix}/")


def _parse(given: Any) -> StoreOptions:
    if not isinstance(given, Mapping):
        raise TypeError(f"expected a dict of store options, found {given!r:.80}")
    known = [field.name for field in fields(StoreOptions)]
    values = cast("Mapping[str, Any]", given)
    for name, value in values.items():
        # Neither name nor value is shown: people put secrets where they do not belong.
        if name not in known:
            raise ValueError(
                f"expected store_options of {', '.join(known)}, found another: keys "
                "and secrets come from the environment or a profile"
            )
        if type(value) not in _KINDS[name]:
            raise TypeError(
                f"expected store_options[{name!r}] to be {_KINDS[name][0].__name__}, "
                f"found {type(value).__name__}"
            )
    options = StoreOptions(**values)
    if options.concurrency < 1 or not options.timeout > 0:
        raise ValueError(
            f"expected concurrency and timeout above 0, found {options.concurrency} "
            f"and {options.timeout}"
        )
    if options.endpoint and not re.fullmatch(
        r"https?://[^/?#@\s]+/?", options.endpoint
    ):
        raise ValueError("expected endpoint to be http://host:port or https://host")
    return options


def s3_settings(options: StoreOptions) -> dict[str, Any]:
    """Return what TensorStore's S3 driver must be told."""
    # Without this TensorStore first asks whether the condition holds, in a request of
    # its own, for every store but Amazon's.
    settings: dict[str, Any] = {"use_conditional_write": True}
    endpoint = (
        options.endpoint
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
    )
    region = (
        options.region
        or os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
    )
    if endpoint:
        settings |= {"endpoint": endpoint, "aws_region": region or "us-east-1"}
    elif region:
        settings |= {"aws_region": region}
    if options.requester_pays:
        settings |= {"requester_pays": True}
    if options.anonymous:
        settings |= {"aws_credentials": {"type": "anonymous"}}
    elif options.profile:
        profile = {"type": "profile", "profile": options.profile}
        settings |= {"aws_credentials": profile}
    elif os.environ.get("AWS_ACCESS_KEY_ID"):
        # The default chain also opens files, and complains where there are none.
        settings |= {"aws_credentials": {"type": "environment"}}
    return settings
