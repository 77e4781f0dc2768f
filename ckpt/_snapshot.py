"""The caller's tree as it will be saved: what each leaf is, and what must be equal.

In a job of several processes all must describe the same tree, but for what is in a
`PerProcess`: that is one node with a child for each process, and only its own process
can describe it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import layouts
import pytree
from layouts import Leaf, Pieces, WriteLimits, WritePlan

from ._crc import checksum
from ._errors import Unsupported
from ._job import Job, Post
from ._per_process import TYPE, PerProcess
from ._source import Source, describe_leaf, local_bytes

_SHOWN = 10
_BLOCK_BYTES = 1 << 20

Own = tuple[pytree.Structure, tuple[Source, ...]]
"""The structure and leaves of this process's value of one PerProcess."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tree's structure, where a PerProcess is a leaf, and its other leaves.

    `marks` has a checksum of the bytes of each leaf that every process must have equal;
    `memory` holds copies of the leaves, where they were made.
    """

    structure: pytree.Structure
    sources: dict[str, Source]
    own: dict[str, Own] = field(default_factory=dict[str, Own])
    marks: dict[str, str] = field(default_factory=dict[str, str])
    memory: tuple[Any, ...] = ()


def describe_tree(state: Any, mesh: Any, job: Job) -> Snapshot:
    """Describe every leaf, or refuse the tree, naming the path."""
    laid = None if mesh is None else layouts.mesh_layout(mesh)
    leaves, structure = flatten_tree(state)
    sources: dict[str, Source] = {}
    own: dict[str, Own] = {}
    for path, leaf in leaves.items():
        if isinstance(leaf, PerProcess):
            own[path] = _describe_own(path, leaf, job)
        else:
            sources[path] = describe_leaf(path, leaf, laid, processes=job.count)
    if job.count > 1:
        return mark_leaves(structure, sources, own)
    return Snapshot(structure, sources, own)


def mark_leaves(
    structure: pytree.Structure,
    sources: dict[str, Source],
    own: dict[str, Own] | None = None,
) -> Snapshot:
    """Return a snapshot with marks of all that each process has."""
    marks = {path: _mark(s) for path, s in sources.items() if s.is_on_host}
    return Snapshot(structure, sources, own or {}, marks)


def flatten_tree(tree: Any) -> tuple[dict[str, Any], pytree.Structure]:
    """Return a tree's leaves by path and its structure; Unsupported if it has none."""
    try:
        return pytree.flatten(tree)
    except pytree.UnsupportedTree as error:
        raise Unsupported(str(error)) from error


def _describe_own(path: str, leaf: PerProcess, job: Job) -> Own:
    values = leaf.values
    if leaf.is_restored and len(values) != job.count:
        raise Unsupported(
            f"expected a PerProcess of this process's value, found the values of "
            f"{len(values)} processes in a job of {job.count} - at `{path}`: make a "
            "new PerProcess of what this process goes on with"
        )
    value = values[job.process] if leaf.is_restored else values[0]
    leaves, structure = flatten_tree(value)
    inside = f"{path}/{job.process}" if path else str(job.process)
    found: list[Source] = []
    for below, item in leaves.items():
        where = f"{inside}/{below}" if below else inside
        if isinstance(item, PerProcess):
            raise Unsupported(
                f"expected no PerProcess inside another, found one - at `{where}`"
            )
        source = describe_leaf(where, item, None, processes=1)
        if not source.is_on_host:
            raise Unsupported(
                "expected a value of this process alone in a PerProcess, found a "
                f"global array - at `{where}`: save it outside of the PerProcess"
            )
        found.append(replace(source, owner=job.process))
    return structure, tuple(found)


def _mark(source: Source) -> str:
    """Return a checksum of all bytes of a leaf, fast enough to be taken each save."""
    crcs = hashlib.sha256()
    for block in local_bytes(source):
        for first in range(0, len(block), _BLOCK_BYTES):
            crcs.update(checksum(block[first : first + _BLOCK_BYTES]).to_bytes(4))
    return crcs.hexdigest()[:16]


def describe_equal(snapshot: Snapshot) -> dict[str, str]:
    """Return what must be the same on every process, by leaf, as short digests.

    The structure stands under "", where no leaf of several can be.
    """
    # Leaves share few placements and holders, and those can be long.
    placements: dict[Any, Any] = {}
    holders: dict[int, str] = {}
    text = json.dumps(snapshot.structure.to_json())
    found = {"": _digest([text, sorted(snapshot.own)])}
    for path, source in snapshot.sources.items():
        leaf, pieces = source.leaf, source.pieces
        placement = leaf.placement
        if placement not in placements:
            placements[placement] = placement.to_json() if placement else None
        said: list[Any] = [leaf.to_json({}, {}), placements[placement]]
        said += [leaf.dtype, leaf.shape, leaf.weak, leaf.impl]
        if pieces is not None:
            key = id(pieces.holders)
            if key not in holders:
                holders[key] = _digest(pieces.holders)
            said += [pieces.piece, holders[key], snapshot.marks.get(path)]
        found[path + "\0"] = _digest(said)
    return found


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def differing_leaves(posts: Sequence[Post]) -> list[str]:
    """Return a line for each leaf that differs, of what `describe_equal` returned."""
    first = posts[0]
    lines: list[str] = []
    for name in dict.fromkeys(name for post in posts for name in post):
        differ = [
            p for p, post in enumerate(posts) if post.get(name) != first.get(name)
        ]
        if differ:
            where = f"at `{name[:-1]}`" if name else "in the tree's structure"
            shown = ", ".join(map(str, differ[:_SHOWN]))
            lines.append(f"{where}: process {shown} and process 0 differ")
    return lines[:_SHOWN]


def post_own(snapshot: Snapshot) -> list[Any]:
    """Return this process's PerProcess values as the others must know them."""
    return [
        [structure.to_json(), [_own_json(source) for source in sources]]
        for structure, sources in snapshot.own.values()
    ]


def _own_json(source: Source) -> dict[str, Any]:
    leaf = source.leaf
    found = {"path": leaf.path, "kind": leaf.kind, "value": leaf.value}
    if source.pieces is None:
        return found
    return found | {
        "dtype": leaf.dtype,
        "shape": leaf.shape,
        "weak": leaf.weak,
        "impl": leaf.impl,
        "piece": source.pieces.piece,
        "placement": leaf.placement.to_json() if leaf.placement else None,
    }


def _own_source(found: dict[str, Any], process: int) -> Source:
    if "dtype" not in found:
        leaf = Leaf(found["path"], found["kind"], value=found["value"])
        return Source(leaf, owner=process)
    placement = found["placement"]
    leaf = Leaf(
        found["path"],
        found["kind"],
        found["dtype"],
        tuple(found["shape"]),
        None if placement is None else layouts.placement_from_json(placement),
        weak=found["weak"],
        impl=found["impl"],
    )
    return Source(leaf, Pieces(tuple(found["piece"])), owner=process)


def complete(
    snapshot: Snapshot, own: Sequence[Sequence[Any]], job: Job
) -> tuple[pytree.Structure, tuple[Source, ...]]:
    """Return the whole structure and its leaves, with all processes' own values.

    `own` has what each process gave for `post_own`.
    """
    if not snapshot.own:
        return snapshot.structure, tuple(snapshot.sources.values())
    sources = dict(snapshot.sources)
    parts: dict[str, list[pytree.Structure]] = {}
    for number, (path, (mine, held)) in enumerate(snapshot.own.items()):
        parts[path] = []
        for process, post in enumerate(own):
            if process == job.process:
                structure, found = mine, held
            else:
                value, leaves = post[number]
                structure = pytree.Structure.from_json(value)
                found = [_own_source(leaf, process) for leaf in leaves]
            parts[path].append(structure)
            sources |= {source.leaf.path: source for source in found}
    whole = pytree.graft(snapshot.structure, parts, type=TYPE)
    return whole, tuple(sources[path] for path in whole.paths)


def plan_known(snapshot: Snapshot, job: Job, *, limits: WriteLimits) -> WritePlan:
    """Return what this process writes, of the leaves that it knows by itself."""
    return plan_save(known_sources(snapshot), job.process, limits=limits)


def known_sources(snapshot: Snapshot) -> tuple[Source, ...]:
    """Return the leaves that this process can describe by itself."""
    own = [source for _, held in snapshot.own.values() for source in held]
    return (*snapshot.sources.values(), *own)


def plan_save(
    sources: Sequence[Source], process: int, *, limits: WriteLimits
) -> WritePlan:
    """Return what a process writes of the described leaves.

    What only one process has does not count when the rest is shared out: so a process
    knows what it will write of the rest before it knows the others' own leaves.
    """
    names = layouts.assign_names(s.leaf.path for s in sources)
    laid = [
        s.leaf
        if s.pieces is None
        else layouts.lay_out(s.leaf, names[s.leaf.path], s.pieces, limits=limits)
        for s in sources
    ]
    shared = [n for n, s in enumerate(sources) if s.owner is None]
    pieces = [sources[n].pieces for n in shared]
    assigned = layouts.assign_writers([laid[n] for n in shared], pieces)
    for number, leaf in zip(shared, assigned, strict=True):
        laid[number] = leaf
    for number, source in enumerate(sources):
        if source.owner is not None:
            laid[number] = layouts.give_to(laid[number], source.owner)
    return layouts.plan_write(laid, process, pack_bytes=limits.pack_bytes)
