"""Memory for copies of the caller's state, kept warm for a minute between saves.

Fresh memory costs more than the copying: each page is a fault, and cleared. So what a
save gives back serves the next one, and goes when none comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock, Timer
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SLAB_BYTES = 64 << 20
"""Copies lie together in slabs: large pieces of memory come in huge pages."""

_KEPT_SECONDS = 60.0


@dataclass(slots=True)
class _Kept:
    """Slabs that nobody uses, and when they are let go."""

    slabs: list[Array] = field(default_factory=list[Array])
    timer: Timer | None = None
    lock: Any = field(default_factory=Lock)


_kept = _Kept()


def take_slab(nbytes: int) -> Array:
    """Return `nbytes` of memory, of one slab or more than that by themselves."""
    if SLAB_BYTES // 2 < nbytes <= SLAB_BYTES:
        with _kept.lock:
            if _kept.slabs:
                return _kept.slabs.pop()[:nbytes]
        return np.empty(SLAB_BYTES, np.uint8)[:nbytes]
    return np.empty(nbytes, np.uint8)


def give_back(memory: Sequence[Array]) -> None:
    """Keep slabs that are used no more for the next save; free them after a minute."""
    whole = [m.base for m in memory if m.base is not None and len(m.base) == SLAB_BYTES]
    if not whole:
        return
    with _kept.lock:
        _kept.slabs += whole
        if _kept.timer is not None:
            _kept.timer.cancel()
        _kept.timer = Timer(_KEPT_SECONDS, let_go)
        _kept.timer.daemon = True
        try:
            _kept.timer.start()
        except RuntimeError:
            # The interpreter is exiting.
            _kept.slabs.clear()


def let_go() -> None:
    """Free what is kept."""
    with _kept.lock:
        _kept.slabs.clear()
        _kept.timer = None
