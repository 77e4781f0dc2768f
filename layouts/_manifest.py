"""The manifest: everything a later process must know to plan what it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytree

from ._errors import CorruptLayout, InvalidLayout
from ._json import digest, frame, unframe
from ._leaf import Chunked, Leaf, leaf_from_json
from ._mesh import Placement, placement_from_json
from ._name import part_name

MANIFEST = "ckpt-manifest"
CODECS = (None, "zstd", "gzip", "blosc")
_FIELDS = {
    "step",
    "commit",
    "processes",
    "codec",
    "metrics",
    "structure",
    "placements",
    "leaves",
    "parts",
    "meta",
}


@dataclass(frozen=True, slots=True)
class PartRef:
    """The size and SHA-256 of one process's part."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One checkpoint: its tree, its leaves, and the parts that hold the details."""

    step: int
    commit: str
    structure: pytree.Structure
    leaves: tuple[Leaf, ...]
    parts: tuple[PartRef, ...]
    codec: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])
    meta: dict[str, Any] = field(default_factory=dict[str, Any])

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
        leaves = [leaf.to_json(placements) for leaf in self.leaves]
        body = {
            "step": self.step,
            "commit": self.commit,
            "processes": self.processes,
            "codec": self.codec,
            "metrics": self.metrics,
            "structure": self.structure.to_json(),
            "placements": [p.to_json() for p in placements],
            "leaves": leaves,
            "parts": [[p.bytes, p.sha256] for p in self.parts],
            "meta": self.meta,
        }
        return frame(MANIFEST, body)


def parse_manifest(data: bytes) -> Manifest:
    """Read a manifest file, refusing whatever breaks a rule of the format."""
    body = unframe(MANIFEST, data)
    if not isinstance(body, dict) or cast(Any, body).keys() != _FIELDS:
        raise InvalidLayout("expected the manifest's fields, found others")
    fields = cast("dict[str, Any]", body)
    step, commit, codec = fields["step"], fields["commit"], fields["codec"]
    if type(step) is not int or not 0 <= step < 1 << 63 or not _is_commit(commit):
        raise InvalidLayout(f"expected a step and a commit id, found {step!r:.40}")
    if codec not in CODECS:
        raise InvalidLayout(f"expected one of the codecs {CODECS}, found {codec!r:.40}")
    for name in ("metrics", "meta"):
        if not isinstance(fields[name], dict):
            raise InvalidLayout(f"expected {name} to be an object")
    parts = tuple(_part_ref(p) for p in _list(fields["parts"], "parts"))
    if fields["processes"] != len(parts) or not parts:
        raise InvalidLayout(f"expected a part for each process, found {len(parts)}")
    placements = [
        placement_from_json(p) for p in _list(fields["placements"], "placements")
    ]
    leaves = tuple(
        leaf_from_json(v, placements, len(parts))
        for v in _list(fields["leaves"], "leaves")
    )
    try:
        structure = pytree.Structure.from_json(fields["structure"])
    except pytree.InvalidStructure as error:
        raise InvalidLayout(str(error)) from None
    if structure.paths != tuple(leaf.path for leaf in leaves):
        raise InvalidLayout("expected the leaves that the structure names, in order")
    check_distinct(leaves)
    return Manifest(
        step,
        cast(str, commit),
        structure,
        leaves,
        parts,
        cast("str | None", codec),
        fields["metrics"],
        fields["meta"],
    )


def check_distinct(leaves: tuple[Leaf, ...]) -> None:
    """Refuse arrays whose names are equal but for case, or lie in one another."""
    names = [x.store.name.casefold() for x in leaves if isinstance(x.store, Chunked)]
    taken = set(names)
    if len(taken) != len(names):
        raise InvalidLayout("expected distinct array names, found one twice")
    for name in names:
        if name.split("/", 1)[0] in ("~packs", "parts", "manifest.json", "zarr.json"):
            raise InvalidLayout(f"expected a leaf's array name, found {name!r:.80}")
        while "/" in name:
            name = name.rpartition("/")[0]
            if name in taken:
                raise InvalidLayout(f"expected no array inside another: {name!r:.80}")


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidLayout(f"expected a list of {what}, found {value!r:.40}")
    return cast("list[Any]", value)


def _part_ref(value: Any) -> PartRef:
    if isinstance(value, list) and len(cast("list[Any]", value)) == 2:
        size, sha256 = cast("list[Any]", value)
        if type(size) is int and 0 < size < 1 << 40 and isinstance(sha256, str):
            return PartRef(size, sha256)
    raise InvalidLayout(f"expected a part's size and SHA-256, found {value!r:.80}")


def _is_commit(value: Any) -> bool:
    return (
        isinstance(value, str)
        and 8 <= len(value) <= 64
        and all(c in "0123456789abcdef" for c in value)
    )


def check_part_bytes(manifest: Manifest, process: int, data: bytes) -> None:
    """Refuse a part whose bytes are not the ones the manifest names."""
    ref = manifest.parts[process]
    if len(data) != ref.bytes or digest(data) != ref.sha256:
        raise CorruptLayout(
            f"expected {part_name(process)} with its SHA-256, found another"
        )
