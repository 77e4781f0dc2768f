"""Verifying a checkpoint: every stored byte is read and compared with its checksum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

import layouts
from layouts import Box, FileEntry, Leaf, ObjectPart, PackRow

from ._catalog import (
    Openable,
    Opened,
    committed_steps,
    is_handle,
    locate,
    open_path,
    raise_if_removed,
    read_anywhere,
)
from ._commit import find_attempts
from ._crc import checksum
from ._errors import CkptError, Damaged, NotFound, StoreError
from ._foreign import Foreign
from ._objects import layout_object
from ._read import Lay, adjacent_rows, object_size, open_object, read_object_in
from ._store import Store
from ._store_options import GivenOptions
from ._uses import find_used_directories
from ._write import run_all

_FILE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with one object, and the leaf and box it holds, if any."""

    object: str
    problem: str
    leaf: str | None = None
    box: Box | None = None

    def __str__(self) -> str:
        where = "" if self.leaf is None else f" - at `{self.leaf}`"
        return f"{self.object}: {self.problem}{where}"


@dataclass(frozen=True, slots=True)
class Report:
    """What verify found; `ok` when a step is there, whole and undamaged.

    `orphans` are objects and attempts that no committed step names; they harm nothing.
    """

    step: int
    url: str
    objects: int
    bytes: int
    damaged: tuple[Problem, ...] = ()
    missing: tuple[Problem, ...] = ()
    orphans: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every byte is there and is the one that was saved."""
        return self.step >= 0 and not (self.damaged or self.missing)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "NOT ok"
        lines = (
            [f"no step is committed in {self.url}"]
            if self.step < 0
            else [
                f"step {self.step} is {verdict}: {self.objects} objects, "
                f"{self.bytes:,} bytes checked in {self.url}"
            ]
        )
        lines += [f"  damaged {p}" for p in self.damaged]
        lines += [f"  missing {p}" for p in self.missing]
        lines += [f"  orphan  {name}" for name in self.orphans]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Check:
    """One object to check: its name and size, the leaf it holds, and how.

    `source` is the directory of the run that it lies in, "" for the checkpoint's own.
    """

    name: str
    size: int
    work: Callable[[], None]
    leaf: Leaf | None = None
    box: Box | None = None
    source: str = ""

    @property
    def shown(self) -> str:
        """The name by which a report calls it."""
        return f"{self.source}/{self.name}" if self.source else self.name


def verify(
    path: Openable | None = None,
    *,
    step: int | None = None,
    store_options: GivenOptions | None = None,
) -> Report:
    """Read every byte of a checkpoint and report all that is damaged or missing.

    Of another library's checkpoint every tensor is read, and what checksums it has
    are compared; few have any. Also lists orphans: objects in the checkpoint's
    directory that it does not name, and attempts in the run that never committed; a run
    that has nothing else gives a report of step -1, which is not ok. NotFound, Damaged
    or Untrusted if there is no manifest to check by.

    >>> import jax.numpy as jnp, ckpt
    >>> done = ckpt.save({"w": jnp.ones(4)}, None, "memory://doc-verify")
    >>> ckpt.verify("memory://doc-verify").ok
    True
    """
    try:
        opened = open_path(path, step, store_options)
    except NotFound:
        if is_handle(path):
            raise
        run = locate(path, store_options)
        orphans = find_orphans(run)
        if step is not None or committed_steps(run) or not orphans:
            raise
        return Report(-1, run.url, 0, 0, orphans=orphans)
    return verify_opened(opened)


def verify_opened(opened: Opened) -> Report:
    """Verify a checkpoint that is open."""
    if opened.foreign is not None:
        return _verify_foreign(opened, opened.foreign)
    damaged: list[Problem] = []
    missing: list[Problem] = []
    checks: list[_Check] = []
    there = opened.store.list("")
    own = frozenset(there)
    named = {"manifest.json"}
    for process in range(opened.manifest.processes):
        name = layouts.part_name(process)
        named.add(name)
        try:
            checks += _checks(opened, process, own)
        except CkptError as error:
            absent = not opened.store.has(name)
            (missing if absent else damaged).append(Problem(name, str(error)))
    named |= {check.name for check in checks}
    found = run_all(_problem, checks, parallel=opened.store.parallel)
    failures = [error for error in found if isinstance(error, StoreError)]
    if failures and len(failures) == len(checks):
        raise failures[0]  # it is not this or that object that cannot be read
    for check, error in zip(checks, found, strict=True):
        if error is not None:
            leaf = None if check.leaf is None else check.leaf.path
            problem = Problem(check.shown, _reason(error), leaf, check.box)
            absent = not any(p.has(check.name) for p in opened.places(check.source))
            (missing if absent else damaged).append(problem)
    if damaged or missing:
        raise_if_removed(opened)
    orphans = tuple(name for name in there if name not in named)
    if opened.run is not None:
        orphans += find_orphans(opened.run)
    return Report(
        opened.manifest.step,
        opened.store.url,
        len(checks),
        sum(check.size for check in checks),
        tuple(damaged),
        tuple(missing),
        orphans,
    )


def _verify_foreign(opened: Opened, foreign: Foreign) -> Report:
    """Read all of another library's checkpoint, and check what its format lets."""
    paths = {leaf.path for leaf in opened.manifest.leaves}
    checks = [_Check(*found) for found in foreign.checks()]
    problems = run_all(_problem, checks, parallel=opened.store.parallel)
    damaged = tuple(
        Problem(check.name, _reason(error), check.name if check.name in paths else None)
        for check, error in zip(checks, problems, strict=True)
        if error is not None
    )
    size = sum(check.size for check in checks)
    step, url = opened.manifest.step, opened.store.url
    return Report(step, url, len(checks), size, damaged)


def _reason(error: CkptError) -> str:
    """Return what was expected and found, without the places a Problem has itself."""
    return str(error).partition(" - at ")[0].partition(" - in ")[0]


def _problem(check: _Check) -> CkptError | None:
    try:
        check.work()
    except CkptError as error:
        return error
    return None


def find_orphans(run: Store) -> tuple[str, ...]:
    """Return the directories of a run that no step is, nor needs objects of."""
    found = [attempt.directory for attempt in find_attempts(run)]
    needed = find_used_directories(run) if found else frozenset[str]()
    return tuple(name for name in found if name not in needed)


def _checks(opened: Opened, process: int, own: frozenset[str]) -> list[_Check]:
    """Return how to check what a process wrote; `own` is what lies beside its part."""
    part = opened.part(process)
    leaves = opened.manifest.leaves
    found = [_object_check(opened, o, own) for o in part.objects]
    packs: dict[int, list[tuple[PackRow, int]]] = {}
    for row, crc in zip(part.rows, part.row_crcs.tolist(), strict=True):
        packs.setdefault(row.pack, []).append((row, crc))
    for pack, chosen in packs.items():
        size = chosen[-1][0].offset + chosen[-1][0].length
        name = f"{layouts.pack_name(process, pack)}/c/0"
        first = leaves[chosen[0][0].leaf]

        def check_pack(
            name: str = name, size: int = size, chosen: Any = chosen
        ) -> None:
            _check_pack(opened, name, size, chosen)

        found.append(_Check(name, size, check_pack, first))
    for entry in part.files:

        def check_file(entry: FileEntry = entry) -> None:
            _check_file(opened.store, entry)

        found.append(_Check(entry.name, entry.bytes, check_file))
    return found


def _object_check(opened: Opened, part: ObjectPart, own: frozenset[str]) -> _Check:
    leaf = opened.manifest.leaves[part.leaf]
    name = layouts.object_name(opened.manifest, part.leaf, part.object)
    box = leaf.cells.box(leaf.cells.coordinates(part.object))
    # A copy has in its own directory what its original has elsewhere.
    source = "" if name in own else part.source

    def check(store: Store) -> None:
        chunks = range(len(part.crcs))
        lay: Lay = lambda _box, _values: None  # noqa: E731
        read_object_in(opened, store, part, chunks, lay, exact=True)
        _check_index(opened, store, part, name, leaf, box)

    def work() -> None:
        read_anywhere(opened, source, check)

    return _Check(name, object_size(opened.manifest, part), work, leaf, box, source)


def _check_index(
    opened: Opened, store: Store, part: ObjectPart, name: str, leaf: Leaf, box: Box
) -> None:
    """Compare a shard's index, which only other readers use, with the right one."""
    _, expected = layout_object(opened, part)
    size = object_size(opened.manifest, part)
    found = np.empty(len(expected), np.uint8)
    with open_object(opened, leaf, name, box, size, store=store) as reader:
        reader.read_into(size - len(expected), found)
    if found.tobytes() != expected:
        raise_damaged(name, "its index changed")


def raise_damaged(name: str, found: str) -> NoReturn:
    """Raise Damaged for an object that holds no leaf's values."""
    raise Damaged(f"expected the bytes that were saved, found {found} - object {name}")


def _check_pack(
    opened: Opened, name: str, size: int, rows: list[tuple[PackRow, int]]
) -> None:
    leaves = opened.manifest.leaves
    first = leaves[rows[0][0].leaf]
    box = layouts.whole(first.shape)
    with open_object(opened, first, name, box, size, exact=True) as reader:
        for run in adjacent_rows(rows, opened.store.request_bytes):
            begin, last = run[0][0].offset, run[-1][0]
            data = np.empty(last.offset + last.length - begin, np.uint8)
            reader.read_into(begin, data)
            for row, crc in run:
                at = row.offset - begin
                if checksum(data[at : at + row.length]) != crc:
                    path = leaves[row.leaf].path
                    raise_damaged(name, f"the piece of `{path}` changed")


def _check_file(store: Store, entry: FileEntry) -> None:
    data = store.read(entry.name, limit=max(min(entry.bytes, _FILE_BYTES), 0))
    if len(data) != entry.bytes or checksum(data) != entry.crc:
        raise_damaged(entry.name, "other text")
