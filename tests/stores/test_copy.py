"""Copies between stores of all kinds: the same bytes, the same commits, or nothing."""

import re
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckpt
from tests._harness.jobs import JobServer, Setup
from tests._harness.servers import Cloud, Kind
from tests.faults._trees import differing, place_tree
from tests.jobs._matrix import WORK, find_failed
from tests.stores._places import (
    KINDS,
    Place,
    memory_place,
    new_place,
    read_objects,
)
from tests.stores._runs import committed_folders

PAIRS = [(one, other) for one in KINDS for other in KINDS]


def make_host_tree(seed: int) -> dict[str, Any]:
    """Make a leaf that has objects of its own, and one that is packed."""
    table = np.random.default_rng(seed).standard_normal((1024, 512), np.float32)
    return {"seed": np.full(3, seed, np.int32), "table": table}


def is_whole(place: Place, step: int) -> bool:
    """Tell whether a step restores to what was saved."""
    return differing(ckpt.restore(place.url, step=step), make_host_tree(step)) == []


def sample(*steps: int, codec: str | None = None) -> dict[str, bytes]:
    """Return the objects of a run whose large leaf is split over two devices."""
    return make_sample(steps, codec)


@cache
def make_sample(steps: tuple[int, ...], codec: str | None) -> dict[str, bytes]:
    def make(url: str) -> None:
        for step in steps:
            state, mesh = place_tree(make_host_tree(step), devices=2)
            ckpt.save(state, mesh, url, step=step, codec=codec)

    return read_objects(make)


def put_sample(place: Place, *steps: int, codec: str | None = None) -> None:
    """Make a run past the library."""
    for name, data in sample(*steps, codec=codec).items():
        place.put(name, data)


def read_all(place: Place) -> dict[str, bytes]:
    return {name: place.get(name) for name in place.names()}


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_run_is_copied_as_it_is(
    source: str, target: str, clouds: dict[Kind, Cloud], folder: Path
) -> None:
    one = new_place(source, clouds, folder / "one")
    other = new_place(target, clouds, folder / "other")
    put_sample(one, 1)
    (done,) = ckpt.copy(one.url, other.url)
    assert read_all(other) == sample(1)
    assert (done.step, done.digest) == (1, ckpt.open(one.url).digest)
    assert is_whole(other, 1)


SOURCES: dict[str, Callable[[Place], dict[str, Any]]] = {
    "step": lambda place: {"source": place.url, "step": 1},
    "directory": lambda place: {"source": f"{place.url}/{committed_folders(place)[1]}"},
    "Checkpoint": lambda place: {"source": ckpt.open(place.url, step=1)},
}


@pytest.mark.parametrize("what", SOURCES)
def test_one_step_is_copied_as_it_is(place: Place, what: str) -> None:
    put_sample(place, 1, 2)
    copy = memory_place()
    (done,) = ckpt.copy(target=copy.url, **SOURCES[what](place))
    folder = committed_folders(place)[1]
    assert read_all(copy) == {
        name: data
        for name, data in sample(1, 2).items()
        if name.startswith((folder, "steps/1."))
    }
    assert (done.step, done.digest) == (1, ckpt.open(place.url, step=1).digest)


@pytest.mark.parametrize("source", ["file", "gs"])
def test_compressed_leaves_are_copied_as_they_are(
    source: str, clouds: dict[Kind, Cloud], folder: Path
) -> None:
    place, copy = new_place(source, clouds, folder), memory_place()
    put_sample(place, 3, codec="zstd")
    ckpt.copy(place.url, copy.url)
    assert read_all(copy) == sample(3, codec="zstd")
    assert is_whole(copy, 3)


def test_steps_that_are_there_are_left(place: Place) -> None:
    put_sample(place, 2)
    before = read_all(place)
    source = memory_place()
    put_sample(source, 2)
    for name, data in sample(1).items():
        source.put(name, data)
    assert [done.step for done in ckpt.copy(source.url, place.url)] == [1, 2]
    assert read_all(place) == before | sample(1)
    assert [done.step for done in ckpt.copy(source.url, place.url)] == [1, 2]
    assert read_all(place) == before | sample(1)


@pytest.mark.parametrize("place", ["file", "s3"], indirect=True)
def test_another_commit_of_a_step_is_replaced_only_on_request(place: Place) -> None:
    source = memory_place()
    put_sample(source, 1)
    ckpt.save(make_host_tree(5), None, place.url, step=1)
    before = read_all(place)
    with pytest.raises(ckpt.StepExists, match="another commit"):
        ckpt.copy(source.url, place.url)
    assert read_all(place) == before
    ckpt.copy(source.url, place.url, overwrite=True)
    assert read_all(place) == sample(1)


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("place", ["file", "s3"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "leaf"),
    [
        (r"/c/0/0$", "`table`"),
        (r"~packs/0-0/c/0$", "`seed`"),
        (r"zarr\.json$", ""),
        (r"parts/0\.json$", ""),
        (r"manifest\.json$", ""),
    ],
)
def test_what_is_damaged_is_not_copied(place: Place, kind: str, leaf: str) -> None:
    put_sample(place, 1)
    copy = memory_place()
    name = next(name for name in place.names() if re.search(kind, name))
    whole = place.get(name)
    below = re.escape(name.partition("/")[2])
    for wrong in (flip(whole), whole[:-1], None):
        if wrong is None:
            place.delete(name)
        else:
            place.put(name, wrong)
        with pytest.raises(ckpt.Damaged, match=below) as raised:
            ckpt.copy(place.url, copy.url)
        if wrong is not None and len(wrong) == len(whole):
            assert leaf in str(raised.value)
        assert ckpt.steps(copy.url) == []
        place.put(name, whole)
    ckpt.copy(place.url, copy.url)
    assert read_all(copy) == sample(1)


def test_torn_files_of_a_killed_copy_are_written_again(folder: Path) -> None:
    """After a power cut a file may have its name and not its bytes."""
    source = memory_place()
    put_sample(source, 1)
    names = [name for name in sample(1) if not name.startswith("steps/")]
    for torn in names:
        for wrong in (flip(sample(1)[torn]), sample(1)[torn][:-1], b""):
            copy = new_place("file", {}, folder / str(len(list(folder.iterdir()))))
            for name in names:
                copy.put(name, wrong if name == torn else sample(1)[name])
            before = inodes(copy)
            ckpt.copy(source.url, copy.url)
            assert read_all(copy) == sample(1)
            after = inodes(copy)
            assert {n for n in names if after[n] == before[n]} == set(names) - {torn}


def inodes(place: Any) -> dict[str, int]:
    """Return what tells a file from one that was written in its place."""
    return {n: (place.root / n).stat().st_mtime_ns for n in place.names()}


@pytest.mark.parametrize("place", ["file", "gs"], indirect=True)
def test_progress_ends_at_the_bytes_of_all_objects(place: Place) -> None:
    source = memory_place()
    put_sample(source, 1, 2)
    objects = {n: d for n, d in sample(1, 2).items() if not n.startswith("steps/")}
    total = sum(map(len, objects.values()))
    seen: list[tuple[int, int]] = []
    for already in (False, True):
        ckpt.copy(source.url, place.url, progress=lambda *both: seen.append(both))
        assert {of for _, of in seen} == {total}
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert seen[-1] == (total, total)
        assert len(seen) == (2 if already else len(objects))
        seen.clear()


def test_many_small_leaves_are_copied_in_few_requests(
    clouds: dict[Kind, Cloud], folder: Path
) -> None:
    tree = {f"leaf{n:04}": np.full(n % 7, n, np.int32) for n in range(2000)}
    source = new_place("file", clouds, folder)
    ckpt.save(tree, None, source.url, step=1)
    for kind, cloud in clouds.items():
        copy = new_place(kind, clouds, folder)
        ckpt.copy(source.url, copy.url)
        log = cloud.take_log()
        # Each object, the record, and the note, which is renewed.
        assert len([r for r in log if r.writes]) == len(source.names()) + 2
        assert len(log) < 40
        assert differing(ckpt.restore(copy.url), tree) == []


@pytest.fixture(scope="module")
def job_folder(job_server: JobServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose step two processes have saved."""
    run = tmp_path_factory.mktemp("job") / "run"
    with job_server.start(Setup(2)) as job:
        answers = job.run(f"{WORK}:save_kind", str(run), "tiny", 7)
    assert find_failed("a save of two", answers) == []
    return run


@pytest.mark.parametrize("target", KINDS)
def test_what_a_job_has_saved_is_copied_as_it_is(
    target: str, job_folder: Path, clouds: dict[Kind, Cloud], folder: Path
) -> None:
    copy = new_place(target, clouds, folder)
    ckpt.copy(job_folder, copy.url)
    files = [path for path in job_folder.rglob("*") if path.is_file()]
    names = {path.relative_to(job_folder).as_posix(): path for path in files}
    assert read_all(copy) == {name: path.read_bytes() for name, path in names.items()}
    assert len([name for name in names if "/parts/" in name]) == 2
    assert ckpt.verify(copy.url).ok


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_a_step_may_be_copied_by_several_at_once(
    kind: str, clouds: dict[Kind, Cloud], folder: Path
) -> None:
    """One takes over what another has begun; the last one goes on to the end."""
    source, copy = memory_place(), new_place(kind, clouds, folder)
    put_sample(source, 1)

    def copy_once(_: int) -> str | None:
        try:
            return ckpt.copy(source.url, copy.url)[0].digest
        except ckpt.StoreError:
            return None

    with ThreadPoolExecutor(4) as pool:
        done = set(pool.map(copy_once, range(4)))
    assert ckpt.open(source.url).digest in done
    assert done <= {ckpt.open(source.url).digest, None}
    assert read_all(copy) == sample(1)


@pytest.mark.parametrize("place", ["file", "gs"], indirect=True)
def test_a_step_that_is_pruned_meanwhile_is_not_found(place: Place) -> None:
    put_sample(place, 1, 2)
    copy = memory_place()

    def prune(done: int, total: int) -> None:
        del done, total
        if ckpt.steps(place.url) == [1, 2]:
            ckpt.prune(place.url, drop=[1, 2])

    with pytest.raises(ckpt.NotFound, match="removed or replaced"):
        ckpt.copy(place.url, copy.url, max_host_bytes=1 << 20, progress=prune)
    assert ckpt.steps(copy.url) == []
    assert ckpt.prune(copy.url, orphan_age=0)[0].step == 1
    assert copy.names() == []


@pytest.mark.parametrize("place", ["memory", "s3"], indirect=True)
def test_what_is_no_run_is_refused(place: Place) -> None:
    put_sample(place, 1)
    inside = f"{place.url}/{committed_folders(place)[1]}"
    other = memory_place()
    before = read_all(place)
    with pytest.raises(ValueError, match="two runs"):
        ckpt.copy(place.url, place.url)
    with pytest.raises(ValueError, match="path of a run to copy into"):
        ckpt.copy(place.url, inside)
    with pytest.raises(ckpt.NotFound, match="step 5"):
        ckpt.copy(place.url, other.url, step=5)
    with pytest.raises(ckpt.NotFound):
        ckpt.copy(other.url, place.url)
    assert read_all(place) == before
    assert other.names() == []


def test_little_memory_holds_few_objects(folder: Path) -> None:
    source = memory_place()
    tree = {f"w{n}": np.full((1024, 1024), n, np.float32) for n in range(6)}
    ckpt.save(tree, None, source.url, step=1)
    # Of one object two copies are held, whatever the budget.
    for budget, most in ((1 << 24, 1 << 24), (1 << 20, 1 << 23)):
        run = folder / str(budget)
        tracemalloc.start()
        try:
            ckpt.copy(source.url, run, max_host_bytes=budget)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < most + (1 << 18)
        assert differing(ckpt.restore(run), tree) == []
