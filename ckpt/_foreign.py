"""What the readers of checkpoints that other libraries wrote give to the core."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from layouts import Box

from ._store import Store
from ._store_options import GivenOptions

if TYPE_CHECKING:
    from ._catalog import Opened

Goals = tuple[int, Sequence[Box], Sequence[Any]]
"""A leaf's number, boxes of it that are wanted, and a buffer for each."""


class Foreign(Protocol):
    """Reads the values of a checkpoint that another library wrote."""

    @property
    def format(self) -> str:
        """What it is: "safetensors", say."""
        ...

    def fill(
        self, goals: Sequence[Goals], *, parallel: int, max_host_bytes: int | None
    ) -> None:
        """Fill the buffers, which have the dtype that a leaf is stored in.

        What is held beside them stays within half of `max_host_bytes`, but for one
        chunk, or one compressed stream, which is held whole.
        """
        ...

    def checks(self) -> Iterator[tuple[str, int, Callable[[], None]]]:
        """Yield name, bytes and check of each thing that can be found damaged."""
        ...


def is_file(store: Store) -> bool:
    """Tell whether a path is one file, which no run of ours is."""
    return not store.is_remote and os.path.isfile(store.url)


def open_foreign(
    path: str | os.PathLike[str], step: int | None, options: GivenOptions | None
) -> Opened | None:
    """Open what another library wrote, if that is what lies at a path."""
    # Only here are the formats needed, and they need the core.
    from .formats._open import open_foreign

    return open_foreign(path, step, options)


def list_foreign_steps(
    path: str | os.PathLike[str], options: GivenOptions | None
) -> list[int]:
    """Return the finished steps of a run of another library, none where it is none."""
    from .formats._detect import list_steps

    return list_steps(path, options)
