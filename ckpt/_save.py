"""Saving a tree: describe the leaves, plan, write, prove, commit."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import jax

import layouts
import pytree
from layouts import CommitRecord, Manifest, Part, PartRef, WriteLimits, WritePlan

from ._catalog import (
    Opened,
    PathLike,
    check_step,
    committed_steps,
    is_checkpoint,
    locate,
    read_record,
)
from ._checkpoint import Checkpoint
from ._codec import codec_document
from ._commit import (
    Attempt,
    commit_record,
    forget_attempt,
    is_committed,
    note_attempt,
    remove_attempt,
)
from ._errors import (
    CkptError,
    CommitUnknown,
    LimitExceeded,
    NotFound,
    StepExists,
    Unsupported,
)
from ._source import Source, describe_leaf
from ._store import Store
from ._write import write_files, write_objects, write_packs

_METRIC_BITS = 8192


@dataclass(frozen=True, slots=True)
class _Options:
    step: int | None
    metrics: dict[str, Any]
    overwrite: bool
    codec: str | None
    max_host_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Snapshot:
    structure: pytree.Structure
    sources: tuple[Source, ...]


def save(
    state: Any,
    mesh: Any = None,
    path: PathLike | None = None,
    *,
    step: int | None = None,
    metrics: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    codec: str | None = None,
    max_host_bytes: int | None = None,
) -> Checkpoint:
    """Save a pytree as one committed step of a run, durable when this returns.

    `mesh` lays out only leaves that have no mesh of their own (replicated); it may be
    None. `path` is a run: $CKPT_PATH or ./checkpoints by default; `step` is the newest
    step + 1 by default. `codec` is None, "zstd", "gzip" or "blosc"; `max_host_bytes`
    bounds the host memory used beyond the data itself. If this raises anything but
    CommitUnknown, readers see the run as it was before (an interrupt may come just
    after the commit); what was written is removed, or is an orphan for `prune`.

    Raises StepExists, Unsupported (naming the leaf), StoreError, CommitUnknown;
    ValueError or TypeError for wrong arguments, before any I/O.

    >>> import jax.numpy as jnp, ckpt
    >>> done = ckpt.save({"w": jnp.ones(3)}, None, "memory://doc-save", step=7)
    >>> done.step, ckpt.steps("memory://doc-save")
    (7, [7])
    """
    options = _check(step, metrics, overwrite, codec, max_host_bytes)
    _refuse_swapped(state, path)
    snapshot = _describe(state, mesh)
    return _save(snapshot, locate(path), options)


def save_async(
    state: Any,
    mesh: Any = None,
    path: PathLike | None = None,
    *,
    step: int | None = None,
    metrics: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    codec: str | None = None,
    max_host_bytes: int | None = None,
) -> Future[Checkpoint]:
    """Copy the state to host memory, then save it in the background as `save` does.

    When this returns, the caller may donate, delete or mutate everything. The future's
    result is the Checkpoint, or raises what `save` would have raised.
    """
    options = _check(step, metrics, overwrite, codec, max_host_bytes)
    _refuse_swapped(state, path)
    snapshot = _describe(state, mesh)
    held = _Snapshot(snapshot.structure, tuple(s.hold() for s in snapshot.sources))
    store = locate(path)
    pool = ThreadPoolExecutor(1, thread_name_prefix="ckpt-save")
    try:
        return pool.submit(_save, held, store, options)
    finally:
        pool.shutdown(wait=False)


def _refuse_swapped(state: Any, path: PathLike | None) -> None:
    """Refuse save(path, state), which would save the text of the path."""
    if path is None and isinstance(state, (str, os.PathLike)):
        raise TypeError(
            f"expected save(state, mesh, path), found {state!r:.80} as state and no "
            "path: pass the tree first"
        )


def _check(
    step: int | None,
    metrics: Mapping[str, Any] | None,
    overwrite: bool,
    codec: str | None,
    max_host_bytes: int | None,
) -> _Options:
    if step is not None:
        step = check_step(step)
    if overwrite and step is None:
        raise ValueError("expected step= with overwrite=True, found none")
    if codec not in layouts.CODECS:
        raise ValueError(
            f"expected codec to be one of {layouts.CODECS}, found {codec!r}"
        )
    check_budget(max_host_bytes)
    return _Options(
        step, _plain_metrics(metrics or {}), overwrite, codec, max_host_bytes
    )


def check_budget(max_host_bytes: int | None) -> None:
    """Refuse a budget that no work fits in."""
    if max_host_bytes is not None and max_host_bytes < 1 << 20:
        raise ValueError(
            f"expected max_host_bytes of at least 1 MiB, found {max_host_bytes}"
        )


def _plain_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics as JSON: numbers, with those JSON lacks as text."""
    plain: dict[str, Any] = {}
    for name, value in metrics.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"expected metrics by name, found the key {name!r}")
        if isinstance(value, (str, bool)) or value is None:
            _check_text(name, value)
            plain[name] = value
            continue
        _check_text(name, "")
        try:
            number = value.item() if hasattr(value, "item") else value
            _check_size(name, number)
            exact = isinstance(number, int)
            plain[name] = number if exact else _plain_float(float(number))
        except (TypeError, ValueError):
            raise TypeError(
                f"expected a number, str, bool or None as metric {name!r}, "
                f"found {type(value).__name__}"
            ) from None
    return plain


def _check_size(name: str, number: Any) -> None:
    """Refuse an integer that no reader would parse."""
    if isinstance(number, int) and number.bit_length() > _METRIC_BITS:
        raise LimitExceeded(
            f"expected at most {_METRIC_BITS} bits, found {number.bit_length()} - in "
            f"metric {name!a:.80}"
        )


def _check_text(name: str, value: Any) -> None:
    """Refuse text that a reader of strict JSON would refuse, once it is committed."""
    try:
        f"{name}{value}".encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"expected valid Unicode, found a lone surrogate - in metric {name!a:.80}"
        ) from None


def _plain_float(value: float) -> Any:
    return value if math.isfinite(value) else {"float": repr(value)}


def _describe(state: Any, mesh: Any) -> _Snapshot:
    if jax.process_count() > 1:
        raise Unsupported(
            f"expected one process, found a job of {jax.process_count()}: this version "
            "saves from one process with any number of devices"
        )
    laid = None if mesh is None else layouts.mesh_layout(mesh)
    try:
        leaves, structure = pytree.flatten(state)
    except pytree.UnsupportedTree as error:
        raise Unsupported(str(error)) from error
    sources = tuple(describe_leaf(path, leaf, laid) for path, leaf in leaves.items())
    return _Snapshot(structure, sources)


def plan_save(sources: Sequence[Source], limits: WriteLimits) -> WritePlan:
    """Return what this process writes of the described leaves."""
    names = layouts.assign_names(s.leaf.path for s in sources)
    laid = [
        s.leaf
        if s.pieces is None
        else layouts.lay_out(s.leaf, names[s.leaf.path], s.pieces, limits=limits)
        for s in sources
    ]
    leaves = layouts.assign_writers(laid, [s.pieces for s in sources])
    return layouts.plan_write(leaves, jax.process_index(), pack_bytes=limits.pack_bytes)


def _save(
    snapshot: _Snapshot,
    run: Store,
    options: _Options,
    *,
    clock: Callable[[], float] = time.time,
) -> Checkpoint:
    if is_checkpoint(run):
        raise ValueError(
            f"expected the path of a run, found a checkpoint - at {run.url}: "
            "save takes the run's path (the folder that holds steps/)"
        )
    step = options.step
    if step is None:
        step = check_step(max(committed_steps(run), default=-1) + 1)
    replaced = _replaced(run, step, overwrite=options.overwrite)
    plan = plan_save(snapshot.sources, WriteLimits.within(options.max_host_bytes))
    attempt = Attempt(step, secrets.token_hex(8), clock())
    run.make_folders(["", "steps"])
    note_attempt(run, attempt)
    try:
        opened = _write_attempt(run, attempt, plan, snapshot, options)
        record = cast(CommitRecord, opened.record)
        if replaced:
            # From the commit on nothing else names the old data.
            old = replaced[0].commit
            note_attempt(run, Attempt(step, old, clock()))
        commit_record(run, record, replaces=replaced[1] if replaced else None)
    except CommitUnknown:
        raise
    except BaseException as error:
        # An interrupt may come when the commit has happened: then the data stays.
        with contextlib.suppress(Exception):
            if not is_committed(run, step, attempt.commit):
                remove_attempt(run, step, attempt.commit)
        if isinstance(error, layouts.LayoutError):
            where = f"what step {step} would be in {run.url}"
            if isinstance(error, layouts.TooLarge):
                raise LimitExceeded(f"{error} - in {where}") from error
            raise Unsupported(f"{error} - in {where}") from error
        raise
    # The save is done and cannot fail any more; `prune` finds what stays behind.
    with contextlib.suppress(CkptError):
        forget_attempt(run, step, attempt.commit)
        if replaced:
            remove_attempt(run, step, replaced[0].commit)
    return Checkpoint(opened)


def _replaced(
    run: Store, step: int, *, overwrite: bool
) -> tuple[CommitRecord, bytes] | None:
    """Return the record an overwrite replaces; refuse to replace without it."""
    if run.size(layouts.record_name(step)) is None:
        return None
    if not overwrite:
        raise StepExists(
            f"expected step {step} to be free, found it committed - in {run.url}: "
            "save another step, or pass overwrite=True"
        )
    with contextlib.suppress(NotFound):
        return read_record(run, step)
    return None


def _write_attempt(
    run: Store,
    attempt: Attempt,
    plan: WritePlan,
    snapshot: _Snapshot,
    options: _Options,
) -> Opened:
    """Write everything but the record, durably, and return it as a reader sees it."""
    store = run.child(attempt.directory)
    folders = _folders(plan)
    store.make_folders(folders)
    objects = write_objects(
        store,
        plan,
        snapshot.sources,
        codec=options.codec,
        max_host_bytes=options.max_host_bytes,
    )
    crcs, sizes = write_packs(store, plan, snapshot.sources)
    draft = Manifest(
        attempt.step,
        attempt.commit,
        snapshot.structure,
        plan.leaves,
        (),
        options.codec,
        options.metrics,
        {"began": attempt.began},
        plan.pack_bytes,
    )
    documents = layouts.zarr_documents(draft, _codecs(plan, options.codec), sizes)
    files = write_files(store, documents)
    part = Part(
        plan.process, attempt.commit, tuple(objects), plan.rows, crcs, tuple(files)
    )
    data = part.encode()
    _write_whole(store, layouts.part_name(plan.process), data)
    manifest = Manifest(
        draft.step,
        draft.commit,
        draft.structure,
        draft.leaves,
        (PartRef(len(data), layouts.digest(data)),),
        draft.codec,
        draft.metrics,
        draft.meta,
        draft.pack_bytes,
    )
    encoded = manifest.encode()
    # Whatever a reader would refuse is refused before it is committed.
    layouts.parse_manifest(encoded)
    _write_whole(store, "manifest.json", encoded)
    store.sync_folders([*folders, ""])
    found = layouts.digest(encoded)
    record = CommitRecord(attempt.step, attempt.commit, len(encoded), found)
    return Opened(store, manifest, found, record, run, {plan.process: part})


def _write_whole(store: Store, name: str, data: bytes) -> None:
    with store.write(name, size=len(data)) as out:
        out.write([data])
        out.close()


def _folders(plan: WritePlan) -> list[str]:
    """Return the folders this process writes into, each after those it lies in."""
    found = {"parts"}
    for write in plan.objects:
        leaf = plan.leaves[write.leaf]
        at = leaf.cells.coordinates(write.object)
        store = cast(layouts.Chunked, leaf.store)
        found.add("/".join([store.name, "c", *map(str, at[:-1])]))
    for row in plan.rows:
        found.add(f"{layouts.pack_name(plan.process, row.pack)}/c")
    parents = {
        "/".join(segments[:n])
        for segments in (name.split("/") for name in found)
        for n in range(1, len(segments))
    }
    return sorted(found | parents)


def _codecs(plan: WritePlan, codec: str | None) -> dict[str, list[dict[str, Any]]]:
    dtypes = {
        layouts.stored_dtype(leaf.dtype)
        for leaf in plan.leaves
        if leaf.store is not None
    }
    return {d.name: codec_document(codec, d.itemsize)[1:] for d in dtypes}
