"""Where runs are, and opening the manifest of one of their steps."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, cast

import numpy as np

import layouts
from layouts import CommitRecord, Manifest, Part

from ._errors import (
    CkptError,
    Damaged,
    LimitExceeded,
    NotFound,
    Unsupported,
    Untrusted,
)
from ._foreign import Foreign, is_file, open_foreign
from ._store import Store, check_name, open_store
from ._store_options import GivenOptions

if TYPE_CHECKING:
    from typing_extensions import TypeIs

DEFAULT_PATH = "checkpoints"
RECORD_LIMIT = 64 << 10
_MANIFEST_BYTES = layouts.BODY_BYTES + (64 << 10)

PathLike = str | os.PathLike[str]

T = TypeVar("T")


class Handle(Protocol):
    """What holds an opened checkpoint: a Checkpoint."""

    @property
    def opened(self) -> Opened:
        """The checkpoint."""
        ...


Openable = PathLike | Handle


def locate(path: PathLike | None, options: GivenOptions | None = None) -> Store:
    """Return the store of a path, or of $CKPT_PATH or ./checkpoints without one."""
    return open_store(path_or_default(path), options=options)


def path_or_default(path: PathLike | None) -> PathLike:
    """Return the path, or $CKPT_PATH or ./checkpoints without one."""
    if path is None:
        return os.environ.get("CKPT_PATH") or DEFAULT_PATH
    return path


def is_checkpoint(store: Store) -> bool:
    """Tell whether a path is one checkpoint: it holds a manifest."""
    return store.has("manifest.json")


def committed_steps(store: Store) -> list[int]:
    """Return the committed steps of a run, ascending; [] where there is no run."""
    found = (layouts.step_of_record(name) for name in store.list("steps"))
    return sorted(step for step in found if step is not None)


@dataclass(frozen=True, slots=True)
class Opened:
    """A checkpoint whose manifest was read and checked; parts are read on demand."""

    store: Store
    manifest: Manifest
    manifest_bytes: int
    digest: str
    record: CommitRecord | None
    run: Store | None
    parts: dict[int, Part] = field(default_factory=dict[int, Part], repr=False)
    lock: Any = field(default_factory=Lock, repr=False)
    moved: set[str] = field(default_factory=set[str], repr=False)
    foreign: Foreign | None = None

    def part(self, process: int) -> Part:
        """Return what one process wrote, reading its part once."""
        with self.lock:
            found = self.parts.get(process)
            if found is None:
                found = self.parts[process] = read_part(self, process)
            return found

    def places(self, source: str) -> list[Store]:
        """Return where an object of a directory of the run may be, likely ones first.

        In that directory, or in the checkpoint's own: that of a copy has all.
        """
        if not source:
            return [self.store]
        run, store = self.run, self.store
        beside = store.sibling(check_name(source)) if run is None else run.child(source)
        if beside is None:
            return [store]
        return [store, beside] if source in self.moved else [beside, store]


def read_anywhere(opened: Opened, source: str, read: Callable[[Store], T]) -> T:
    """Return what `read` does with the place that has an object of a directory."""
    first, *others = opened.places(source)
    try:
        return read_twice(first, lambda: read(first))
    except Damaged:
        for other in others:
            with contextlib.suppress(Damaged):
                found = read_twice(other, partial(read, other))
                opened.moved.add(source)
                return found
        raise


def read_part(opened: Opened, process: int) -> Part:
    """Read and check the part of one process."""
    return read_twice(opened.store, lambda: _read_part(opened, process))


def _read_part(opened: Opened, process: int) -> Part:
    name = layouts.part_name(process)
    limit = opened.manifest.parts[process].bytes
    try:
        data = opened.store.read(name, limit=min(limit, _MANIFEST_BYTES), size=limit)
        layouts.check_part_bytes(opened.manifest, process, data)
        return layouts.parse_part(opened.manifest, process, data)
    except NotFound:
        raise_if_removed(opened)
        raise Damaged(
            f"expected {name}, found nothing there - in {opened.store.url}"
        ) from None
    except LimitExceeded as error:
        raise Damaged(
            f"expected {name} of {limit} bytes, found more - in {opened.store.url}"
        ) from error
    except layouts.LayoutError as error:
        raise_layout_error(error, f"{opened.store.url}, {name}")


def read_twice(store: Store, read: Callable[[], T]) -> T:
    """Return what `read` does; from a remote store, damage may be on the way only."""
    try:
        return read()
    except Damaged:
        if not store.is_remote:
            raise
        return read()


def raise_if_removed(opened: Opened) -> None:
    """Tell a checkpoint that was pruned or overwritten from a damaged one."""
    if opened.run is None or opened.record is None:
        return
    try:
        same = read_record(opened.run, opened.record.step)[0] == opened.record
    except (NotFound, Damaged, Untrusted):
        same = False
    if not same:
        raise NotFound(
            f"expected step {opened.record.step}, found it removed or replaced while "
            f"it was read - in {opened.run.url}: open it again"
        )


def raise_layout_error(error: layouts.LayoutError, where: str) -> NoReturn:
    """Raise the public error that fits what is wrong with a document."""
    kinds: list[tuple[type[Exception], type[CkptError]]] = [
        (layouts.CorruptLayout, Damaged),
        (layouts.UnknownFeature, Unsupported),
        (layouts.TooLarge, LimitExceeded),
    ]
    raised = next((k for found, k in kinds if isinstance(error, found)), Untrusted)
    raise raised(f"{error} - in {where}") from error


def read_record(run: Store, step: int) -> tuple[CommitRecord, bytes]:
    """Read the commit record of a step: NotFound, Damaged, or it and its bytes."""
    try:
        return _read_record(run, step, size=layouts.RECORD_BYTES)
    except Damaged:
        if not run.is_remote:
            raise
        # Damaged on the way, or a longer one.
        return _read_record(run, step, size=None)


def _read_record(
    run: Store, step: int, *, size: int | None
) -> tuple[CommitRecord, bytes]:
    name = layouts.record_name(step)
    try:
        data = run.read(name, limit=RECORD_LIMIT, size=size)
        return layouts.parse_record(data, step), data
    except NotFound:
        known = committed_steps(run)
        shown = ", ".join(map(str, known[-8:])) or "none"
        raise NotFound(
            f"expected step {step}, found steps {shown} - in {run.url}"
        ) from None
    except layouts.LayoutError as error:
        raise_layout_error(error, f"{run.url}, {name}")


def check_step(step: Any) -> int:
    """Return a step number as an int; TypeError or ValueError if it is none."""
    if type(step) is not int and not isinstance(step, np.integer):
        raise TypeError(f"expected step to be an int, found {step!r:.80}")
    if not 0 <= step < 1 << 63:
        raise ValueError(f"expected 0 <= step < 2**63, found {step}")
    return int(cast("int", step))


def open_path(
    path: Openable | None,
    step: int | None = None,
    options: GivenOptions | None = None,
) -> Opened:
    """Open a run's step (default: the newest committed) or one checkpoint by path.

    A Checkpoint is opened already, and stays the commit that it was.
    """
    step = None if step is None else check_step(step)
    if is_handle(path):
        return _opened(path, step)
    store = locate(path, options)
    if is_file(store):
        opened = open_foreign(path_or_default(path), step, options)
        if opened is not None:
            return opened
    if step is None:
        found = committed_steps(store)
        if found:
            return open_step(store, found[-1])
        if is_checkpoint(store):
            return read_twice(store, lambda: _open_directory(store))
        foreign = open_foreign(path_or_default(path), step, options)
        if foreign is None:
            raise NotFound(
                f"expected a run with a committed step, or a checkpoint, found neither "
                f"- in {store.url}{store.absence_hint}"
            )
        return foreign
    if is_checkpoint(store):
        raise ValueError(
            f"expected a run with step={step}, found one checkpoint - in {store.url}: "
            "leave step out, or give the run's path"
        )
    try:
        return open_step(store, step)
    except NotFound:
        if committed_steps(store):
            raise
        foreign = open_foreign(path_or_default(path), step, options)
        if foreign is None:
            raise
        return foreign


def is_handle(path: Openable | None) -> TypeIs[Handle]:
    """Tell whether a checkpoint is given itself, not by its path."""
    return path is not None and not isinstance(path, (str, os.PathLike))


def _opened(handle: Handle, step: int | None) -> Opened:
    opened = getattr(handle, "opened", None)
    if not isinstance(opened, Opened):
        raise TypeError(f"expected a path or a Checkpoint, found {handle!r:.80}")
    if step is not None and step != opened.manifest.step:
        raise ValueError(
            f"expected the Checkpoint of step {opened.manifest.step} without step=, "
            f"found step={step}: give the run's path"
        )
    return opened


def open_step(run: Store, step: int) -> Opened:
    """Open a committed step of a run."""
    record, data = read_record(run, step)
    try:
        return read_twice(run, lambda: open_recorded(run, record))
    except (NotFound, Damaged):
        # A pruned or overwritten step vanishes while it is read: that is not damage.
        try:
            again = run.read(layouts.record_name(step), limit=RECORD_LIMIT)
        except NotFound:
            again = b""
        if again != data:
            raise NotFound(
                f"expected step {step}, found it removed or replaced while it was "
                f"opened - in {run.url}: open it again"
            ) from None
        raise


def open_recorded(run: Store, record: CommitRecord) -> Opened:
    """Open the checkpoint that a record names."""
    store = run.child(record.directory)
    where = f"{store.url}, manifest.json"
    try:
        size = record.manifest_bytes
        data = store.read("manifest.json", limit=_MANIFEST_BYTES, size=size)
    except NotFound:
        raise Damaged(
            f"expected manifest.json, found nothing there - in {store.url}"
        ) from None
    found = layouts.digest(data)
    if (len(data), found) != (record.manifest_bytes, record.manifest_sha256):
        raise Damaged(
            f"expected the manifest that step {record.step} committed, found another "
            f"- in {where}"
        )
    manifest = _parse(data, where)
    if (manifest.step, manifest.commit) != (record.step, record.commit):
        raise Untrusted(
            f"expected step {record.step} of commit {record.commit}, found "
            f"step {manifest.step} of commit {manifest.commit} - in {where}"
        )
    return Opened(store, manifest, len(data), found, record, run)


def _open_directory(store: Store) -> Opened:
    data = store.read("manifest.json", limit=_MANIFEST_BYTES)
    manifest = _parse(data, f"{store.url}, manifest.json")
    return Opened(store, manifest, len(data), layouts.digest(data), None, None)


def _parse(data: bytes, where: str) -> Manifest:
    try:
        return layouts.parse_manifest(data)
    except layouts.LayoutError as error:
        raise_layout_error(error, where)
