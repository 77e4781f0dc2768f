"""Python's cyclic collector, held back while many objects are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock


@dataclass(slots=True)
class _Holders:
    """How many want it held back, and whether it ran before the first of them."""

    count: int = 0
    ran: bool = False


_holders, _lock = _Holders(), Lock()


@contextmanager
def hold_collector() -> Generator[None]:
    """Let no collection begin within, in any thread; a caller's own choice stays.

    Otherwise each time that a quarter more objects are there, all of the process are
    looked through, which takes longer than it takes to make them. None is in a cycle:
    what a read that fails has made is freed all the same.
    """
    with _lock:
        if not _holders.count:
            _holders.ran = gc.isenabled()
            gc.disable()
        _holders.count += 1
    try:
        yield
    finally:
        with _lock:
            _holders.count -= 1
            if not _holders.count and _holders.ran:
                gc.enable()
