"""Copying checkpoints between stores: objects as they are, checked on the way.

A copy has the commit, the manifest and the digest of its original. It is made like a
save: noted, written, committed last. One that was broken off goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from threading import Lock

import layouts
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
    read_anywhere,
    read_record,
)
from ._checkpoint import Checkpoint
from ._commit import commit_record, remove_attempt
from ._convert import convert_opened
from ._errors import CkptError, Damaged, NotFound, StepExists, StoreError
from ._foreign import is_file
from ._local_store import LocalStore
from ._notes import (
    Attempt,
    forget_attempt,
    keep_attempt,
    note_attempt,
    note_removal,
    take_attempt,
)
from ._objects import BATCH_BYTES, StoredObject, list_objects, read_batches
from ._store import Store
from ._store_options import GivenOptions
from ._write import run_all
from ._written import check_budget

Progress = Callable[[int, int], None]
"""Takes the bytes that are done and those of all: from any thread, one at a time."""

Allow = Callable[[str], bool]
"""Tells whether another commit of the step may be replaced."""

_HELD_BYTES = 1 << 30
_HELD_COPIES = 3
"""How often an object is held while it is sent to a store."""


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
    committed when all of it is there, under the commit and digest that it had; objects
    that it reuses of other steps are copied with it. Steps that `target` has already
    are left; what a copy that was killed had written is not sent again. `overwrite`
    replaces other commits of the same steps. A checkpoint of another library (its
    newest step, or `step`) is converted: its leaves are saved, as a step of ours, while
    they are read. Returns the checkpoints of `target`, in order of steps; a step that
    is pruned meanwhile is not among them.

    `max_host_bytes` bounds how many objects are held at once (by default a GiB of
    them); one at least is, whole, where it is sent to a store. `progress` is called
    with the bytes done and the bytes of all steps. Local: one process copies a step at
    a time; a second one is refused where it can be seen (on a disk of the same host),
    else it takes the step over and the first raises StoreError.

    Raises NotFound, Damaged, StepExists, StoreError, CommitUnknown.

    >>> import jax.numpy as jnp, ckpt
    >>> done = ckpt.save({"w": jnp.ones(3)}, None, "memory://doc-copy/a", step=7)
    >>> [ck.step for ck in ckpt.copy("memory://doc-copy/a", "memory://doc-copy/b")]
    [7]
    >>> ckpt.open("memory://doc-copy/b").digest == done.digest
    True
    """
    check_budget(max_host_bytes)
    run = locate(target, store_options)
    if is_checkpoint(run):
        raise ValueError(
            f"expected the path of a run to copy into, found a checkpoint - at "
            f"{run.url}: give the folder that holds steps/"
        )
    if not is_handle(source):
        _refuse_within(locate(source, store_options), run)
    found = _find_steps(source, step, store_options)
    total = sum(count_bytes(opened) for opened in found()) if progress else 0
    count = count_up(progress, total)
    allow: Allow = lambda _: overwrite  # noqa: E731

    def carry(opened: Opened) -> Opened:
        if opened.foreign is not None:
            return convert_opened(
                opened,
                run,
                overwrite=overwrite,
                count=count,
                max_host_bytes=max_host_bytes,
            )
        return copy_opened(
            opened, run, allow=allow, max_host_bytes=max_host_bytes, count=count
        )

    return tuple(Checkpoint(carry(opened)) for opened in found())


def _refuse_within(source: Store, run: Store) -> None:
    if is_same_place(source, run):
        raise ValueError(f"expected two runs, found {run.url} twice")
    if run.url.startswith(f"{source.url}/"):
        raise ValueError(f"expected another run, found {run.url} inside of the source")


def _find_steps(
    source: Openable, step: int | None, options: GivenOptions | None
) -> Callable[[], Iterator[Opened]]:
    """Return what opens the checkpoints to copy, one after another."""
    if step is None and not is_handle(source):
        run = locate(source, options)
        if not is_file(run) and (steps := committed_steps(run)):
            return partial(_open_all, run, steps)
    opened = open_path(source, step, options)
    return lambda: iter([opened])


def _open_all(run: Store, steps: Sequence[int]) -> Iterator[Opened]:
    for step in steps:
        with contextlib.suppress(NotFound):
            yield open_step(run, step)


def count_bytes(opened: Opened) -> int:
    """Return the bytes of all objects of a checkpoint."""
    if opened.foreign is not None:
        return opened.manifest.nbytes
    return sum(stored.size for stored in list_objects(opened))


def count_up(progress: Progress | None, total: int) -> Callable[[int], None]:
    """Return what takes the bytes of one more object, and tells `progress`."""
    lock = Lock()
    done = 0

    def add(size: int) -> None:
        nonlocal done
        if progress is not None:
            with lock:
                done += size
                progress(done, total)

    return add


def is_same_place(one: Store, other: Store) -> bool:
    """Tell whether two stores are the same folder, by whatever names."""
    if one.url == other.url:
        return True
    if isinstance(one, LocalStore) and isinstance(other, LocalStore):
        with contextlib.suppress(OSError):
            return os.path.samefile(one.url, other.url)
    return False


def copy_opened(
    opened: Opened,
    run: Store,
    *,
    allow: Allow,
    count: Callable[[int], None],
    max_host_bytes: int | None = None,
) -> Opened:
    """Copy one checkpoint into a run and return the copy.

    StepExists when the run has another commit of the step that `allow` does not name.
    """
    step, commit = opened.manifest.step, opened.manifest.commit
    attempt = Attempt(step, commit, time.time())
    store = run.child(attempt.directory)
    if is_same_place(opened.store, store):
        raise ValueError(f"expected another run to copy into, found {run.url} itself")
    objects = list(list_objects(opened))
    replaced = _find_replaced(run, step)
    if replaced is not None:
        if replaced[0].commit == commit:
            count(sum(stored.size for stored in objects))
            return open_step(run, step)
        if not allow(replaced[0].commit):
            raise StepExists(
                f"expected step {step} to be free, found another commit of it - in "
                f"{run.url}: copy another step, or pass overwrite=True"
            )
    run.make_folders(["", "steps"])
    note = take_attempt(run, attempt)
    with run.hold(attempt.name):
        _transfer(opened, store, objects, max_host_bytes, count)
        # Had `prune` found this old and begun to remove it, the note would tell.
        try:
            keep_attempt(run, attempt, note)
        except StoreError:
            # What was written since then must be found, if it has no note any more.
            if store.list(""):
                note_removal(run, step, commit)
            raise
    _check_all_there(store, objects)
    record = CommitRecord(step, commit, opened.manifest_bytes, opened.digest)
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
    count: Callable[[int], None],
) -> None:
    """Write all objects that are not there yet, each after those that it describes."""
    folders = _folders(objects)
    store.make_folders(folders)
    there = frozenset(store.list(""))
    parallel = store.parallel
    batch_bytes = BATCH_BYTES
    if max_host_bytes is not None:
        batch_bytes = min(BATCH_BYTES, max_host_bytes // 4)
        parallel = max(1, min(parallel, max_host_bytes // (4 * batch_bytes)))
    if opened.store.is_remote or store.is_remote:
        largest = max(stored.size for stored in objects)
        held = (max_host_bytes or _HELD_BYTES) // (_HELD_COPIES * largest or 1)
        parallel = max(1, min(max(parallel, opened.store.parallel), held))

    def send(stored: StoredObject, place: Store) -> None:
        with store.write(stored.name, size=stored.size) as out:
            for batch in read_batches(opened, place, stored, batch_bytes):
                out.write([batch])
            out.close()

    def work(stored: StoredObject) -> None:
        if stored.name not in there or not _is_whole(opened, store, stored):
            read_anywhere(opened, stored.source, partial(send, stored))
        count(stored.size)

    documents = opened.manifest.processes + 1
    first, parts = objects[:-documents], objects[-documents:-1]
    for group in (first, parts, objects[-1:]):
        run_all(work, group, parallel=parallel)
        # The manifest stands for all that it names, also after a power cut.
        store.sync_folders(folders)


def _is_whole(opened: Opened, store: Store, stored: StoredObject) -> bool:
    """Tell whether an object is there already; another one in its place is removed.

    A remote store makes objects whole or not at all, so that its size tells; a local
    one, which may be torn, is read and made durable.
    """
    try:
        with store.open(stored.name, size=stored.size) as reader:
            if reader.size == stored.size:
                if not store.is_remote:
                    for _ in read_batches(opened, store, stored):
                        pass
                    reader.sync()
                return True
    except (Damaged, NotFound):
        pass
    store.remove(stored.name)
    return False


def _check_all_there(store: Store, objects: Iterable[StoredObject]) -> None:
    missing = {stored.name for stored in objects}.difference(store.list(""))
    if missing:
        raise StoreError(
            f"expected all objects of a copy, found no {min(missing)} any more - in "
            f"{store.url}: nothing was committed; copy again"
        )


def _folders(objects: Iterable[StoredObject]) -> list[str]:
    """Return the folders of objects, each after those it lies in, and the outermost."""
    found = {""}
    for stored in objects:
        found.update(layouts.parents(stored.name))
    return sorted(found)
