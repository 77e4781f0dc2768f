"""Jobs of thousands of processes, made without running them."""

import hashlib
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import layouts
import pytree
from layouts import Box, Chunked, Leaf, Manifest, Packed, PartRef, Pieces, ReadPlan
from tests.layouts._documents import COMMIT, dump, seal

LEAVES = 400


def make_job(processes: int, *, codec: str | None = None) -> Manifest:
    """Return a manifest of a tree whose leaves are cut in rows over all processes.

    Of an even leaf each process has an object of four chunks, of an odd one a piece of
    16 bytes.
    """
    held = tuple((process,) for process in range(processes))
    leaves: list[Leaf] = []
    pieces: list[Pieces] = []
    for number in range(LEAVES):
        rows, store = 1, Packed((1, 16))
        if number % 2 == 0:
            rows, store = 4, Chunked(f"w{number}", (4, 16), (1, 16))
        shape = rows * processes, 16
        leaves.append(Leaf(f"w{number}", "jax", "uint8", shape, store=store))
        pieces.append(Pieces((rows, 16), held))
    _, structure = pytree.flatten({leaf.path: 0 for leaf in leaves})
    assigned = layouts.assign_writers(leaves, pieces)
    return Manifest(1, COMMIT, structure, assigned, (), codec)


def make_parts(processes: int, *, codec: str | None = None) -> Iterator[bytes]:
    """Yield the parts of that job, from the description of the format alone."""
    half = LEAVES // 2
    for process in range(processes):
        objects = {
            "leaf": [*range(0, LEAVES, 2)],
            "object": [process] * half,
            "crc32c": f"{process:08x}" * 4 * half,
            "lengths": [16 + process % 7] * 4 * half if codec else [],
        }
        packs = {
            "leaf": [*range(1, LEAVES, 2)],
            "piece": [process] * half,
            "pack": [0] * half,
            "offset": [*range(0, 16 * half, 16)],
            "length": [16] * half,
            "crc32c": f"{process:08x}" * half,
        }
        body = {"process": process, "commit": COMMIT, "objects": objects}
        yield seal("ckpt-part", dump(body | {"packs": packs, "files": []}))


def name_parts(manifest: Manifest, parts: list[bytes]) -> Manifest:
    refs = [PartRef(len(data), hashlib.sha256(data).hexdigest()) for data in parts]
    return replace(manifest, parts=tuple(refs))


def count_calls(work: Callable[[], object]) -> int:
    """Return how many functions are called, those of builtins included."""
    found = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_a_thousand_parts_of_400_entries_are_merged(
    codec: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = list(make_parts(1000, codec=codec))
    manifest = name_parts(make_job(1000, codec=codec), parts)
    began = time.process_time()
    layouts.check_parts(manifest, enumerate(parts))
    took = time.process_time() - began
    with capsys.disabled():
        print(f" [1,000 parts in {took:.2f} s of CPU] ", end="")


def test_a_merge_takes_little_memory() -> None:
    parts = list(make_parts(1000))
    manifest = name_parts(make_job(1000), parts)
    tracemalloc.start()
    try:
        layouts.check_parts(manifest, enumerate(parts))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak + sum(map(len, parts)) < 100 << 20


@pytest.mark.parametrize("processes", [100, 400])
def test_a_merge_takes_few_calls_for_each_entry(processes: int) -> None:
    parts = list(make_parts(processes))
    manifest = name_parts(make_job(processes), parts)
    calls = count_calls(lambda: layouts.check_parts(manifest, enumerate(parts)))
    assert calls < 4 * processes * LEAVES


@pytest.fixture(scope="module")
def pod() -> Manifest:
    """Return the manifest of 10,000 processes, as a reader has it."""
    part = PartRef(20_000, "ab" * 32)
    manifest = replace(make_job(10_000), parts=(part,) * 10_000)
    data = manifest.encode()
    # What is said of each process is not said again for each leaf.
    assert len(data) < 10_000 * 100 + LEAVES * 200
    return layouts.parse_manifest(data)


def rows_of(leaf: Leaf, first: int, count: int) -> list[Box]:
    """Return the rows that some processes of the pod wrote."""
    rows = leaf.shape[0] // 10_000
    return [Box((first * rows, 0), (count * rows, 16))]


@pytest.mark.parametrize(("first", "count"), [(0, 1), (5000, 1), (9998, 2), (640, 100)])
def test_a_reader_opens_only_the_parts_of_ten_thousand_that_it_needs(
    pod: Manifest, first: int, count: int
) -> None:
    plan = ReadPlan(
        tuple(
            layouts.plan_leaf_read(number, leaf, rows_of(leaf, first, count))
            for number, leaf in enumerate(pod.leaves)
        )
    )
    assert plan.writers == tuple(range(first, first + count))
    # Of each object four chunks of 16 bytes with their checksums, and a piece of 16.
    assert plan.read == count * (LEAVES // 2) * (4 * 20 + 16)


def test_what_one_of_many_processes_writes_is_found_without_asking_the_others(
    pod: Manifest,
) -> None:
    layouts.plan_write(pod.leaves, 1)
    calls = count_calls(lambda: layouts.plan_write(pod.leaves, 7777))
    assert calls < 60 * LEAVES
    plan = layouts.plan_write(pod.leaves, 7777)
    assert [(w.leaf, w.object) for w in plan.objects] == [
        (number, 7777) for number in range(0, LEAVES, 2)
    ]
    assert [(r.leaf, r.piece, r.offset) for r in plan.rows] == [
        (number, 7777, 8 * (number - 1)) for number in range(1, LEAVES, 2)
    ]
    first = layouts.parse_part(pod, 0, next(make_parts(1)))
    assert first.rows == layouts.plan_write(pod.leaves, 0).rows


def test_the_packs_of_all_processes_are_sized_in_one_pass(pod: Manifest) -> None:
    sizes = layouts.pack_sizes(pod.leaves[:20])
    assert sizes == {f"~packs/{process}-0": 160 for process in range(10_000)}


def test_ten_thousand_replicas_share_a_tree_in_few_steps() -> None:
    everyone = (tuple(range(10_000)),)
    leaves = [
        Leaf(
            f"w{n}", "jax", "uint8", (100, 16), store=Chunked(f"w{n}", (1, 16), (1, 16))
        )
        for n in range(250)
    ]
    pieces = [Pieces(leaf.shape, everyone) for leaf in leaves]
    layouts.assign_writers(leaves[:1], pieces[:1])
    calls = count_calls(lambda: layouts.assign_writers(leaves, pieces))
    assert calls < 20 * 250 * 100
    assigned = layouts.assign_writers(leaves, pieces)
    for process in (0, 4999, 5000, 9999):
        # 25,000 objects of 16 bytes: two or three each.
        assert layouts.plan_write(assigned, process).nbytes in (32, 48)
