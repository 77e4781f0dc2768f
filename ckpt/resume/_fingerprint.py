"""What of a data pipeline decides which batch comes next, and how two differ."""

from __future__ import annotations

import re
from typing import Any

_ALWAYS = ("kind", "name", "seed", "batch_size")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SHARD = re.compile(r",? ?shard_options=\w+\([^()]*\)")


def compare_fingerprints(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return a line for each thing in which a pipeline differs from the saved one.

    What only one of them tells is no difference, but for kind, name, seed and
    batch_size.

    >>> from ckpt.resume._fingerprint import compare_fingerprints
    >>> compare_fingerprints({"seed": 0, "records": 8}, {"seed": 1, "records": 8})
    ['seed: expected 0 (saved), found 1']
    """
    wanted = [key for key in _ALWAYS if key in saved or key in now]
    wanted += [key for key in saved if key in now and key not in _ALWAYS]
    return [
        f"{key}: expected {saved.get(key)!r} (saved), found {now.get(key)!r}"
        for key in wanted
        if saved.get(key) != now.get(key)
    ]


def strip_address(text: str) -> str:
    """Return the repr of an object without where it lies in memory."""
    return _ADDRESS.sub("", text)


def strip_shard(text: str) -> str:
    """Return the repr of a sampler without whose share it samples."""
    return strip_address(_SHARD.sub("", text))
