"""Warnings of threads, which must not end where warnings are errors."""

from __future__ import annotations

import sys
import warnings


def warn_from_thread(text: str) -> None:
    """Warn; where that raises, print it: nobody would catch it."""
    try:
        warnings.warn(text, UserWarning, stacklevel=2)
    except UserWarning:
        print(f"ckpt: {text}", file=sys.stderr)
