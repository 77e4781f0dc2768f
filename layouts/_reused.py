"""Objects that lie in other directories of a run: what manifests and parts say of them.

A save with `reuse=True` gives each object a hash of its values, and does not write one
that an earlier step has. Its manifest and parts require the feature, so that a reader
that does not know it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._errors import InvalidLayout, show
from ._expect import expect_fields, expect_int, expect_list
from ._record import attempt_directory, attempt_of_directory

REUSE = "reuse"
"""The entry of `requires` of manifests and parts that have hashes."""

HASH_BYTES = 16
_FIELDS = {"directories", "leaves", "objects"}
_COUNT = 1 << 40


@dataclass(frozen=True, slots=True)
class Reused:
    """What a checkpoint has in other directories: none, where nothing was equal.

    `directories` hold objects of the `leaves` with these numbers; `objects` says how
    many objects of each process they are.
    """

    directories: tuple[str, ...] = ()
    leaves: tuple[int, ...] = ()
    objects: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as the field of a manifest."""
        return {
            "directories": self.directories,
            "leaves": self.leaves,
            "objects": self.objects,
        }


def merge_reused(parts: Sequence[Reused]) -> Reused:
    """Return what all processes together reuse, given what each does, in order."""
    return Reused(
        tuple(sorted({name for part in parts for name in part.directories})),
        tuple(sorted({leaf for part in parts for leaf in part.leaves})),
        tuple([sum(part.objects) for part in parts]),
    )


def parse_reused(value: Any, *, own: str, sizes: Sequence[int], count: int) -> Reused:
    """Read what a manifest says; `own` is its directory, `count` its processes.

    `sizes` has the number of objects of each leaf, 0 of one that has none.
    """
    fields = expect_fields(value, _FIELDS, "what is reused")
    leaves = [
        expect_int(number, "a leaf with reused objects", below=len(sizes))
        for number in expect_list(fields["leaves"], "leaves")
    ]
    counts = [
        expect_int(number, "a count of objects", below=_COUNT)
        for number in expect_list(fields["objects"], "counts", length=count)
    ]
    total = sum(counts)
    most = sum([sizes[number] for number in leaves])
    sound = leaves == sorted(set(leaves)) and all(sizes[n] for n in leaves)
    if not sound or not len(leaves) <= total <= most:
        raise InvalidLayout(
            f"expected leaves in order with {total} reused objects, found "
            f"{show(leaves)}"
        )
    directories = parse_directories(fields["directories"], own=own)
    if len(directories) > total or bool(directories) != bool(total):
        raise InvalidLayout(
            f"expected the directories of {total} reused objects, found "
            f"{show(list(directories))}"
        )
    return Reused(directories, tuple(leaves), tuple(counts))


def parse_directories(value: Any, *, own: str) -> tuple[str, ...]:
    """Read a list of directories of a run, sorted, none twice, without one's own."""
    names = expect_list(value, "directories")
    for name in names:
        parsed = attempt_of_directory(name) if isinstance(name, str) else None
        if parsed is None or name != attempt_directory(*parsed) or name == own:
            raise InvalidLayout(
                f"expected another directory of the run, found {show(name)}"
            )
    if names != sorted(set(names)):
        raise InvalidLayout(
            f"expected directories in order, each once, found {show(names)}"
        )
    return tuple(names)


def parse_sources(
    names: Any, numbers: Any, reused: Reused, *, own: str, count: int
) -> list[str]:
    """Return the directory of each of a part's objects, "" for its own.

    The part numbers the directories from 1; each must be one that the manifest names.
    """
    directories = ("", *parse_directories(names, own=own))
    if unknown := sorted(set(directories[1:]) - set(reused.directories)):
        raise InvalidLayout(
            f"expected directories that the manifest names, found {show(unknown)}"
        )
    given = expect_list(numbers, "sources of objects", length=count)
    for number in given:
        expect_int(number, "the source of an object", below=len(directories))
    if set(given) | {0} != set(range(len(directories))):
        raise InvalidLayout(
            f"expected objects in each of {show(list(directories[1:]))}, found none"
        )
    return [directories[number] for number in given]


def parse_hashes(text: Any, count: int) -> list[bytes]:
    """Read the hashes of objects from one text of hexadecimal digits."""
    if not isinstance(text, str) or len(text) != 2 * HASH_BYTES * count:
        raise InvalidLayout(f"expected {count} hashes, found {show(text)}")
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if data.hex() != text:
        raise InvalidLayout(f"expected hashes in hexadecimal, found {show(text)}")
    return [data[n : n + HASH_BYTES] for n in range(0, len(data), HASH_BYTES)]
