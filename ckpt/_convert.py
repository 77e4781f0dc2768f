"""Saving what another library's checkpoint holds, leaf by leaf, as a step of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from layouts import Box, Pieces

from ._attempt import save_snapshot
from ._catalog import Opened
from ._checkpoint import read_box
from ._job import ALONE
from ._snapshot import Snapshot
from ._source import Source
from ._store import Store
from ._written import Options


def convert_opened(
    opened: Opened,
    run: Store,
    *,
    overwrite: bool,
    count: Callable[[int], None],
    max_host_bytes: int | None = None,
) -> Opened:
    """Save a foreign checkpoint as a step of a run, read as it is written; return it.

    StepExists when the run has the step already, unless it may be replaced.
    """
    sources = {
        leaf.path: _describe(opened, number, count, max_host_bytes)
        for number, leaf in enumerate(opened.manifest.leaves)
    }
    snapshot = Snapshot(opened.manifest.structure, sources)
    options = Options(
        step=opened.manifest.step,
        metrics={},
        overwrite=overwrite,
        codec=None,
        max_host_bytes=max_host_bytes,
    )
    return save_snapshot(ALONE, run, snapshot, options).opened


def _describe(
    opened: Opened,
    number: int,
    count: Callable[[int], None],
    max_host_bytes: int | None,
) -> Source:
    leaf = opened.manifest.leaves[number]
    if leaf.store is None:
        return Source(leaf)

    def fetch(box: Box) -> np.ndarray[Any, Any]:
        values = read_box(opened, number, box, max_host_bytes=max_host_bytes)
        count(values.nbytes)
        return values

    return Source(replace(leaf, store=None), Pieces(leaf.shape), fetch)
