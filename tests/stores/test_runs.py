"""A run in a store of any kind: its steps, damage done to it, what leaves it."""

import re

import numpy as np
import pytest

import ckpt
from tests.faults._trees import differing, make_tree, place_tree, restore_seed
from tests.stores._places import Place


def save(place: Place, step: int, seed: int, *, overwrite: bool = False) -> str:
    """Save the tree of a seed, and return the name of the step's folder."""
    before = set(place.names())
    ckpt.save(make_tree(seed), None, place.url, step=step, overwrite=overwrite)
    (manifest,) = (
        name
        for name in set(place.names()) - before
        if re.fullmatch(rf"{step}-[0-9a-f]{{16}}/manifest\.json", name)
    )
    return manifest.partition("/")[0]


def flip(place: Place, name: str) -> bytes:
    """Flip a bit in the middle of an object, and return what it was."""
    data = place.get(name)
    wrong = bytearray(data)
    wrong[len(data) // 2] ^= 1
    place.put(name, bytes(wrong))
    return data


def test_a_run_that_is_not_there_has_no_steps(place: Place) -> None:
    assert (ckpt.steps(place.url), ckpt.latest(place.url)) == ([], None)
    for look in (ckpt.restore, ckpt.open, ckpt.verify, ckpt.plan):
        with pytest.raises(ckpt.NotFound):
            look(place.url)
    with pytest.raises(ckpt.NotFound):
        ckpt.prune(place.url, drop=[1])
    assert place.names() == []


def test_steps_are_those_whose_record_is_there(place: Place) -> None:
    folders = {step: save(place, step, step) for step in (10, 9, 100)}
    records = sorted(name for name in place.names() if name.startswith("steps/"))
    assert records == ["steps/10.json", "steps/100.json", "steps/9.json"]
    assert (ckpt.steps(place.url), ckpt.latest(place.url)) == ([9, 10, 100], 100)
    assert [restore_seed(place.url, step) for step in (9, 10, 100)] == [9, 10, 100]
    assert restore_seed(place.url) == 100
    place.delete("steps/100.json")
    assert (ckpt.steps(place.url), restore_seed(place.url)) == ([9, 10], 10)
    with pytest.raises(ckpt.NotFound):
        ckpt.restore(place.url, step=100)
    assert ckpt.open(f"{place.url}/{folders[100]}").step == 100


def test_a_step_is_taken_until_it_may_be_overwritten(place: Place) -> None:
    first = save(place, 1, 1)
    before = {name: place.get(name) for name in place.names()}
    with pytest.raises(ckpt.StepExists):
        ckpt.save(make_tree(2), None, place.url, step=1)
    assert {name: place.get(name) for name in place.names()} == before
    second = save(place, 1, 2, overwrite=True)
    assert restore_seed(place.url) == 2
    assert first != second
    left = {name.partition("/")[0] for name in place.names()}
    assert left == {"steps", second}
    assert ckpt.steps(place.url) == [1]


def test_damaged_objects_are_refused_and_reported(place: Place) -> None:
    tree = make_tree(1, "wide")
    state, mesh = place_tree(tree, devices=2)
    ckpt.save(state, mesh, place.url, step=1)
    whole = ckpt.verify(place.url)
    assert (whole.ok, whole.damaged, whole.missing, whole.orphans) == (True, (), (), ())
    data = [name for name in place.names() if re.search(r"/c/\d", name)]
    assert len(data) == 5
    for name in (data[0], data[-1]):
        below = name.partition("/")[2]
        was = flip(place, name)
        with pytest.raises(ckpt.Damaged, match="- at "):
            ckpt.restore(place.url)
        assert [problem.object for problem in ckpt.verify(place.url).damaged] == [below]
        place.put(name, was)

    name, below = data[0], data[0].partition("/")[2]
    was = place.get(name)
    place.delete(name)
    with pytest.raises(ckpt.Damaged, match=re.escape(below)):
        ckpt.restore(place.url)
    assert [problem.object for problem in ckpt.verify(place.url).missing] == [below]
    place.put(name, was[:-1])
    with pytest.raises(ckpt.Damaged):
        ckpt.restore(place.url)
    assert not ckpt.verify(place.url).ok
    place.put(name, was)
    assert differing(ckpt.restore(place.url), tree) == []


def test_damaged_documents_are_refused_and_other_steps_are_not(place: Place) -> None:
    folder = save(place, 2, 2)
    save(place, 1, 1)
    for name in ("steps/2.json", f"{folder}/manifest.json", f"{folder}/parts/0.json"):
        was = flip(place, name)
        assert ckpt.steps(place.url) == [1, 2]
        for step in (None, 2):
            with pytest.raises(ckpt.Damaged):
                ckpt.restore(place.url, step=step)
        assert restore_seed(place.url, 1) == 1
        place.put(name, was)
    place.delete(f"{folder}/manifest.json")
    with pytest.raises(ckpt.Damaged):
        ckpt.restore(place.url)
    assert restore_seed(place.url, 1) == 1


def test_what_no_step_names_is_reported_and_pruned(place: Place) -> None:
    folder = save(place, 1, 1)
    place.put(f"{folder}/stray/c/0", b"stray")
    lost = "5-0123456789abcdef"
    (pack,) = (name for name in place.names() if "~packs/0-0/c" in name)
    place.put(f"{lost}/~packs/0-0/c/0", place.get(pack))
    place.put(f"{lost}/manifest.json", b"{")
    place.put(f"steps/{lost}.attempt", b"torn")
    report = ckpt.verify(place.url)
    assert report.ok
    assert set(report.orphans) == {"stray/c/0", lost}
    assert (ckpt.steps(place.url), restore_seed(place.url)) == ([1], 1)

    assert ckpt.prune(place.url) == []
    freed = len(place.get(pack)) + 1
    assert ckpt.prune(place.url, orphan_age=0) == [ckpt.Removed(5, True, freed)]
    assert not any(lost in name for name in place.names())
    assert restore_seed(place.url) == 1


def test_prune_leaves_what_is_kept_and_nothing_else(place: Place) -> None:
    folders = {step: save(place, step, step) for step in range(1, 6)}
    sizes = {
        step: sum(len(place.get(n)) for n in place.names() if n.startswith(folder))
        for step, folder in folders.items()
    }
    removed = ckpt.prune(place.url, keep=ckpt.Keep(last=2, every=2))
    assert removed == [ckpt.Removed(step, False, sizes[step]) for step in (1, 3)]
    removed = ckpt.prune(place.url, drop=[5])
    assert removed == [ckpt.Removed(5, False, sizes[5])]
    assert (ckpt.steps(place.url), restore_seed(place.url)) == ([2, 4], 4)
    folder_names = {name.partition("/")[0] for name in place.names()}
    assert folder_names == {"steps", folders[2], folders[4]}
    records = [name for name in place.names() if name.startswith("steps/")]
    assert records == ["steps/2.json", "steps/4.json"]


def test_a_follower_sees_each_commit_once(place: Place) -> None:
    def new(after: int | None = None) -> list[tuple[int, int]]:
        follower = ckpt.follow(place.url, after=after, poll=0.01, timeout=0)
        return [(found.step, int(np.asarray(found["seed"][0]))) for found in follower]

    assert new() == []
    save(place, 1, 11)
    save(place, 2, 22)
    assert new() == [(2, 22)]
    assert new(after=0) == [(1, 11), (2, 22)]
    follower = ckpt.follow(place.url, poll=0.01, timeout=20)
    assert next(follower).step == 2
    save(place, 3, 33)
    assert next(follower).step == 3
    save(place, 3, 44, overwrite=True)
    assert int(np.asarray(next(follower)["seed"][0])) == 44
