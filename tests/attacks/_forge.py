"""Hostile checkpoints: an honest one, changed, with every digest made to fit again.

Frames and digests are made here from the description of the format, not by the code
under test: an attack must reach the check that it is aimed at.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crc32c import crc32c

Json = dict[str, Any]


def dump(value: Any) -> bytes:
    """Return compact JSON, NaN and lone surrogates included."""
    return json.dumps(value, separators=(",", ":")).encode()


def seal(kind: str, body: bytes, **changes: Any) -> bytes:
    """Return a framed document whose length and digest are right."""
    header: Json = {"format": kind, "version": 1, "requires": [], "length": len(body)}
    header |= changes
    digest = hashlib.sha256(dump(header) + b"\n" + body).hexdigest()
    return dump(header | {"sha256": digest}) + b"\n" + body + b"\n"


def unseal(data: bytes) -> Json:
    """Return the body of an honest document."""
    return json.loads(data.partition(b"\n")[2])


@dataclass(slots=True)
class Forgery:
    """A copy of an honest run with one step, and its documents, open for changes."""

    run: Path
    outside: Path
    folder: Path
    manifest: Json
    part: Json
    record: Json
    features: list[str] = field(default_factory=list[str])

    @property
    def record_path(self) -> Path:
        """The commit record."""
        return self.run / "steps" / "1.json"

    def leaf(self, path: str) -> Json:
        """Return the manifest's entry of a leaf."""
        return next(x for x in self.manifest["leaves"] if x["path"] == path)

    def number(self, path: str) -> int:
        """Return the number of a leaf."""
        return self.manifest["leaves"].index(self.leaf(path))

    @property
    def objects(self) -> Json:
        """The part's columns of objects."""
        return self.part["objects"]

    def chunks(self, path: str) -> range:
        """Return where the checksums and lengths of a leaf's chunks stand."""
        counts = [
            _count_chunks(self.manifest["leaves"][leaf], cell)
            for leaf, cell in zip(
                self.objects["leaf"], self.objects["object"], strict=True
            )
        ]
        leaves, number = self.objects["leaf"], self.number(path)
        first, many = leaves.index(number), leaves.count(number)
        start = sum(counts[:first])
        return range(start, start + sum(counts[first : first + many]))

    def drop_objects(self, path: str) -> None:
        """Remove a leaf's objects from the part of a checkpoint without a codec."""
        chunks, number = self.chunks(path), self.number(path)
        crcs = self.objects["crc32c"]
        self.objects["crc32c"] = crcs[: 8 * chunks.start] + crcs[8 * chunks.stop :]
        kept = [at for at, x in enumerate(self.objects["leaf"]) if x != number]
        for name in ("leaf", "object"):
            self.objects[name] = [self.objects[name][at] for at in kept]

    def row(self, path: str) -> int:
        """Return the number of a small leaf's row in the packs."""
        return self.part["packs"]["leaf"].index(self.number(path))

    def set_checksum(self, row: int, data: bytes) -> None:
        """Give a row of the packs the checksum of these bytes."""
        crcs, at = self.part["packs"]["crc32c"], 8 * row
        crc = f"{crc32c(data):08x}"
        self.part["packs"]["crc32c"] = crcs[:at] + crc + crcs[at + 8 :]

    def put(self, path: str, data: bytes) -> None:
        """Replace the bytes of a small leaf, its checksum too; the length is kept."""
        row, packs = self.row(path), self.part["packs"]
        pack = self.folder / f"~packs/0-{packs['pack'][row]}/c/0"
        old, start = pack.read_bytes(), packs["offset"][row]
        if len(data) != packs["length"][row]:
            raise ValueError(f"Expected {packs['length'][row]} bytes of `{path}`")
        pack.write_bytes(old[:start] + data + old[start + len(data) :])
        self.set_checksum(row, data)

    def write(self) -> None:
        """Write the documents, each with the digests of what it names."""
        self.write_manifest(dump(self.manifest | self.seal_part()))

    def seal_part(self) -> Json:
        """Write the part and return what the manifest must say of it."""
        data = seal("ckpt-part", dump(self.part), requires=self.features)
        (self.folder / "parts/0.json").write_bytes(data)
        rest = self.manifest["parts"][1:]
        return {"parts": [[len(data), hashlib.sha256(data).hexdigest()], *rest]}

    def write_manifest(self, body: bytes, **header: Any) -> None:
        """Write a manifest with any body, and a record that fits it."""
        header = {"requires": self.features} | header
        self.commit(seal("ckpt-manifest", body, **header))

    def commit(self, data: bytes) -> None:
        """Write any bytes as the manifest, and a record that fits them."""
        (self.folder / "manifest.json").write_bytes(data)
        named = {"manifest": [len(data), hashlib.sha256(data).hexdigest()]}
        self.record_path.write_bytes(seal("ckpt-commit", dump(self.record | named)))


def _count_chunks(leaf: Json, number: int) -> int:
    """Return how many chunks the numbered object of an array holds."""
    count = 1
    dimensions = zip(leaf["shape"], leaf["object"], leaf["chunk"], strict=True)
    for length, cell, chunk in reversed(list(dimensions)):
        number, at = divmod(number, -(-length // cell))
        count *= -(-min(cell, length - at * cell) // chunk)
    return count


def forge(honest: Path, place: Path) -> Forgery:
    """Return a forgery that is as yet a faithful copy of an honest run."""
    run, outside = place / "run", place / "outside"
    shutil.copytree(honest, run)
    outside.mkdir()
    [folder] = run.glob("1-*")
    record = unseal((run / "steps/1.json").read_bytes())
    del record["manifest"]
    return Forgery(
        run,
        outside,
        folder,
        unseal((folder / "manifest.json").read_bytes()),
        unseal((folder / "parts/0.json").read_bytes()),
        record,
    )
