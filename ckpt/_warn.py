"""Warnings at the caller's line, and of threads, which nobody would catch."""

from __future__ import annotations

import sys
import warnings


def warn_caller(text: str) -> None:
    """Warn at the innermost line that is not this package's."""
    frame, level = sys._getframe(), 1  # pyright: ignore[reportPrivateUsage]
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("ckpt."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


def warn_from_thread(text: str) -> None:
    """Warn; where that raises, print it: nobody would catch it."""
    try:
        warnings.warn(text, UserWarning, stacklevel=2)
    except UserWarning:
        print(f"ckpt: {text}", file=sys.stderr)
