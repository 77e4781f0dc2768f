"""Who reads what several processes want: each stored byte once over the whole job.

A pure function of the leaves and of who wants which boxes, so that every process finds
the same answer without asking another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ._box import Box, Shape, intersect
from ._leaf import Leaf, Loose, Packed
from ._mesh import MeshLayout, Spec, piece_boxes, split_counts

Wants = tuple[tuple[Box, tuple[int, ...]], ...]
"""Distinct boxes of a leaf, and the processes that want each, ascending."""

_ALIGNMENT = 64

_SHORT_BYTES = 16 << 10
"""Runs of this length are as dear to ask for as to read."""

_SMALL_BYTES = 1 << 20
"""Leaves up to this size are exchanged whole, with many others at once."""


def spread_spec(
    leaf: Leaf, spec: Spec, mesh: MeshLayout, owners: tuple[int, ...]
) -> Spec | None:
    """Return a finer spec by which no two processes read the same of a large leaf.

    `owners` has the process of each position of the mesh, in C order. From the finer
    spec XLA brings the array to the wanted one, between those alone that want it. None
    where nothing is replicated over processes, or no finer spec divides the leaf.
    Where a process would read short runs of another library's rows, and other processes
    what lies between, it is a spec of whole rows.

    >>> from layouts import mesh_layout
    >>> leaf = Leaf("w", "jax", "float32", (1024, 1024), store=Packed((64, 1024)))
    >>> spread_spec(leaf, ((), ()), mesh_layout({"data": 2, "model": 2}), (0, 0, 1, 1))
    (('data', 'model'), ())
    """
    if leaf.store is None or leaf.nbytes <= _SMALL_BYTES or 0 in leaf.shape:
        return None
    finer = _spread(leaf.shape, leaf.chunks.cell, spec, mesh, owners)
    if isinstance(leaf.store, Loose) and _lies_in_rows(leaf.store, leaf.shape):
        short = max(leaf.store.gap, _SHORT_BYTES) // leaf.itemsize
        rows = _spread_rows(leaf.shape, short, finer or spec, mesh, owners)
        return rows or finer
    return finer


@lru_cache(maxsize=4096)
def _spread(
    shape: Shape, chunk: Shape, spec: Spec, mesh: MeshLayout, owners: tuple[int, ...]
) -> Spec | None:
    if _is_apart(shape, spec, mesh, owners):
        return None
    used = {axis for axes in spec for axis in axes}
    counts = split_counts(spec, mesh)
    lengths = [n // c for n, c in zip(shape, counts, strict=True)]
    laid = [list(axes) for axes in spec]
    for axis, size in mesh.axes:
        fits = [d for d, n in enumerate(lengths) if n % size == 0]
        if axis in used or size == 1 or not fits:
            continue

        def rate(d: int, size: int = size) -> tuple[bool, int]:
            # Where chunks meet, no chunk is read twice.
            return lengths[d] // size % chunk[d] == 0, lengths[d] // chunk[d]

        best = max(fits, key=rate)
        laid[best].append(axis)
        lengths[best] //= size
    finer = tuple(tuple(axes) for axes in laid)
    return finer if _is_apart(shape, finer, mesh, owners) else None


def _lies_in_rows(store: Loose, shape: Shape) -> bool:
    return bool(store.blocks) and all(b.shape[1:] == shape[1:] for b in store.blocks)


@lru_cache(maxsize=4096)
def _spread_rows(
    shape: Shape, short: int, spec: Spec, mesh: MeshLayout, owners: tuple[int, ...]
) -> Spec | None:
    """Return a spec of whole rows, if runs of less than `short` items are read else."""
    if len(shape) < 2 or shape[0] % mesh.size or len(set(owners)) == 1:
        return None
    wanted: dict[int, set[Box]] = {}
    for box, owner in zip(piece_boxes(shape, spec, mesh), owners, strict=True):
        wanted.setdefault(owner, set()).add(box)
    if all(_run_items(shape, boxes) >= short for boxes in wanted.values()):
        return None
    axes = tuple(axis for axis, size in mesh.axes if size > 1)
    rows = (axes, *(() for _ in shape[1:]))
    return rows if _is_apart(shape, rows, mesh, owners) else None


def _run_items(shape: Shape, boxes: set[Box]) -> int:
    """Return how many items of an array in C order follow one another in equal boxes.

    >>> _run_items((4, 8), {Box((0, 0), (4, 2)), Box((0, 2), (4, 2))})
    4
    """
    run = 1
    for d in reversed(range(len(shape))):
        rows: dict[Shape, list[tuple[int, int]]] = {}
        for start, size in {(b.start[: d + 1], b.shape[d]) for b in boxes}:
            rows.setdefault(start[:d], []).append((start[d], size))
        shortest = min(min(_join(row)) for row in rows.values())
        run *= shortest
        if shortest < shape[d]:
            break
    return run


def _join(parts: list[tuple[int, int]]) -> list[int]:
    """Return the lengths of what parts (start, length) make where they touch."""
    found: list[int] = []
    end = -1
    for start, length in sorted(parts):
        if start == end:
            found[-1] += length
        else:
            found.append(length)
        end = start + length
    return found


def _is_apart(
    shape: Shape, spec: Spec, mesh: MeshLayout, owners: tuple[int, ...]
) -> bool:
    """Tell whether no two processes have the same piece."""
    holders: dict[Box, int] = {}
    boxes = piece_boxes(shape, spec, mesh)
    return all(
        holders.setdefault(box, owner) == owner
        for box, owner in zip(boxes, owners, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Unit:
    """A box of a leaf, by its number among `share_reads`', that one process reads."""

    item: int
    box: Box
    reader: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Round:
    """Units that are exchanged together.

    Each reader puts its own, at the offsets, into a buffer of `length` bytes.
    """

    units: tuple[Unit, ...]
    offsets: tuple[int, ...]
    length: int


def shares_reads(leaf: Leaf, wants: Wants) -> bool:
    """Tell whether reading a leaf by itself, each process would read it again."""
    if leaf.store is None or not leaf.nbytes:
        return False
    if any(len(processes) > 1 for _, processes in wants):
        return True
    if leaf.nbytes > _SMALL_BYTES:
        return False
    return any(len(found) > 1 for found in _wanting(leaf, wants).values())


def boxes_alone(leaf: Leaf, wants: Wants, process: int) -> tuple[Box, ...]:
    """Return the boxes that a process reads for itself, of a leaf that is shared."""
    if _is_whole(leaf):
        return ()
    return tuple([box for box, found in wants if found == (process,)])


def share_reads(
    leaves: Mapping[int, Leaf],
    wants: Mapping[int, Wants],
    *,
    most: int = 1 << 62,
    loads: dict[int, int] | None = None,
) -> list[Unit]:
    """Return who reads what of leaves that are shared; their keys number them.

    Each unit goes, in order, to the one that wants it and has the fewest bytes so far;
    `loads` has those, and is brought up to date. Units are cut to `most` bytes where
    chunks let them.

    >>> leaf = Leaf("b", "jax", "float32", (4,), store=Packed((4,)))
    >>> both = ((Box((0,), (4,)), (0, 1)),)
    >>> [u.reader for u in share_reads({0: leaf, 1: leaf}, {0: both, 1: both})]
    [0, 1]
    """
    loads = {} if loads is None else loads
    units: list[Unit] = []
    for number, leaf in leaves.items():
        for box, found in _parts(leaf, wants[number], most):
            reader = min(found, key=lambda process: (loads.get(process, 0), process))
            nbytes = box.size * leaf.itemsize
            loads[reader] = loads.get(reader, 0) + nbytes
            units.append(Unit(number, box, reader, nbytes))
    return units


def _is_whole(leaf: Leaf) -> bool:
    """Tell whether all cells are read together, not only the boxes that are wanted."""
    return isinstance(leaf.store, Packed) and leaf.nbytes <= _SMALL_BYTES


def _wanting(leaf: Leaf, wants: Wants) -> dict[int, tuple[int, ...]]:
    """Return which processes want some of each cell."""
    if leaf.cells.cell == leaf.shape:
        found = {process for _, processes in wants for process in processes}
        return {0: tuple(sorted(found))}
    wanting: dict[int, set[int]] = {}
    for box, processes in wants:
        for cell in leaf.cells.numbers(box):
            wanting.setdefault(cell, set()).update(processes)
    return {cell: tuple(sorted(found)) for cell, found in sorted(wanting.items())}


def _parts(
    leaf: Leaf, wants: Wants, most: int
) -> Iterator[tuple[Box, tuple[int, ...]]]:
    cells = leaf.cells
    if _is_whole(leaf):
        for cell, found in _wanting(leaf, wants).items():
            yield cells.box(cells.coordinates(cell)), found
        return
    for box, found in wants:
        if len(found) < 2:
            continue
        touched = list(cells.numbers(box))
        parts = -(-len(found) // len(touched))
        for cell in touched:
            common = intersect(box, cells.box(cells.coordinates(cell)))
            if common is not None:
                size = common.size * leaf.itemsize
                for part in _split(leaf, common, max(parts, -(-size // max(most, 1)))):
                    yield part, found


def _split(leaf: Leaf, box: Box, parts: int) -> Iterator[Box]:
    """Cut a box into up to so many parts, where chunks meet."""
    if parts < 2 or not box.shape:
        yield box
        return
    chunk = leaf.chunks.cell
    # A packed piece is read whole: it is a chunk.
    firsts = [a // c for a, c in zip(box.start, chunk, strict=True)]
    lasts = [-(-b // c) for b, c in zip(box.stop, chunk, strict=True)]
    counts = [b - a for a, b in zip(firsts, lasts, strict=True)]
    d = max(range(len(counts)), key=lambda n: counts[n])
    step = -(-counts[d] // parts)
    for at in range(firsts[d], lasts[d], step):
        low = max(at * chunk[d], box.start[d])
        high = min((at + step) * chunk[d], box.stop[d])
        start, shape = list(box.start), list(box.shape)
        start[d], shape[d] = low, high - low
        yield Box(tuple(start), tuple(shape))


def plan_rounds(
    units: Sequence[Unit], *, limit: int, processes: int = 1
) -> Iterator[Round]:
    """Yield the units in rounds, whose buffers together have about `limit` bytes.

    Each of the `processes` has a buffer as long as the longest.
    """
    group: list[Unit] = []
    loads: dict[int, int] = {}
    for unit in units:
        load = loads.get(unit.reader, 0) + unit.nbytes
        if group and max(load, *loads.values()) * processes > limit:
            yield _round(group)
            group, loads, load = [], {}, unit.nbytes
        group.append(unit)
        loads[unit.reader] = load
    if group:
        yield _round(group)


def _round(units: Sequence[Unit]) -> Round:
    ends: dict[int, int] = {}
    offsets: list[int] = []
    for unit in units:
        offset = ends.get(unit.reader, 0)
        offsets.append(offset)
        ends[unit.reader] = offset + align(unit.nbytes)
    return Round(tuple(units), tuple(offsets), round_up(max(ends.values())))


def align(nbytes: int) -> int:
    """Return how much room bytes take, so that views of any dtype may follow them."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def round_up(length: int) -> int:
    """Return one of few lengths, a little greater: each is compiled once."""
    grain = 1 << max(10, length.bit_length() - 3)
    return -(-length // grain) * grain
