"""Valid documents, random and fixed, and a frame made from its description alone."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import layouts
import pytree
from layouts import (
    CommitRecord,
    FileEntry,
    Leaf,
    Manifest,
    ObjectPart,
    Packed,
    Part,
    PartRef,
    Placement,
    Writers,
)
from tests.layouts._cases import pieces_of, placed, stored

Json = Any
COMMIT = "0123456789abcdef"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
)
INLINE = {
    "int": st.integers().map(hex),
    "float": st.floats(allow_nan=False).map(float.hex),
    "bool": st.booleans(),
    "complex": st.tuples(TEXT, TEXT).map(list),
    "str": TEXT,
    "bytes": st.binary(max_size=8).map(bytes.hex),
}


def dump(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def seal(kind: str, body: bytes | Json, **changes: Json) -> bytes:
    """Return a framed document, as the format describes it; None drops a field."""
    data = body if isinstance(body, bytes) else dump(body)
    header: dict[str, Json] = {
        "format": kind,
        "version": 1,
        "requires": [],
        "length": len(data),
    }
    header = {k: v for k, v in (header | changes).items() if v is not None}
    sha256 = hashlib.sha256(dump(header) + b"\n" + data).hexdigest()
    return dump(header | {"sha256": sha256}) + b"\n" + data + b"\n"


def unseal(data: bytes) -> Json:
    """Return the body of a valid document."""
    return json.loads(data.partition(b"\n")[2])


def places(value: Json, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value in a JSON value."""
    yield at
    if isinstance(value, (dict, list)):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from places(value[key], (*at, key))


def change(value: Json, at: tuple[Any, ...], new: Json) -> Json:
    """Return a copy of a JSON value with another one at a place; ... removes it."""
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if new is ... and len(at) == 1:
        del copy[at[0]]
    else:
        present = at[0] in copy if isinstance(copy, dict) else at[0] < len(copy)
        inner = change(copy[at[0]] if present else None, at[1:], new)
        if isinstance(copy, list) and not present:
            copy.append(inner)
        else:
            copy[at[0]] = inner
    return copy


@st.composite
def leaves_of(draw: st.DrawFn, paths: tuple[str, ...], count: int) -> list[Leaf]:
    """Draw a leaf for each path, written by some of `count` processes."""
    names = layouts.assign_names(paths)
    leaves: list[Leaf] = []
    for path in paths:
        if draw(st.booleans()):
            kind = draw(st.sampled_from(sorted(INLINE)))
            leaves.append(Leaf(path, kind, value=draw(INLINE[kind])))
            continue
        layout = draw(placed())
        leaf = draw(stored(layout, names[path]))
        size = layout.mesh.size
        process = st.integers(0, count - 1)
        processes = draw(st.lists(process, min_size=size, max_size=size))
        held = pieces_of(layout, processes)
        (leaf,) = layouts.assign_writers([leaf], [held])
        kind = draw(st.sampled_from(["jax", "numpy", "key"]))
        leaves.append(
            replace(
                leaf,
                path=path,
                kind=kind,
                dtype="uint32" if kind == "key" else leaf.dtype,
                impl=draw(TEXT) if kind == "key" else None,
                weak=draw(st.booleans()),
                placement=draw(
                    st.sampled_from(
                        [
                            None,
                            Placement(None, None),
                            Placement(layout.mesh, layout.spec),
                            Placement(layout.mesh, layout.spec, "pinned_host"),
                            Placement(layout.mesh, None, "unpinned_host"),
                        ]
                    )
                ),
            )
        )
    return leaves


@st.composite
def manifests(draw: st.DrawFn) -> tuple[Manifest, list[Part]]:
    """Draw a manifest and the parts that it names."""
    tree = draw(st.dictionaries(TEXT, st.lists(st.just(0), max_size=2), max_size=4))
    _, structure = pytree.flatten(tree)
    count = draw(st.integers(1, 3))
    draft = Manifest(
        draw(st.integers(0, (1 << 63) - 1)),
        draw(st.text("0123456789abcdef", min_size=8, max_size=64)),
        structure,
        tuple(draw(leaves_of(structure.paths, count))),
        (),
        draw(st.sampled_from(layouts.CODECS)),
        draw(st.dictionaries(TEXT, VALUES, max_size=3)),
        draw(st.dictionaries(TEXT, st.lists(VALUES, max_size=2), max_size=2)),
    )
    seed = draw(st.integers(0, 9))
    parts = [make_part(draft, process, seed=seed) for process in range(count)]
    return name_parts(draft, parts), parts


def make_part(manifest: Manifest, process: int, *, seed: int = 0) -> Part:
    """Return a part with random checksums for what a process writes."""
    random = np.random.default_rng(seed)

    def numbers(count: int, most: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return random.integers(1, most, count, np.int64)

    objects: list[ObjectPart] = []
    for leaf, number in layouts.expected_objects(manifest, process):
        count = layouts.object_chunks(manifest, leaf, number).length
        size = layouts.chunk_bytes(manifest, leaf)
        lengths = numbers(count, size + 1) if manifest.codec else None
        crcs = numbers(count, 1 << 32).astype(np.uint32)
        objects.append(ObjectPart(leaf, number, crcs, lengths))
    limit = manifest.pack_bytes
    rows = tuple(layouts.pack_rows(manifest.leaves, process, limit=limit))
    crcs = numbers(len(rows), 1 << 32).astype(np.uint32)
    files = (FileEntry("zarr.json", 17, 1 << 31), FileEntry("a/zarr.json", 0, 0))
    return Part(
        process, manifest.commit, tuple(objects), rows, crcs, () if process else files
    )


def name_parts(manifest: Manifest, parts: list[Part]) -> Manifest:
    """Return the manifest with the sizes and digests of its parts."""
    return replace(manifest, parts=name_data([part.encode() for part in parts]))


def name_data(data: Iterable[bytes]) -> tuple[PartRef, ...]:
    """Return the sizes and digests by which a manifest names parts."""
    return tuple(PartRef(len(d), hashlib.sha256(d).hexdigest()) for d in data)


def example(codec: str | None = None) -> tuple[Manifest, list[Part]]:
    """Return a small manifest of every kind of leaf, with its two parts."""
    mesh = layouts.mesh_layout({"x": 2, "y": 2})
    placed = Placement(mesh, (("x",), ("y",)), "pinned_host")
    paths = ("W", "b", "key", "n")
    _, structure = pytree.flatten(dict.fromkeys(paths, 0))
    runs = Writers(((0, 2), (1, 2)))
    leaves = (
        Leaf(
            "W",
            "jax",
            "float32",
            (8, 6),
            placed,
            layouts.Chunked("W", (4, 3), (2, 3), runs),
        ),
        Leaf(
            "b", "jax", "bfloat16", (8,), None, Packed((4,), Writers(((1, 1), (0, 1))))
        ),
        Leaf("key", "key", "uint32", (2,), None, Packed((2,)), impl="fry"),
        Leaf("n", "int", value="0x5"),
    )
    metrics = {"loss": 2.5}
    draft = Manifest(7, COMMIT, structure, leaves, (), codec, metrics, {"began": 1})
    parts = [make_part(draft, process) for process in range(2)]
    return name_parts(draft, parts), parts


def example_record() -> CommitRecord:
    return CommitRecord(7, COMMIT, 1234, "ab" * 32)
