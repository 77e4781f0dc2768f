"""Copying checkpoints between stores: objects as they are, checked on the way.

A copy has the commit, the manifest and the digest of its original. It is made like a
save: noted, written, committed last. One that was broken off goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from threading import Lock

import numpy as np

from layouts import CommitRecord

from ._catalog import (
    Openable,
    Opened,
    PathLike,
    committed_steps,
    is_checkpoint,
    is_handle,
    locate,
    open_path,
    open_step,
    read_record,
)
from ._checkpoint import Checkpoint
from ._commit import (
    Attempt,
    commit_record,
    forget_attempt,
    note_attempt,
    remove_attempt,
    renew_attempt,
)
from ._errors import CkptError, Damaged, NotFound, StepExists
from ._objects import StoredObject, list_objects, read_whole
from ._store import Store
from ._store_options import GivenOptions
from ._write import run_all
from ._written import check_budget

Progress = Callable[[int, int], None]
"""Takes the bytes that are done and those of all: from any thread, one at a time."""

_HELD_BYTES = 1 << 30
"""How many bytes of objects are held at once, unless the caller says less."""


def copy(
    source: Openable,
    target: PathLike,
    *,
    step: int | None = None,
    overwrite: bool = False,
    max_host_bytes: int | None = None,
    progress: Progress | None = None,
    store_options: GivenOptions | None = None,
) -> tuple[Checkpoint, ...]:
    """Copy the committed steps of a run, or one of them, into the run `target`.

    `source` is a run, a checkpoint's directory or a Checkpoint, `step` one of a run's
    steps (all by default). Every byte is checked as it is read, and each step is
    committed when all of it is there, under the commit and digest that it had. Steps
    that `target` has already are left; what a copy that was killed had written is not
    sent again. `overwrite` replaces other commits of the same steps. `progress` is
    called with the bytes done and the bytes of all steps. Returns the checkpoints of
    `target`, in order of steps.

    Local: any number of processes may copy, but each step only one at a time. Raises
    NotFound, Damaged, StepExists, StoreError, CommitUnknown.

    >>> import jax.numpy as jnp, ckpt
    >>> done = ckpt.save({"w": jnp.ones(3)}, None, "memory://doc-copy/a", step=7)
    >>> [ck.step for ck in ckpt.copy("memory://doc-copy/a", "memory://doc-copy/b")]
    [7]
    >>> ckpt.open("memory://doc-copy/b").digest == done.digest
    True
    """
    check_budget(max_host_bytes)
    run = locate(target, store_options)
    chosen = _choose(source, step, store_options)
    if chosen[0].run is not None and chosen[0].run.url == run.url:
        raise ValueError(f"expected two runs, found {run.url} twice")
    if is_checkpoint(run):
        raise ValueError(
            f"expected the path of a run to copy into, found a checkpoint - at "
            f"{run.url}: give the folder that holds steps/"
        )
    count = Counter(progress, sum(stored_bytes(opened) for opened in chosen))
    return tuple(
        Checkpoint(
            copy_opened(
                opened,
                run,
                overwrite=overwrite,
                max_host_bytes=max_host_bytes,
                count=count,
            )
        )
        for opened in chosen
    )


def _choose(
    source: Openable, step: int | None, options: GivenOptions | None
) -> list[Opened]:
    if step is None and not is_handle(source):
        run = locate(source, options)
        if steps := committed_steps(run):
            return [open_step(run, step) for step in steps]
    return [open_path(source, step, options)]


def stored_bytes(opened: Opened) -> int:
    """Return the bytes of all objects of a checkpoint."""
    return sum(stored.size for stored in list_objects(opened))


class Counter:
    """Counts bytes for the caller's `progress`."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._lock = Lock()

    def add(self, size: int) -> None:
        """Say that so many more bytes are done."""
        with self._lock:
            self._done += size
            if self._progress is not None:
                self._progress(self._done, self._total)


def copy_opened(
    opened: Opened,
    run: Store,
    *,
    overwrite: bool = False,
    max_host_bytes: int | None = None,
    count: Counter | None = None,
) -> Opened:
    """Copy one checkpoint into a run and return the copy."""
    count = count or Counter(None, 0)
    step, commit = opened.manifest.step, opened.manifest.commit
    objects = list(list_objects(opened))
    replaced = _find_replaced(run, step)
    if replaced is not None:
        if replaced[0].commit == commit:
            count.add(sum(stored.size for stored in objects))
            return open_step(run, step)
        if not overwrite:
            raise StepExists(
                f"expected step {step} to be free, found another commit of it - in "
                f"{run.url}: copy another step, or pass overwrite=True"
            )
    attempt = Attempt(step, commit, time.time())
    run.make_folders(["", "steps"])
    renew_attempt(run, attempt)
    _transfer(opened, run.child(attempt.directory), objects, max_host_bytes, count)
    record = CommitRecord(step, commit, objects[-1].size, opened.digest)
    if replaced is not None:
        note_attempt(run, Attempt(step, replaced[0].commit, time.time()))
    commit_record(run, record, replaces=replaced[1] if replaced else None)
    # The step is there; `prune` finds what stays behind.
    with contextlib.suppress(CkptError):
        forget_attempt(run, step, commit)
        if replaced is not None:
            remove_attempt(run, step, replaced[0].commit)
    return open_step(run, step)


def _find_replaced(run: Store, step: int) -> tuple[CommitRecord, bytes] | None:
    with contextlib.suppress(NotFound):
        return read_record(run, step)
    return None


def _transfer(
    opened: Opened,
    store: Store,
    objects: Sequence[StoredObject],
    max_host_bytes: int | None,
    count: Counter,
) -> None:
    """Write all objects that are not there yet, each after those that it describes."""
    folders = _folders(objects)
    store.make_folders(folders)
    there = frozenset(store.list(""))
    largest = max(stored.size for stored in objects)
    # An object is held as it is read, and once more while it is sent.
    held = (max_host_bytes or _HELD_BYTES) // (2 * largest or 1)
    parallel = max(1, min(opened.store.parallel, store.parallel, held))
    if opened.store.is_remote or store.is_remote:
        parallel = max(1, min(max(opened.store.parallel, store.parallel), held))

    def work(stored: StoredObject) -> None:
        if stored.name not in there or not _is_whole(store, stored):
            data = read_whole(opened, stored)
            with store.write(stored.name, size=stored.size) as out:
                out.write([data])
                out.close()
        count.add(stored.size)

    documents = opened.manifest.processes + 1
    first, parts = objects[:-documents], objects[-documents:-1]
    for group in (first, parts, objects[-1:]):
        run_all(work, group, parallel=parallel)
        # The manifest stands for all that it names, also after a power cut.
        store.sync_folders(folders)


def _is_whole(store: Store, stored: StoredObject) -> bool:
    """Tell whether an object is there already; a torn or damaged one is removed.

    A remote store makes objects whole or not at all.
    """
    if store.is_remote:
        return True
    try:
        if store.size(stored.name) == stored.size:
            with store.open(stored.name, size=stored.size) as reader:
                data = bytearray(stored.size)
                reader.read_into(0, data)
                stored.check(np.frombuffer(data, np.uint8))
                reader.sync()
            return True
    except Damaged:
        pass
    store.remove(stored.name)
    return False


def _folders(objects: Iterable[StoredObject]) -> list[str]:
    """Return the folders of objects, each after those it lies in, and the outermost."""
    found = {""}
    for stored in objects:
        segments = stored.name.split("/")[:-1]
        found |= {"/".join(segments[:n]) for n in range(1, len(segments) + 1)}
    return sorted(found)
