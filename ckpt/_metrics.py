"""Metrics as JSON that every reader takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ._errors import LimitExceeded

_METRIC_BITS = 8192


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics as JSON: numbers, with those JSON lacks as text."""
    plain: dict[str, Any] = {}
    for name, value in metrics.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"expected metrics by name, found the key {name!r}")
        if isinstance(value, (str, bool)) or value is None:
            _check_text(name, value)
            plain[name] = value
            continue
        _check_text(name, "")
        try:
            number = value.item() if hasattr(value, "item") else value
            _check_size(name, number)
            exact = isinstance(number, int)
            plain[name] = number if exact else _plain_float(float(number))
        except (TypeError, ValueError):
            raise TypeError(
                f"expected a number, str, bool or None as metric {name!r}, "
                f"found {type(value).__name__}"
            ) from None
    return plain


def _check_size(name: str, number: Any) -> None:
    """Refuse an integer that no reader would parse."""
    if isinstance(number, int) and number.bit_length() > _METRIC_BITS:
        raise LimitExceeded(
            f"expected at most {_METRIC_BITS} bits, found {number.bit_length()} - in "
            f"metric {name!a:.80}"
        )


def _check_text(name: str, value: Any) -> None:
    """Refuse text that a reader of strict JSON would refuse, once it is committed."""
    try:
        f"{name}{value}".encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"expected valid Unicode, found a lone surrogate - in metric {name!a:.80}"
        ) from None


def _plain_float(value: float) -> Any:
    return value if math.isfinite(value) else {"float": repr(value)}
