"""Damage to the files of a checkpoint, one at a time, and what the library makes of it.

Damage is refused when restore raises a `CkptError`, harmless when the tree comes back
equal to the last bit, and silent when another tree does.
"""

import json
import math
import random
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import ckpt
from tests.faults._trees import WrongTree, make_tree, place_tree, restore_seed

SEED = 5


@dataclass(frozen=True, slots=True)
class Damage:
    """A change of files: a name for people, and what each file holds then, if any."""

    name: str
    files: dict[Path, bytes | None]


@dataclass(frozen=True, slots=True)
class Figures:
    """How restore ended for each kind of damage, and what was wrong with that."""

    ends: Counter[str]
    silent: tuple[str, ...]
    unreported: tuple[str, ...]

    def __str__(self) -> str:
        ends = ", ".join(f"{name} {count}" for name, count in sorted(self.ends.items()))
        return (
            f"{self.ends.total()} damages ({ends}), {len(self.silent)} silently wrong, "
            f"{len(self.unreported)} not reported by verify"
        )


def files_of(run: Path) -> list[Path]:
    """Return every file of a run, its commit records too."""
    return sorted(path for path in run.rglob("*") if path.is_file())


def flips(run: Path, *, count: int, seed: int = 0) -> Iterator[Damage]:
    """Flip random single bits: half of them in any file, half in any byte."""
    generator = random.Random(seed)
    contents = {path: path.read_bytes() for path in files_of(run)}
    sizes = [len(data) for data in contents.values()]
    for number in range(count):
        weights = sizes if number % 2 else None
        (path,) = generator.choices(list(contents), weights)
        data = bytearray(contents[path])
        bit = generator.randrange(len(data) * 8)
        data[bit // 8] ^= 1 << bit % 8
        yield Damage(f"bit {bit} of {path.relative_to(run)}", {path: bytes(data)})


def losses(run: Path, *, seed: int = 0) -> Iterator[Damage]:
    """Truncate, empty, lengthen and delete each file."""
    generator = random.Random(seed)
    for path in files_of(run):
        data, name = path.read_bytes(), path.relative_to(run)
        some = generator.randrange(1, len(data))
        for size in (0, some, len(data) - 1):
            yield Damage(f"{name} cut to {size} bytes", {path: data[:size]})
        yield Damage(f"{name} with a byte more", {path: data + b"\0"})
        yield Damage(f"{name} deleted", {path: None})


def swaps(run: Path) -> Iterator[Damage]:
    """Swap any two files that differ, those of one shape and size among them."""
    contents = {path: path.read_bytes() for path in files_of(run)}
    for one, other in combinations(contents, 2):
        if contents[one] != contents[other]:
            name = f"{one.relative_to(run)} and {other.relative_to(run)} swapped"
            yield Damage(name, {one: contents[other], other: contents[one]})


def chunk_swaps(run: Path) -> Iterator[Damage]:
    """Swap any two chunks of one size within an object, their checksums too.

    A Zarr shard ends with the offset and length of each chunk, and a checksum.
    """
    for path in files_of(run):
        for one, other in combinations(_chunk_spans(path), 2):
            data = bytearray(path.read_bytes())
            if one[1] == other[1]:
                a, b = (slice(start, start + size) for start, size in (one, other))
                data[a], data[b] = data[b], data[a]
                name = f"{one} and {other} of {path.relative_to(run)} swapped"
                yield Damage(name, {path: bytes(data)})


def _chunk_spans(path: Path) -> list[tuple[int, int]]:
    """Return where the chunks of an object lie, [] for other files."""
    folders = [above for above in path.parents if above.name == "c"]
    if not folders:
        return []
    document = json.loads((folders[-1].parent / "zarr.json").read_text())
    whole = document["chunk_grid"]["configuration"]["chunk_shape"]
    (first, *_) = document["codecs"]
    if first["name"] != "sharding_indexed":
        return []
    chunk = first["configuration"]["chunk_shape"]
    count = math.prod(a // b for a, b in zip(whole, chunk, strict=True))
    return list(struct.iter_unpack("<QQ", path.read_bytes()[-4 - 16 * count : -4]))


def make_checkpoint(run: Path, *, codec: str | None = None) -> None:
    """Save step 1: arrays of two objects of two chunks each, and packed leaves."""
    state, mesh = place_tree(make_tree(SEED, "wide"), devices=2)
    ckpt.save(state, mesh, run, step=1, codec=codec)


@contextmanager
def damaged(damage: Damage) -> Iterator[None]:
    """Do damage for the time of a `with`."""
    before = {path: path.read_bytes() for path in damage.files}
    try:
        for path, data in damage.files.items():
            if data is None:
                path.unlink()
            else:
                path.write_bytes(data)
        yield
    finally:
        for path, data in before.items():
            path.write_bytes(data)


def restore_end(run: Path) -> str:
    """Say how a restore of the run ends: an error of ours, "equal" or "silent"."""
    try:
        return "equal" if restore_seed(run, 1) == SEED else "silent"
    except ckpt.CkptError as error:
        return type(error).__name__
    except (WrongTree, KeyError, IndexError):
        return "silent"


def is_reported(run: Path) -> bool:
    """Tell whether verify refuses a run or reports it."""
    try:
        return not ckpt.verify(run, step=1).ok
    except ckpt.CkptError:
        return True


def do_damages(run: Path, damages: Iterator[Damage]) -> Figures:
    """Do each damage to the run, restore, verify, and undo it."""
    ends: Counter[str] = Counter()
    silent: list[str] = []
    unreported: list[str] = []
    for damage in damages:
        with damaged(damage):
            end = restore_end(run)
            ends[end] += 1
            if end == "silent":
                silent.append(damage.name)
            if not is_reported(run):
                unreported.append(damage.name)
    return Figures(ends, tuple(silent), tuple(unreported))
