"""What a step needs of another is not removed before the step is."""

import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import ckpt
from ckpt._errors import StoreError
from ckpt._notes import Attempt, doom_note, note_attempt
from ckpt._reuse import refuse_absent
from ckpt._store import Store, open_store
from ckpt._uses import note_use, refuse_unnoted
from tests.ckpt.test_reuse import FROZEN, count_bytes, files, folder_of, same, save

ADAPTER = 512 * 1024 * 4


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def folders(run: Path) -> set[str]:
    return {path.name for path in run.iterdir() if path.name != "steps"}


def check(run: Path, *steps: int) -> None:
    """Check that a run has these steps, whole, and nothing that no step needs."""
    assert ckpt.steps(run) == list(steps)
    for step in steps:
        assert same(ckpt.restore(run, step=step), step)
        report = ckpt.verify(run, step=step)
        assert report.ok, str(report)
        assert report.orphans == ()


def test_a_prune_keeps_what_is_needed_and_no_more(run: Path) -> None:
    for step in (1, 2, 3):
        save(run, step)
    first = folder_of(run, 1)
    before = count_bytes(run)
    removed = ckpt.prune(run, keep=ckpt.Keep(last=1))
    assert [(r.step, r.orphan) for r in removed] == [(1, False), (2, False)]
    assert all(ADAPTER < r.bytes < 2 * ADAPTER for r in removed)
    check(run, 3)
    assert folders(run) == {first.name, folder_of(run, 3).name}
    assert {path.parents[2].name for path in files(first)} == {"w", "v"}
    freed = sum(r.bytes for r in removed)
    assert 0 <= before - count_bytes(run) - freed < 2000
    # A later prune has nothing to do while it is needed, and frees it then.
    assert ckpt.prune(run, orphan_age=0) == []
    ckpt.save({"x": 1}, None, run, step=4)
    (gone, rest) = ckpt.prune(run, keep=ckpt.Keep(last=1))
    assert (gone.step, gone.orphan, rest.step, rest.orphan) == (3, False, 1, True)
    assert rest.bytes > 2 * FROZEN.nbytes
    assert folders(run) == {folder_of(run, 4).name}
    assert [path.name for path in (run / "steps").iterdir()] == ["4.json"]


def test_steps_that_need_each_other_go_in_one_prune(run: Path) -> None:
    for step in (1, 2):
        save(run, step)
    ckpt.save({"x": 1}, None, run, step=3)
    ckpt.prune(run, keep=ckpt.Keep(last=1))
    assert folders(run) == {folder_of(run, 3).name}


def test_a_rollback_keeps_what_is_needed(run: Path) -> None:
    for step in (1, 2, 3):
        save(run, step)
    ckpt.prune(run, drop=[1, 3])
    check(run, 2)
    save(run, 3)
    assert count_bytes(folder_of(run, 3)) < FROZEN.nbytes
    ckpt.prune(run, drop=[2])
    check(run, 3)


def test_an_overwrite_keeps_what_others_need(run: Path) -> None:
    for step in (1, 2):
        save(run, step)
    old = folder_of(run, 1)
    ckpt.save({"x": 1}, None, run, step=1, overwrite=True)
    new = folder_of(run, 1)
    assert folders(run) == {old.name, new.name, folder_of(run, 2).name}
    assert same(ckpt.restore(run, step=2), 2)
    assert ckpt.verify(run, step=2)
    assert ckpt.verify(run, step=1).orphans == ()
    ckpt.prune(run, drop=[2])
    assert folders(run) == {new.name}


def test_a_step_that_is_overwritten_is_repaired(run: Path) -> None:
    """It names nothing of what it replaces, which may be damaged."""
    save(run, 1)
    for turn in range(3):
        for file in folder_of(run, 1).glob("**/c/**/*"):
            if file.is_file():
                file.write_bytes(bytes(file.stat().st_size))
        assert not ckpt.verify(run, step=1)
        save(run, 1, overwrite=True)
        check(run, 1)
        assert len(folders(run)) == 1, turn
    ckpt.save({"x": 1}, None, run, step=1, overwrite=True)
    ckpt.prune(run)
    assert folders(run) == {folder_of(run, 1).name}


def test_a_save_under_way_keeps_a_folder_whole(run: Path) -> None:
    """A save that is under way may need any object of its base; a dead one none."""
    save(run, 1)
    base = folder_of(run, 1)
    live = Attempt(2, "0123456789abcdef", time.time())
    store = open_store(run)
    note_attempt(store, live)
    note_use(store, live, [base.name])
    size = count_bytes(base)
    (removed,) = ckpt.prune(run, drop=[1])
    assert removed.bytes == 0
    assert count_bytes(base) == size
    assert ckpt.verify(run).orphans == ("2-0123456789abcdef",)
    assert ckpt.prune(run) == []
    again = ckpt.prune(run, orphan_age=0)
    assert {(r.step, r.orphan) for r in again} == {(1, True), (2, True)}
    assert sum(r.bytes for r in again) == size
    assert folders(run) == set()
    assert list((run / "steps").iterdir()) == []


def test_a_torn_note_keeps_all(run: Path) -> None:
    for step in (1, 2):
        save(run, step)
    (note,) = (run / "steps").glob("2-*.reuse")
    note.write_bytes(note.read_bytes()[:-9])
    ckpt.prune(run, drop=[1])
    assert same(ckpt.restore(run), 2)


def test_a_damaged_step_keeps_what_its_note_names(run: Path) -> None:
    for step in (1, 2):
        save(run, step)
    manifest = folder_of(run, 2) / "manifest.json"
    data = manifest.read_bytes()
    manifest.write_bytes(data[:-2])
    ckpt.prune(run, drop=[1])
    manifest.write_bytes(data)
    check(run, 2)


def test_what_is_gone_is_not_committed(run: Path) -> None:
    save(run, 1)
    store = open_store(run)
    folder = folder_of(run, 1)
    (one,) = files(folder / "base" / "w" / "c")
    place = (folder.name, "base/w/c/0/0", one.stat().st_size)
    refuse_absent(store, [place])
    for wrong in ((*place[:2], place[2] - 1), (folder.name, "base/w/c/0/1", 1)):
        with pytest.raises(StoreError, match=r"are gone.*nothing was committed"):
            refuse_absent(store, [place, wrong])


def test_a_save_that_is_doomed_commits_nothing(run: Path) -> None:
    """However little a prune that takes it for dead has removed of it by then."""
    save(run, 1)

    def doom(store: Store, attempt: Attempt) -> None:
        doom_note(store, attempt.step, attempt.commit)
        refuse_unnoted(store, attempt)

    with (
        mock.patch("ckpt._attempt.refuse_unnoted", doom),
        pytest.raises(ckpt.StoreError, match="found them gone"),
    ):
        save(run, 2)
    assert ckpt.steps(run) == [1]


def test_a_kept_step_is_not_copied_back(run: Path, tmp_path: Path) -> None:
    for step in (1, 2):
        save(run, step)
    ckpt.copy(run, tmp_path / "copy")
    ckpt.prune(run, drop=[1])
    with pytest.raises(ckpt.StoreError, match="other steps reuse its objects"):
        ckpt.copy(tmp_path / "copy", run, step=1)
    check(run, 2)
    ckpt.prune(run, drop=[2])
    ckpt.copy(tmp_path / "copy", run)
    check(run, 1, 2)


def test_a_drain_keeps_what_is_needed(run: Path, tmp_path: Path) -> None:
    far = tmp_path / "far"
    for step in (1, 2, 3):
        save(run, step, mirror=far, keep_local=1)
    ckpt.drain(run, far, keep_local=1)
    check(run, 3)
    check(far, 1, 2, 3)
    assert np.array_equal(ckpt.restore(far, step=2)["base"]["w"], FROZEN)
    assert count_bytes(run) < 2 * FROZEN.nbytes + 2.5 * ADAPTER
