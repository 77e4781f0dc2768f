"""Parts and manifests say what lies elsewhere, and agree on it."""

from dataclasses import replace

import numpy as np
import pytest

import layouts
import pytree
from layouts import Chunked, Leaf, Manifest, ObjectPart, Part, PartRef, Reused, Writers

OTHERS = ("3-00000000000000aa", "4-00000000000000bb")
SOURCES = {0: ("", OTHERS[1]), 1: (OTHERS[0], OTHERS[1])}


def make_manifest() -> Manifest:
    """Make a manifest of one array, whose four objects two processes have written."""
    _, structure = pytree.flatten({"w": 0})
    store = Chunked("w", (2, 4), (1, 4), Writers(((0, 2), (1, 2))))
    leaf = Leaf("w", "numpy", "float32", (8, 4), store=store)
    parts = (PartRef(1, "0" * 64),) * 2
    reused = Reused(OTHERS, (0,), (1, 2))
    return Manifest(5, "00000000000000cc", structure, (leaf,), parts, reused=reused)


def make_part(process: int) -> Part:
    objects = [
        ObjectPart(
            0,
            2 * process + n,
            np.array([process, n], np.uint32),
            hash=bytes([process, n] * 8),
            source=source,
        )
        for n, source in enumerate(SOURCES[process])
    ]
    empty = np.array([], np.uint32)
    return Part(process, "00000000000000cc", tuple(objects), (), empty, hashed=True)


def name_parts(manifest: Manifest, parts: list[bytes]) -> Manifest:
    refs = tuple(PartRef(len(data), layouts.digest(data)) for data in parts)
    return replace(manifest, parts=refs)


def test_a_part_comes_back_with_hashes_and_sources() -> None:
    parts = [make_part(process).encode() for process in (0, 1)]
    manifest = name_parts(make_manifest(), parts)
    assert layouts.parse_manifest(manifest.encode()).reused == manifest.reused
    for process, data in enumerate(parts):
        found = layouts.parse_part(manifest, process, data)
        assert [o.source for o in found.objects] == list(SOURCES[process])
        assert [o.hash for o in found.objects] == [
            bytes([process, n] * 8) for n in (0, 1)
        ]
    layouts.check_parts(manifest, enumerate(parts))


@pytest.mark.parametrize(
    "reused",
    [
        Reused((), (), (0, 0)),
        Reused(OTHERS, (0,), (2, 1)),
        Reused((*OTHERS, "6-00000000000000dd"), (0,), (1, 2)),
    ],
)
def test_a_manifest_says_what_its_parts_say(reused: Reused) -> None:
    parts = [make_part(process).encode() for process in (0, 1)]
    manifest = replace(name_parts(make_manifest(), parts), reused=reused)
    with pytest.raises(layouts.InvalidLayout, match=r"reuse|manifest names"):
        layouts.check_parts(manifest, enumerate(parts))


def test_writes_elsewhere_are_not_counted() -> None:
    manifest = make_manifest()
    # Two own objects, less one and two; a part each; note, record, manifest and the
    # note of what is needed; the group's zarr.json.
    assert layouts.count_writes(manifest).tolist() == [2 - 1 + 1 + 4 + 1, 2 - 2 + 1]
