"""What a restore would read, before it reads it: for any mesh, without devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax

import layouts
from layouts import Box, Leaf, Manifest

from ._catalog import Openable, open_path
from ._exchange import can_move
from ._per_process import find_owners
from ._read import adjacent_rows
from ._restore import check_options, resolve
from ._store_options import GivenOptions
from ._target import Specs, Target, Wishes

OPENING = 3
"""A listing of steps, the commit record, the manifest."""

_SHOWN = 10
"""How many changed layouts a plan prints."""


@dataclass(frozen=True, slots=True)
class ProcessReads:
    """What one process reads, and how many of its bytes it wanted.

    `requests` are those for data and for the parts that describe it.
    """

    process: int
    bytes: int
    requests: int
    wanted: int


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore reads, process by process; prints as a table.

    `stored` are the bytes of the selected leaves; `amplification` is bytes read over
    the whole job per byte of them that any process needs; `fallbacks` says which saved
    specs did not fit. `opening` is how many requests come first (a listing, the
    record, the manifest); `puts` how many objects each process sent when this was
    saved. Of another library's checkpoint neither is known: 0 and ().
    """

    url: str
    step: int
    mesh: str
    leaves: int
    stored: int
    processes: tuple[ProcessReads, ...]
    peak_host_bytes: int
    fallbacks: tuple[str, ...]
    puts: tuple[int, ...] = ()
    opening: int = OPENING

    @property
    def bytes(self) -> int:
        """Bytes read over all processes."""
        return sum(p.bytes for p in self.processes)

    @property
    def amplification(self) -> float:
        """Bytes read over all processes, per byte stored of the selected leaves."""
        return self.bytes / self.stored if self.stored else 1.0

    def __str__(self) -> str:
        lines = [
            f"restore step {self.step} of {self.url} on {self.mesh}: {self.leaves} "
            f"leaves, {self.stored:,} bytes stored",
            f"{'process':>8} {'bytes read':>16} {'bytes wanted':>16} {'requests':>9}",
        ]
        lines += [
            f"{p.process:>8} {p.bytes:>16,} {p.wanted:>16,} {p.requests:>9,}"
            for p in self.processes[:16]
        ]
        if len(self.processes) > 16:
            lines.append(f"(+{len(self.processes) - 16} more processes)")
        lines.append(
            f"read amplification {self.amplification:.2f}, "
            f"peak host memory {self.peak_host_bytes:,} bytes"
        )
        if self.puts:
            lines.append(
                f"{self.opening} requests to open it; it was saved in "
                f"{sum(self.puts):,} (at most {max(self.puts):,} of a process)"
            )
        lines += [f"changed: {note}" for note in self.fallbacks[:_SHOWN]]
        if len(self.fallbacks) > _SHOWN:
            lines.append(f"(+{len(self.fallbacks) - _SHOWN} more changed)")
        return "\n".join(lines)


def plan(
    path: Openable | None = None,
    mesh: Any = None,
    *,
    step: int | None = None,
    processes: int | None = None,
    like: Any = None,
    specs: Specs | None = None,
    select: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    cast: bool | str = False,
    missing: str = "error",
    extra: str = "error",
    strict: bool = False,
    broadcast: bool = True,
    store_options: GivenOptions | None = None,
) -> RestorePlan:
    """Return what `restore` with these arguments would read; reads the manifest alone.

    `mesh` may be a Mesh, an AbstractMesh or {axis: size}: no devices are needed.
    `processes` divides its positions, in order, into that many equal parts (default:
    as the devices say, else 1).

    >>> import jax.numpy as jnp, ckpt
    >>> done = ckpt.save({"w": jnp.ones((8, 8))}, None, "memory://doc-plan")
    >>> ckpt.plan("memory://doc-plan", {"data": 4}, processes=2).amplification
    1.0
    """
    if processes is not None and processes < 1:
        raise ValueError(f"expected at least one process, found {processes}")
    check_options(cast, missing, extra, like)
    laid = None if mesh is None else layouts.mesh_layout(mesh)
    opened = open_path(path, step, store_options)
    wishes = Wishes(mesh, like, specs, cast, strict)
    wanted = resolve(opened.manifest, wishes, select, rename, missing, extra)
    count = processes or _process_count(mesh)
    if laid is not None and laid.size % count:
        raise ValueError(
            f"expected processes to divide the {laid.size} positions of {laid}, "
            f"found {count}"
        )
    owner = _owners(mesh, laid, count, given=processes is not None)
    foreign = opened.foreign is not None
    per_process, peak = _reads(
        opened.manifest,
        wanted.targets,
        owner,
        count,
        broadcast=broadcast,
        request_bytes=opened.store.request_bytes,
    )
    return RestorePlan(
        opened.store.url,
        opened.manifest.step,
        "the host" if laid is None else str(laid),
        len(wanted.targets),
        sum(opened.manifest.leaves[t.number].nbytes for t in wanted.targets),
        per_process,
        peak,
        tuple(f"`{t.path}`: {note}" for t in wanted.targets for note in t.notes),
        () if foreign else tuple(layouts.count_writes(opened.manifest).tolist()),
        0 if foreign else OPENING,
    )


def _process_count(mesh: Any) -> int:
    if not isinstance(mesh, jax.sharding.Mesh):
        return 1
    return len({d.process_index for d in mesh.devices.flat})


def _owners(
    mesh: Any, laid: layouts.MeshLayout | None, count: int, *, given: bool
) -> list[int]:
    """Return, for each mesh position in C order, the process that holds it."""
    if laid is None:
        return [0]
    if isinstance(mesh, jax.sharding.Mesh) and not given:
        found = sorted({d.process_index for d in mesh.devices.flat})
        return [found.index(d.process_index) for d in mesh.devices.flat]
    return [position * count // laid.size for position in range(laid.size)]


def _reads(
    manifest: Manifest,
    targets: Iterable[Target],
    owner: list[int],
    count: int,
    *,
    broadcast: bool,
    request_bytes: int,
) -> tuple[tuple[ProcessReads, ...], int]:
    counts = [_Count(manifest, request_bytes) for _ in range(count)]
    owners = find_owners(manifest.structure, count)
    held = [0] * count
    shared: dict[int, tuple[Target, layouts.Wants]] = {}

    def add(process: int, target: Target, boxes: Iterable[Box]) -> None:
        leaf = manifest.leaves[target.number]
        read = layouts.plan_leaf_read(target.number, leaf, list(boxes))
        counts[process].add(leaf, read)

    for target in targets:
        leaf = manifest.leaves[target.number]
        if leaf.store is None:
            continue
        moves = target.kind == "jax" and not target.weak and can_move(target.dtype)
        if broadcast and count > 1 and target.laid is not None and moves:
            finer = layouts.spread_spec(
                leaf, target.laid[1], target.laid[0], tuple(owner)
            )
            if finer is not None:
                target = replace(target, laid=(target.laid[0], finer))
        found = _boxes(target, leaf, owner, count)
        if target.path in owners:
            found = {owners[target.path]: [layouts.whole(leaf.shape)]}
        wants = _wants(found)
        together = broadcast and count > 1 and layouts.shares_reads(leaf, wants)
        if together:
            shared[len(shared)] = target, wants
        for process, boxes in found.items():
            size = sum(box.size for box in boxes) * leaf.itemsize
            counts[process].wanted += size
            held[process] += size
            if together:
                boxes = layouts.boxes_alone(leaf, wants, process)
            add(process, target, boxes)
    leaves = {n: manifest.leaves[t.number] for n, (t, _) in shared.items()}
    units = layouts.share_reads(leaves, {n: wants for n, (_, wants) in shared.items()})
    for unit in units:
        add(unit.reader, shared[unit.item][0], [unit.box])
    packs = _PackRows(manifest, request_bytes)
    reads = tuple(
        ProcessReads(p, c.bytes, c.objects + c.parts + packs.count(c.packed), c.wanted)
        for p, c in enumerate(counts)
    )
    return reads, max(held, default=0)


def _wants(boxes: Mapping[int, Iterable[Box]]) -> layouts.Wants:
    found: dict[Box, list[int]] = {}
    for process in sorted(boxes):
        for box in boxes[process]:
            found.setdefault(box, []).append(process)
    return tuple((box, tuple(processes)) for box, processes in found.items())


def _boxes(
    target: Target, leaf: Leaf, owner: list[int], count: int
) -> dict[int, list[Box]]:
    if target.laid is None:
        return {process: [layouts.whole(leaf.shape)] for process in range(count)}
    mesh, spec = target.laid
    found: dict[int, dict[Box, None]] = {}
    positions = layouts.piece_boxes(leaf.shape, spec, mesh)
    for position, box in enumerate(positions):
        found.setdefault(owner[position], {})[box] = None
    return {process: list(boxes) for process, boxes in found.items()}


@dataclass(slots=True)
class _Count:
    """What one process asks for, while targets are gone through."""

    manifest: Manifest
    request_bytes: int
    bytes: int = 0
    wanted: int = 0
    objects: int = 0
    writers: set[int] = field(default_factory=set[int])
    packed: dict[int, set[tuple[int, int]]] = field(
        default_factory=dict[int, set[tuple[int, int]]]
    )

    @property
    def parts(self) -> int:
        """How many parts describe what is read."""
        return len(self.writers)

    def add(self, leaf: Leaf, read: layouts.LeafRead) -> None:
        """Count the reads of a leaf."""
        self.bytes += read.read
        if isinstance(leaf.store, layouts.Loose):
            self.objects += layouts.count_loose_requests(
                leaf, read, request_bytes=self.request_bytes
            )
        for cell in read.cells:
            self.writers.add(cell.writer)
            if isinstance(leaf.store, layouts.Chunked):
                self.objects += self._count_chunks(cell)
            else:
                self.packed.setdefault(cell.writer, set()).add((cell.leaf, cell.cell))

    def _count_chunks(self, cell: layouts.CellRead) -> int:
        most = layouts.chunks_a_request(self.manifest, cell.leaf, self.request_bytes)
        return sum(1 for _ in layouts.merge_runs(cell.chunks, most=most))


class _PackRows:
    """Where pieces stand in packs; each writer's rows are worked out once."""

    def __init__(self, manifest: Manifest, request_bytes: int) -> None:
        self._manifest = manifest
        self._request_bytes = request_bytes
        self._rows: dict[int, list[layouts.PackRow]] = {}

    def count(self, packed: Mapping[int, set[tuple[int, int]]]) -> int:
        """Return how many requests read these pieces, by writer."""
        return sum(self._count(writer, pieces) for writer, pieces in packed.items())

    def _count(self, writer: int, pieces: set[tuple[int, int]]) -> int:
        rows = self._rows.get(writer)
        if rows is None:
            found = layouts.pack_rows(
                self._manifest.leaves, writer, limit=self._manifest.pack_bytes
            )
            rows = self._rows[writer] = list(found)
        wanted: dict[int, list[tuple[layouts.PackRow, int]]] = {}
        for row in rows:
            if (row.leaf, row.piece) in pieces:
                wanted.setdefault(row.pack, []).append((row, 0))
        runs = [adjacent_rows(rows, self._request_bytes) for rows in wanted.values()]
        return sum(1 for run in runs for _ in run)
