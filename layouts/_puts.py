"""How many objects each process wrote, which on a store is how many requests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ._leaf import Chunked
from ._manifest import Manifest
from ._pack import pack_sizes
from ._zarr import parents

COMMIT_WRITES = 3
"""The attempt's note, the manifest and the commit record, which process 0 writes."""


def count_writes(manifest: Manifest) -> NDArray[np.int64]:
    """Return how many objects each process wrote for the checkpoint to be committed.

    Its objects, packs and part; process 0 also the zarr.json files and what commits.
    """
    counts = np.ones(manifest.processes, np.int64)
    names: list[str] = []
    elsewhere = set(manifest.reused.leaves if manifest.reused else ())
    for number, leaf in enumerate(manifest.leaves):
        if not isinstance(leaf.store, Chunked):
            continue
        if number not in elsewhere:
            names.append(leaf.store.name)
        if leaf.store.writers:
            spelled = leaf.store.writers.spelled
            counts += np.bincount(spelled, minlength=manifest.processes)
        else:
            counts[0] += leaf.cells.length
    packs = pack_sizes(manifest.leaves, limit=manifest.pack_bytes)
    for name in packs:
        counts[int(name.partition("/")[2].partition("-")[0])] += 1
    nodes = {"", *names, *packs} | {p for n in [*names, *packs] for p in parents(n)}
    counts[0] += len(nodes) + COMMIT_WRITES
    if manifest.reused:
        # The note of what may be reused.
        counts[0] += 1
        counts -= np.array(manifest.reused.objects, np.int64)
    return counts
