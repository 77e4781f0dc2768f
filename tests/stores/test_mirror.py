"""A run and its mirror: what is saved here is there soon, and either is enough."""

import re
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckpt
from tests._harness.jobs import JobServer, Setup
from tests._harness.servers import Cloud, Kind, Rule
from tests.faults._trees import make_tree, restore_seed, seed_of
from tests.jobs._matrix import find_failed
from tests.stores._disks import small_disk
from tests.stores._places import FilePlace, Place, cloud_place
from tests.stores._runs import committed_folders


@pytest.fixture
def near(folder: Path) -> FilePlace:
    return FilePlace(folder / "near")


def save(near: FilePlace, far: Place, seed: int, **more: Any) -> ckpt.Checkpoint:
    """Save the tree of a seed, and wait until the mirror has it."""
    options: dict[str, Any] = {"step": seed} | more
    done = ckpt.save(make_tree(seed), None, near.root, mirror=far.url, **options)
    ckpt.drain(near.root, far.url)
    return done


def restore(near: FilePlace, far: Place, step: int | None = None) -> int:
    return seed_of(ckpt.restore(near.root, step=step, mirror=far.url))


def shown(place: Place) -> str:
    """Return how messages name a place."""
    return place.url.removeprefix("file://")


def test_the_mirror_has_what_is_saved_and_here_are_the_newest(
    place: Place, near: FilePlace
) -> None:
    seen: dict[int, str] = {}
    for step in range(1, 5):
        save(near, place, step)
        seen |= committed_folders(near)
    assert committed_folders(place) == seen
    assert ckpt.steps(near.root) == [3, 4]
    assert [restore_seed(place.url, step) for step in seen] == [1, 2, 3, 4]
    assert [restore(near, place, step) for step in seen] == [1, 2, 3, 4]
    for step, where in ((1, place), (4, near)):
        found = ckpt.open(near.root, mirror=place.url, step=step)
        assert found.url == f"{shown(where)}/{seen[step]}"
    ckpt.drain(near.root, place.url, keep_local=1)
    assert ckpt.steps(near.root) == [4]
    records = {f"steps/{step}.json" for step in seen}
    assert {n for n in place.names() if n.startswith("steps/")} == records
    # That the mirror has it is noted.
    kept = {"steps/4.json", f"steps/{seen[4]}.mirror"}
    assert {n for n in near.names() if n.startswith("steps/")} == kept


@pytest.mark.parametrize("place", ["memory", "gs"], indirect=True)
def test_saves_in_the_background_come_to_the_mirror(
    place: Place, near: FilePlace
) -> None:
    pending = [
        ckpt.save_async(
            *(make_tree(seed), None, near.root), step=seed, mirror=place.url
        )
        for seed in (1, 2)
    ]
    assert [future.result().step for future in pending] == [1, 2]
    ckpt.drain(near.root, place.url)
    assert committed_folders(place) == committed_folders(near)
    assert ckpt.drain(near.root, place.url) == []


@pytest.mark.parametrize("place", ["file", "s3"], indirect=True)
def test_the_next_step_comes_after_those_of_both(place: Place, near: FilePlace) -> None:
    for step in (1, 2, 3):
        save(near, place, step)
    ckpt.prune(near.root, drop=[2, 3])
    assert save(near, place, 4, step=None).step == 4
    ckpt.prune(place.url, drop=[4])
    assert save(near, place, 5, step=None).step == 5
    shutil.rmtree(near.root)
    assert save(near, place, 6, step=None).step == 6
    assert ckpt.steps(place.url) == [1, 2, 3, 5, 6]


def test_a_step_that_only_the_mirror_has_is_taken(
    place: Place, near: FilePlace
) -> None:
    save(near, place, 1)
    first = committed_folders(place)
    shutil.rmtree(near.root)
    with pytest.raises(ckpt.StepExists, match="other place"):
        ckpt.save(make_tree(2), None, near.root, step=1, mirror=place.url)
    assert committed_folders(place) == first
    save(near, place, 2, step=1, overwrite=True)
    assert committed_folders(place) == committed_folders(near) != first
    assert restore_seed(place.url) == 2
    save(near, place, 3, step=1, overwrite=True)
    assert committed_folders(place) == committed_folders(near)
    assert (restore_seed(place.url), restore(near, place)) == (3, 3)


@pytest.mark.parametrize("place", ["file", "gs"], indirect=True)
def test_what_is_damaged_here_is_read_from_the_mirror(
    place: Place, near: FilePlace
) -> None:
    save(near, place, 1)
    save(near, place, 2)
    folder = committed_folders(near)[2]
    names = ("manifest.json", "parts/0.json", "~packs/0-0/c/0", "~packs/0-0/zarr.json")
    for name in (*(f"{folder}/{name}" for name in names), "steps/2.json"):
        whole = near.get(name)
        for wrong in (whole[:-1], b"x" + whole[1:], None):
            near.delete(name) if wrong is None else near.put(name, wrong)
            if name.endswith("zarr.json"):
                # Nothing is read from it.
                assert restore(near, place, 2) == 2
            elif name == "steps/2.json" and wrong is None:
                # So it is not here: nothing is wrong.
                assert restore(near, place, 2) == 2
            else:
                with pytest.warns(UserWarning, match="it is read from") as raised:
                    assert restore(near, place) == 2
                assert len(raised) == 1
            near.put(name, whole)
    shutil.rmtree(near.root / folder)
    with pytest.warns(UserWarning, match=f"it is read from {shown(place)}"):
        found = ckpt.open(near.root, mirror=place.url)
    assert found.url == f"{shown(place)}/{folder}"
    shutil.rmtree(near.root)
    assert restore(near, place) == 2
    assert restore(near, place, 1) == 1


@pytest.mark.parametrize("place", ["file", "s3"], indirect=True)
def test_damage_that_both_have_is_told(place: Place, near: FilePlace) -> None:
    save(near, place, 1)
    name = f"{committed_folders(near)[1]}/~packs/0-0/c/0"
    for one in (near, place):
        one.put(name, b"x" + one.get(name)[1:])
    with (
        pytest.warns(UserWarning, match="it is read from"),
        pytest.raises(ckpt.Damaged, match=re.escape(shown(place))),
    ):
        restore(near, place)


def test_a_store_that_is_down_delays_only_the_mirror(
    clouds: dict[Kind, Cloud], near: FilePlace
) -> None:
    cloud = clouds["s3"]
    far, options = cloud_place(cloud), {"timeout": 0.2}
    save(near, far, 1)
    texts: list[str] = []
    cloud.break_with(Rule("answer", status=503))
    try:
        # The drains fail between the saves.
        for step in (2, 3, 4):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                ckpt.save(
                    *(make_tree(step), None, near.root),
                    step=step,
                    mirror=far.url,
                    store_options=options,
                )
            texts += [str(warning.message) for warning in told]
            time.sleep(1.5)
        assert len([text for text in texts if "saved without" in text]) == 3
        assert any("it is tried again" in text for text in texts)
        with pytest.raises(ckpt.StoreError):
            ckpt.drain(near.root, far.url, store_options=options)
        with pytest.warns(UserWarning, match="only the other is looked at"):
            found = ckpt.restore(near.root, mirror=far.url, store_options=options)
        assert seed_of(found) == 4
        assert ckpt.steps(near.root) == [1, 2, 3, 4]
        ckpt.prune(near.root, keep=ckpt.Keep(last=1))
        assert ckpt.steps(near.root) == [2, 3, 4]
    finally:
        cloud.break_with()
    assert ckpt.drain(near.root, far.url, keep_local=1) == [2, 3, 4]
    assert ckpt.steps(near.root) == [4]
    assert [restore_seed(far.url, step) for step in (1, 2, 3, 4)] == [1, 2, 3, 4]


def test_prune_leaves_what_the_mirror_lacks(near: FilePlace, folder: Path) -> None:
    far = FilePlace(folder / "far")
    far.root.write_text("no folder")
    for step in (1, 2, 3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ckpt.save(make_tree(step), None, near.root, step=step, mirror=far.root)
        with pytest.raises(ckpt.StoreError):
            ckpt.drain(near.root, far.root)
    assert ckpt.prune(near.root, keep=ckpt.Keep(last=1)) == []
    assert ckpt.steps(near.root) == [1, 2, 3]
    far.root.unlink()
    assert ckpt.drain(near.root, far.root, keep_local=3) == [1, 2, 3]
    removed = ckpt.prune(near.root, keep=ckpt.Keep(last=1))
    assert [one.step for one in removed] == [1, 2]
    assert [restore_seed(far.root, step) for step in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.root
@pytest.mark.parametrize("place", ["file", "s3"], indirect=True)
def test_on_a_full_disk_what_the_mirror_has_makes_room(
    near: FilePlace, place: Place
) -> None:
    """Here is room for two steps and a half."""
    with small_disk(near.root, "2750k"):
        for step in (1, 2):
            save(near, place, step, keep_local=9)
        assert ckpt.steps(near.root) == [1, 2]
        with pytest.warns(UserWarning, match=r"steps \[1\], which .* removed"):
            save(near, place, 3, keep_local=9)
        assert ckpt.steps(near.root) == [2, 3]
        assert [restore(near, place, step) for step in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.root
@pytest.mark.parametrize("place", ["memory", "gs"], indirect=True)
def test_what_does_not_fit_here_goes_to_the_mirror_at_once(
    near: FilePlace, place: Place
) -> None:
    with small_disk(near.root, "500k"):
        for step in (1, 2):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                done = save(near, place, step)
            (warning,) = told
            assert f"it is saved to {shown(place)} at once" in str(warning.message)
            assert done.url.startswith(shown(place))
        assert (ckpt.steps(near.root), ckpt.steps(place.url)) == ([], [1, 2])
        assert [restore(near, place, step) for step in (1, 2)] == [1, 2]


WORK = "tests.stores._mirrored"


@pytest.mark.parametrize("place", ["file", "s3"], indirect=True)
def test_a_job_saves_and_restores_with_a_mirror(
    place: Place, near: FilePlace, job_server: JobServer
) -> None:
    both = str(near.root), place.url
    with job_server.start(Setup(2)) as job:
        for step in (1, 2, 3):
            answers = job.run(f"{WORK}:save", *both, step)
            assert find_failed("save", answers) == []
        assert ckpt.steps(near.root) == [2, 3]
        assert ckpt.steps(place.url) == [1, 2, 3]
        for step in (1, 3):
            answers = job.run(f"{WORK}:restore", *both, step)
            assert [a.value for a in answers] == [[], []]
        # This object process 1 alone reads.
        folder = committed_folders(near)[3]
        (name, *_) = [n for n in near.names() if re.search(f"{folder}.*/c/1/0$", n)]
        near.put(name, b"x" + near.get(name)[1:])
        answers = job.run(f"{WORK}:restore", *both, 3)
        assert find_failed("restore", answers) == []
        assert [a.value for a in answers] == [["it is read from"], ["it is read from"]]


SCRIPT = """
import sys
import numpy as np
import ckpt
tree = {"w": np.full((1200, 1024), 3, np.float32)}
ckpt.save_async(tree, None, sys.argv[1], step=3, mirror=sys.argv[2])
"""


def test_a_script_that_ends_waits_for_its_mirror(
    clouds: dict[Kind, Cloud], near: FilePlace
) -> None:
    far = cloud_place(clouds["gs"])
    command = [sys.executable, "-c", SCRIPT, str(near.root), far.url]
    ended = subprocess.run(command, check=True, timeout=120, capture_output=True)
    assert b"Traceback" not in ended.stderr
    assert ckpt.verify(far.url).ok
    found = ckpt.restore(far.url)
    np.testing.assert_array_equal(found["w"], np.full((1200, 1024), 3, np.float32))
