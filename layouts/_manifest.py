"""The manifest: everything a later process must know to plan what it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytree

from ._cut import PACK_BYTES
from ._errors import CorruptLayout, InvalidLayout, TooLarge, show
from ._expect import expect_fields, expect_int, expect_list
from ._json import VALUES, check_depth, digest, frame, open_frame
from ._leaf import Chunked, Leaf
from ._leaf_json import leaf_from_json
from ._mesh import Placement, placement_from_json
from ._name import part_name
from ._record import attempt_directory, is_commit, parse_reference
from ._reused import REUSE, Reused, parse_reused
from ._writers import Writers, writers_from_json

MANIFEST = "ckpt-manifest"
CODECS = (None, "zstd", "gzip", "blosc")
_FIELDS = {
    "step",
    "commit",
    "processes",
    "codec",
    "metrics",
    "structure",
    "pack_bytes",
    "placements",
    "writers",
    "leaves",
    "parts",
    "meta",
}
_RESERVED = {"~packs", "parts", "manifest.json"}
_DEPTH = 16
"""Metrics and meta are nested at most this deep."""


@dataclass(frozen=True, slots=True)
class PartRef:
    """The size and SHA-256 of one process's part."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One checkpoint: its tree, its leaves, and the parts that hold the details.

    `reused` is None where the objects have no hashes.
    """

    step: int
    commit: str
    structure: pytree.Structure
    leaves: tuple[Leaf, ...]
    parts: tuple[PartRef, ...]
    codec: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])
    meta: dict[str, Any] = field(default_factory=dict[str, Any])
    pack_bytes: int = PACK_BYTES
    reused: Reused | None = None

    @property
    def directory(self) -> str:
        """The checkpoint's directory, relative to the run."""
        return attempt_directory(self.step, self.commit)

    @property
    def processes(self) -> int:
        """How many processes wrote the checkpoint."""
        return len(self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of all the arrays, each counted once."""
        return sum(leaf.nbytes for leaf in self.leaves)

    def encode(self) -> bytes:
        """Return the manifest as its file."""
        placements: dict[Placement, int] = {}
        writers: dict[Writers, int] = {}
        leaves = [leaf.to_json(placements, writers) for leaf in self.leaves]
        body: dict[str, Any] = {
            "step": self.step,
            "commit": self.commit,
            "processes": self.processes,
            "codec": self.codec,
            "metrics": self.metrics,
            "structure": self.structure.to_json(),
            "pack_bytes": self.pack_bytes,
            "placements": [p.to_json() for p in placements],
            "writers": [w.to_json() for w in writers],
            "leaves": leaves,
            "parts": [[p.bytes, p.sha256] for p in self.parts],
            "meta": self.meta,
        }
        if self.reused is None:
            return frame(MANIFEST, body)
        body["reused"] = self.reused.to_json()
        return frame(MANIFEST, body, requires=(REUSE,))


def parse_manifest(data: bytes) -> Manifest:
    """Read a manifest file, refusing whatever breaks a rule of the format."""
    body, features = open_frame(MANIFEST, data, known=(REUSE,))
    names = _FIELDS | {"reused"} if features else _FIELDS
    fields = expect_fields(body, names, "a manifest")
    step = expect_int(fields["step"], "a step", below=1 << 63)
    commit, codec = fields["commit"], fields["codec"]
    if not is_commit(commit):
        raise InvalidLayout(f"expected a commit id, found {show(commit)}")
    if codec not in CODECS:
        raise InvalidLayout(f"expected one of the codecs {CODECS}, found {show(codec)}")
    for name in ("metrics", "meta"):
        if not isinstance(fields[name], dict):
            raise InvalidLayout(
                f"expected {name} to be an object, found {show(fields[name])}"
            )
        check_depth(fields[name], depth=_DEPTH)
    parts = _parse_parts(fields)
    placements = [
        placement_from_json(p) for p in expect_list(fields["placements"], "placements")
    ]
    pack_bytes = expect_int(
        fields["pack_bytes"], "the bytes of a pack", least=1, below=PACK_BYTES + 1
    )
    writers = [
        writers_from_json(w, len(parts))
        for w in expect_list(fields["writers"], "writers")
    ]
    leaves = tuple(
        [
            leaf_from_json(value, placements, writers)
            for value in expect_list(fields["leaves"], "leaves")
        ]
    )
    _check_room(leaves, parts)
    check_distinct(leaves)
    reused = None
    if features:
        reused = parse_reused(
            fields["reused"],
            own=attempt_directory(step, commit),
            sizes=[
                leaf.cells.length if isinstance(leaf.store, Chunked) else 0
                for leaf in leaves
            ],
            count=len(parts),
        )
    return Manifest(
        step,
        commit,
        _parse_structure(fields["structure"], leaves),
        leaves,
        parts,
        codec,
        fields["metrics"],
        fields["meta"],
        pack_bytes,
        reused,
    )


def _parse_parts(fields: dict[str, Any]) -> tuple[PartRef, ...]:
    parts = tuple(
        [
            PartRef(*parse_reference(part, part_name(process)))
            for process, part in enumerate(expect_list(fields["parts"], "parts"))
        ]
    )
    processes = fields["processes"]
    if type(processes) is not int or processes != len(parts) or not parts:
        raise InvalidLayout(
            f"expected a part for each process, found {len(parts)} "
            f"for {show(processes)}"
        )
    return parts


def _parse_structure(value: Any, leaves: tuple[Leaf, ...]) -> pytree.Structure:
    try:
        structure = pytree.Structure.from_json(value)
    except pytree.InvalidStructure as error:
        raise InvalidLayout(f"{error!s:.500}") from None
    except RecursionError:
        raise TooLarge("expected static data of reasonable depth") from None
    if structure.paths != tuple([leaf.path for leaf in leaves]):
        raise InvalidLayout("expected the leaves that the structure names, in order")
    return structure


def _check_room(leaves: tuple[Leaf, ...], parts: tuple[PartRef, ...]) -> None:
    """Refuse more cells and chunks than the parts have room to describe.

    A chunk takes 8 bytes of its part at least (its checksum), an object 4 bytes and 2
    values, a packed piece 10 bytes and 5 values: so no plan is larger than a multiple
    of the documents that it is made of.
    """
    objects = pieces = chunks = 0
    for leaf in leaves:
        if not leaf.store or 0 in leaf.shape:
            continue
        if isinstance(leaf.store, Chunked):
            objects, chunks = objects + leaf.cells.length, chunks + leaf.chunks.length
        elif leaf.cells.cell == leaf.shape:
            pieces += 1
        else:
            pieces += leaf.cells.length
    room = sum([part.bytes for part in parts])
    needed = 8 * (chunks + pieces) + 4 * objects + 10 * pieces
    if needed > room or 2 * objects + 5 * pieces > VALUES * len(parts):
        raise TooLarge(
            f"expected as many cells and chunks as {room} bytes of parts describe, "
            f"found {objects + pieces} and {chunks + pieces}"
        )


def check_distinct(leaves: tuple[Leaf, ...]) -> None:
    """Refuse arrays whose names are equal but for case, or lie in one another."""
    names = sorted(
        leaf.store.name.casefold().split("/")
        for leaf in leaves
        if isinstance(leaf.store, Chunked)
    )
    for name in names:
        if name[0] in _RESERVED or "zarr.json" in name:
            raise InvalidLayout(f"expected the name of an array, found {show(name)}")
    # In this order the first name below another comes right after it.
    for name, following in pairwise(names):
        if following[: len(name)] == name:
            raise InvalidLayout(
                "expected distinct array names, none inside another, "
                f"found {show(name)} and {show(following)}"
            )


def check_part_bytes(manifest: Manifest, process: int, data: bytes) -> None:
    """Refuse a part whose bytes are not the ones the manifest names."""
    ref = manifest.parts[process]
    if len(data) != ref.bytes or digest(data) != ref.sha256:
        raise CorruptLayout(
            f"expected {part_name(process)} with its SHA-256, found another"
        )
