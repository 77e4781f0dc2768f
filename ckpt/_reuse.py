"""Finding objects of an earlier step that need not be written again.

A save with `reuse=True` compares each object with the same object of the run's newest
step, its base: the leaf of that name, with its dtype, shape, objects and chunks, and
the object of that number. They are equal when the hashes of their values are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import layouts
from layouts import (
    Chunked,
    CommitRecord,
    Leaf,
    Manifest,
    ObjectPart,
    ObjectWrite,
    Part,
    WritePlan,
)

from ._catalog import Opened, committed_steps, open_recorded, open_step
from ._commit import is_committed
from ._errors import CkptError, NotFound, StoreError
from ._job import Post
from ._read import object_size
from ._store import Store
from ._uses import has_use
from ._write import Candidates, run_all

Place = tuple[str, str, int]
"""An object in a directory of the run: both names, and its size."""


@dataclass(frozen=True, slots=True)
class Base:
    """The step whose objects may be reused.

    `is_apart`: it has objects in other directories, which a copy has in its own.
    """

    opened: Opened
    is_apart: bool

    @property
    def directories(self) -> tuple[str, ...]:
        """Where objects that may be reused lie."""
        manifest = self.opened.manifest
        others = manifest.reused.directories if manifest.reused else ()
        return (manifest.directory, *(others if self.is_apart else ()))

    def is_there(self, run: Store) -> bool:
        """Tell whether the step is still committed."""
        manifest = self.opened.manifest
        return is_committed(run, manifest.step, manifest.commit)

    def post(self) -> Post:
        """Return what the other processes must know to open it."""
        opened, manifest = self.opened, self.opened.manifest
        return {
            "step": manifest.step,
            "commit": manifest.commit,
            "bytes": opened.manifest_bytes,
            "sha256": opened.digest,
            "apart": self.is_apart,
        }


def choose_base(run: Store, *, besides: int | None) -> Base | None:
    """Return the newest step of a run but for one, if its objects have hashes.

    A step that is overwritten is none: it may be damaged, and this save its repair.
    """
    try:
        steps = [step for step in committed_steps(run) if step != besides]
        opened = open_step(run, steps[-1]) if steps else None
        if opened is None or opened.manifest.reused is None:
            return None
        manifest = opened.manifest
        return Base(opened, has_use(run, manifest.step, manifest.commit))
    except NotFound:
        return None
    except CkptError as error:
        _warn(run, error)
        return None


def open_base(run: Store, post: Post | None) -> Base | None:
    """Open what process 0 has chosen."""
    if post is None:
        return None
    record = CommitRecord(post["step"], post["commit"], post["bytes"], post["sha256"])
    try:
        return Base(open_recorded(run, record), post["apart"])
    except CkptError as error:
        _warn(run, error)
        return None


def _warn(run: Store, error: CkptError) -> None:
    warnings.warn(
        f"expected to reuse objects of the newest step, found {type(error).__name__}: "
        f"{error} - in {run.url}: all are written",
        stacklevel=2,
    )


def find_candidates(
    run: Store, base: Base | None, plan: WritePlan, *, codec: str | None
) -> Candidates:
    """Return what objects of the base could stand for those that a plan writes."""
    if base is None or base.opened.manifest.codec != codec:
        return {}
    old = base.opened.manifest.leaves
    known = {
        leaf.store.name: number
        for number, leaf in enumerate(old)
        if isinstance(leaf.store, Chunked)
    }
    wanted: dict[tuple[int, int], ObjectWrite] = {}
    for write in plan.objects:
        leaf = plan.leaves[write.leaf]
        number = known.get(cast(Chunked, leaf.store).name)
        if number is not None and _is_like(leaf, old[number]):
            wanted[number, write.object] = write
    try:
        found = _look_up(base, wanted)
        absent = find_absent(run, [place for _, place in found.values()])
    except CkptError as error:
        _warn(run, error)
        return {}
    return {key: part for key, (part, at) in found.items() if at not in absent}


def _is_like(leaf: Leaf, old: Leaf) -> bool:
    """Tell whether two leaves are cut alike, into objects of the same bytes."""
    one, other = cast(Chunked, leaf.store), cast(Chunked, old.store)
    return (leaf.dtype, leaf.shape, one.object, one.chunk) == (
        old.dtype,
        old.shape,
        other.object,
        other.chunk,
    )


def _look_up(
    base: Base, wanted: dict[tuple[int, int], ObjectWrite]
) -> dict[tuple[int, int], tuple[ObjectPart, Place]]:
    """Return what the base's parts say of the objects, and where these lie."""
    opened = base.opened
    leaves = opened.manifest.leaves
    writers = sorted({leaves[leaf].writer(number) for leaf, number in wanted})
    found: dict[tuple[int, int], tuple[ObjectPart, Place]] = {}
    for part in run_all(opened.part, writers, parallel=opened.store.parallel):
        for old in part.objects:
            write = wanted.get((old.leaf, old.object))
            if write is None:
                continue
            source = old.source if base.is_apart and old.source else base.directories[0]
            name = layouts.object_name(opened.manifest, old.leaf, old.object)
            at = source, name, object_size(opened.manifest, old)
            new = replace(old, leaf=write.leaf, source=source)
            found[write.leaf, write.object] = new, at
    return found


def list_places(manifest: Manifest, part: Part) -> list[Place]:
    """Return where the objects of a part lie that it has in other directories."""
    return [
        (
            found.source,
            layouts.object_name(manifest, found.leaf, found.object),
            object_size(manifest, found),
        )
        for found in part.objects
        if found.source
    ]


def find_absent(run: Store, places: Iterable[Place]) -> set[Place]:
    """Return which objects are not there; on a disk also those of another size."""
    wanted: dict[str, list[Place]] = {}
    for place in places:
        wanted.setdefault(place[0], []).append(place)
    absent: set[Place] = set()
    for directory, found in wanted.items():
        store = run.child(directory)
        there = frozenset(store.list(""))
        absent.update(place for place in found if place[1] not in there)
        if not store.is_remote:
            absent.update(p for p in found if store.size(p[1]) != p[2])
    return absent


def refuse_absent(run: Store, places: Sequence[Place]) -> None:
    """Refuse to commit what needs an object that is gone."""
    absent = find_absent(run, places)
    if absent:
        directory, name, _ = min(absent)
        raise StoreError(
            f"expected the {len(places)} objects that this step reuses, found that "
            f"{len(absent)} are gone ({name} in {directory}) - in {run.url}: nothing "
            "was committed; save again"
        )
