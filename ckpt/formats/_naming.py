"""Errors that say which file they are about."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from .._errors import CkptError, Damaged, StoreError
from .._store import CutShort


@contextmanager
def naming(where: str) -> Generator[None]:
    """Add a place to errors that do not name it; those of a store do already."""
    try:
        yield
    except StoreError:
        raise
    except CkptError as error:
        text = str(error)
        if where in text:
            raise
        kind = Damaged if isinstance(error, CutShort) else type(error)
        raise kind(f"{text[:1].lower()}{text[1:].rstrip('.')} - in {where}") from None
