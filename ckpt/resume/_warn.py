"""Warnings at the caller's line, however deep in the package they arise."""

from __future__ import annotations

import sys
import warnings


def warn_caller(text: str) -> None:
    """Warn at the innermost line that is not this package's."""
    frame, level = sys._getframe(), 1  # pyright: ignore[reportPrivateUsage]
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("ckpt."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)
