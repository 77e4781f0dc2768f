"""What one process writes of a step: its cells and its part; process 0 more.

Process 0 also writes the zarr.json of all arrays and packs, for they follow from the
plan; and, once all have written, the manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import layouts
from layouts import CommitRecord, Manifest, Part, WritePlan

from ._catalog import Opened
from ._codec import codec_document
from ._errors import NotFound, Unsupported
from ._source import Source
from ._store import Store
from ._write import Candidates, run_all, write_files, write_objects, write_packs


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller of a save asked for.

    `mirror` is owed what is saved; `beside` is the run's other place, whose steps count
    as taken; with `reuse` objects that the newest step has are not written again.
    """

    step: int | None
    metrics: dict[str, Any]
    overwrite: bool
    codec: str | None
    max_host_bytes: int | None
    in_background: bool = False
    mirror: Store | None = None
    beside: Store | None = None
    keep_local: int = 0
    reuse: bool = False


def check_budget(max_host_bytes: int | None) -> None:
    """Refuse a budget that no work fits in."""
    if max_host_bytes is not None and max_host_bytes < 1 << 20:
        raise ValueError(
            f"expected max_host_bytes of at least 1 MiB, found {max_host_bytes}"
        )


@dataclass(frozen=True, slots=True)
class Written:
    """What a process has written: its cells, as its part describes them.

    Process 0's part lacks the zarr.json files, until they are written.
    """

    manifest: Manifest
    plan: WritePlan
    part: Part
    folders: list[str]


def write_share(
    store: Store,
    draft: Manifest,
    plan: WritePlan,
    sources: Sequence[Source],
    options: Options,
    candidates: Candidates | None = None,
) -> Written:
    """Write the cells that a plan says, durably, but for what is a candidate's."""
    manifest = replace(draft, leaves=plan.leaves, pack_bytes=plan.pack_bytes)
    folders = _folders(plan, _documents(manifest, plan))
    store.make_folders(folders)
    objects = write_objects(
        store,
        plan,
        sources,
        codec=options.codec,
        max_host_bytes=options.max_host_bytes,
        in_background=options.in_background,
        candidates=candidates,
    )
    crcs = write_packs(store, plan, sources)
    part = Part(
        plan.process,
        draft.commit,
        tuple(objects),
        plan.rows,
        crcs,
        hashed=candidates is not None,
    )
    return Written(manifest, plan, part, folders)


def write_part(
    store: Store, written: Written, manifest: Manifest
) -> tuple[Part, bytes]:
    """Write a process's part, process 0's zarr.json files before it, durably."""
    files = write_files(store, _documents(manifest, written.plan))
    part = replace(written.part, files=tuple(files))
    data = part.encode()
    _write_whole(store, layouts.part_name(part.process), data)
    store.sync_folders(written.folders)
    return part, data


def _documents(manifest: Manifest, plan: WritePlan) -> dict[str, Any]:
    """Return the zarr.json files that a process writes."""
    if plan.process:
        return {}
    sizes = layouts.pack_sizes(plan.leaves, limit=plan.pack_bytes)
    return layouts.zarr_documents(manifest, _codecs(plan, manifest.codec), sizes)


def prove_parts(store: Store, manifest: Manifest, mine: bytes) -> None:
    """Read all parts back: what was written must be what was planned, all of it."""

    def read(process: int) -> bytes:
        ref = manifest.parts[process]
        try:
            return store.read(layouts.part_name(process), limit=ref.bytes)
        except NotFound:
            raise Unsupported(
                "expected a folder that all processes share, found nothing of what "
                f"process {process} wrote ({layouts.part_name(process)}) - in "
                f"{store.url}: save to a shared file system or an object store"
            ) from None

    others = range(1, manifest.processes)
    parts = [mine, *run_all(read, others, parallel=max(store.parallel, 8))]
    layouts.check_parts(manifest, enumerate(parts))


def write_manifest(store: Store, run: Store, manifest: Manifest, part: Part) -> Opened:
    """Write the manifest, durably, and return the checkpoint as a reader sees it."""
    encoded = manifest.encode()
    # Whatever a reader would refuse is refused before it is committed.
    layouts.parse_manifest(encoded)
    _write_whole(store, "manifest.json", encoded)
    store.sync_folders([""])
    found = layouts.digest(encoded)
    record = CommitRecord(manifest.step, manifest.commit, len(encoded), found)
    return Opened(store, manifest, len(encoded), found, record, run, {0: part})


def _write_whole(store: Store, name: str, data: bytes) -> None:
    with store.write(name, size=len(data)) as out:
        out.write([data])
        out.close()


def _folders(plan: WritePlan, documents: Iterable[str]) -> list[str]:
    """Return the folders this process writes into, each after those it lies in."""
    found = {"parts", *(name.rpartition("/")[0] for name in documents)} - {""}
    for write in plan.objects:
        leaf = plan.leaves[write.leaf]
        at = leaf.cells.coordinates(write.object)
        store = cast(layouts.Chunked, leaf.store)
        found.add("/".join([store.name, "c", *map(str, at[:-1])]))
    for row in plan.rows:
        found.add(f"{layouts.pack_name(plan.process, row.pack)}/c")
    parents = {parent for name in found for parent in layouts.parents(name)}
    return sorted(found | parents)


def _codecs(plan: WritePlan, codec: str | None) -> dict[str, list[dict[str, Any]]]:
    dtypes = {
        layouts.stored_dtype(leaf.dtype)
        for leaf in plan.leaves
        if leaf.store is not None
    }
    return {d.name: codec_document(codec, d.itemsize)[1:] for d in dtypes}
