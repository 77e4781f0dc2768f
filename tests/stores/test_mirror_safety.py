"""What a run and its mirror must never do: lose a step, or take an old one for new."""

import shutil
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckpt
from tests.stores._disks import fill_up, small_disk


@pytest.fixture
def near(folder: Path) -> Path:
    return folder / "near"


@pytest.fixture
def far(folder: Path) -> Path:
    return folder / "far"


def make_tree(seed: int, rows: int) -> dict[str, Any]:
    return {"seed": np.full(3, seed), "w": np.full((rows, 256), seed, np.float32)}


def save(near: Path, far: Path, seed: int, *, rows: int = 4, **more: Any) -> Any:
    """Save a tree of so many KiB, and drain as far as that goes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = ckpt.save(make_tree(seed, rows), None, near, mirror=far, **more)
    with suppress(ckpt.CkptError):
        ckpt.drain(near, far, keep_local=more.get("keep_local", 2))
    return done


def seed_of(path: Path, **more: Any) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return int(ckpt.restore(path, **more)["seed"][0])


@contextmanager
def down(far: Path) -> Generator[None]:
    """Put something in the place of a mirror that nothing can be asked of."""
    away = far.with_name("away")
    if far.exists():
        far.rename(away)
    far.write_text("no folder")
    try:
        yield
    finally:
        far.unlink()
        if away.exists():
            away.rename(far)


def test_a_run_cannot_be_its_own_mirror(near: Path) -> None:
    for step in range(4):
        ckpt.save(make_tree(step, 4), None, near, step=step)
    with pytest.raises(ValueError, match="another run"):
        ckpt.drain(near, near)
    assert ckpt.steps(near) == [0, 1, 2, 3]


def test_a_run_that_is_its_own_mirror_by_a_link_loses_nothing(
    near: Path, far: Path
) -> None:
    near.mkdir()
    far.symlink_to(near)
    for step in range(4):
        with suppress(ckpt.CkptError, ValueError):
            save(near, far, step, step=step)
            continue
        ckpt.save(make_tree(step, 4), None, near, step=step)
    assert ckpt.steps(near) == [0, 1, 2, 3]


def damage(near: Path, far: Path) -> None:
    """Change what step 0 has here."""
    (pack,) = near.glob("0-*/~packs/0-0/c/0")
    pack.write_bytes(b"x" + pack.read_bytes()[1:])


def take(near: Path, far: Path) -> None:
    """Have the mirror hold another step 0."""
    ckpt.save(make_tree(9, 4), None, far, step=0)


@pytest.mark.parametrize("spoil", [damage, take])
def test_a_step_that_cannot_be_copied_does_not_hold_up_others(
    spoil: Callable[[Path, Path], None], near: Path, far: Path
) -> None:
    with down(far):
        for step in range(3):
            save(near, far, step, step=step)
    spoil(near, far)
    with pytest.raises((ckpt.Damaged, ckpt.StepExists)):
        ckpt.drain(near, far)
    assert {1, 2} <= set(ckpt.steps(far))


def test_a_damaged_record_does_not_hold_up_others(near: Path, far: Path) -> None:
    for step in range(3):
        save(near, far, step, step=step, keep_local=9)
    record = near / "steps" / "0.json"
    record.write_bytes(record.read_bytes()[:50])
    with suppress(ckpt.Damaged):
        ckpt.drain(near, far, keep_local=1)
    assert 1 not in ckpt.steps(near)


@pytest.mark.root
def test_a_step_that_goes_to_the_mirror_at_once_comes_after_those_here(
    near: Path, far: Path
) -> None:
    with small_disk(near, "1m"):
        with down(far):
            save(near, far, 0, rows=300, step=0)
            save(near, far, 1, rows=300)
        assert save(near, far, 2, rows=900).step == 2
        ckpt.drain(near, far)
        assert seed_of(near, mirror=far) == 2
        assert ckpt.steps(far) == [0, 1, 2]
        assert [seed_of(far, step=step) for step in (0, 1, 2)] == [0, 1, 2]


@pytest.mark.root
@pytest.mark.parametrize("first", [False, True], ids=["created", "overwritten"])
def test_an_overwrite_that_goes_to_the_mirror_at_once_holds(
    first: bool, near: Path, far: Path
) -> None:
    with small_disk(near, "1m"):
        with down(far):
            save(near, far, 1, rows=300, step=1, overwrite=first)
        save(near, far, 2, rows=900, step=1, overwrite=True)
        assert seed_of(near, mirror=far) == 2
        with suppress(ckpt.CkptError):
            ckpt.drain(near, far)
        assert seed_of(near, mirror=far) == 2
        assert seed_of(far) == 2


@pytest.mark.root
def test_a_disk_without_a_free_byte_does_not_stop_a_save(near: Path, far: Path) -> None:
    with small_disk(near, "2m"):
        save(near, far, 1, step=1)
        fill_up(near)
        save(near, far, 2, step=2)
        assert seed_of(near, mirror=far) == 2


def test_a_first_save_that_does_not_see_the_mirror_is_not_lost(
    near: Path, far: Path
) -> None:
    """It may be refused; but once it returns, it is the newest."""
    for step in range(3):
        save(near, far, step, step=step)
    shutil.rmtree(near)
    with down(far), suppress(ckpt.CkptError):
        save(near, far, 9)
    newest = 9 if ckpt.steps(near) else 2
    with suppress(ckpt.CkptError):
        ckpt.drain(near, far)
    assert seed_of(near, mirror=far) == newest


def test_a_step_for_one_mirror_is_not_forgotten_for_another(
    near: Path, far: Path, folder: Path
) -> None:
    with down(far):
        save(near, far, 1, step=1)
    with pytest.warns(UserWarning, match=r"found \[1\] owed to another mirror"):
        save(near, folder / "other", 2, step=2)
    ckpt.drain(near, far)
    assert ckpt.steps(far) == [1]


def test_steps_that_the_mirror_has_lost_stay_here(near: Path, far: Path) -> None:
    for step in (1, 2):
        save(near, far, step, step=step)
    shutil.rmtree(far)
    save(near, far, 3, step=3, keep_local=1)
    assert ckpt.steps(near) == [1, 2, 3]


def test_an_overwrite_comes_to_the_mirror_whichever_copy_was_first(
    near: Path, far: Path
) -> None:
    with down(far):
        save(near, far, 1, step=1)
        save(near, far, 2, step=1, overwrite=True)
    ckpt.drain(near, far)
    assert (seed_of(near), seed_of(far)) == (2, 2)
    # The first of two is copied while the second is saved.
    with down(far):
        save(near, far, 3, step=1, overwrite=True)
    first = ckpt.open(near).opened
    ckpt.copy(first.store.url, far, overwrite=True)
    with down(far):
        save(near, far, 4, step=1, overwrite=True)
    ckpt.drain(near, far)
    assert (seed_of(near), seed_of(far)) == (4, 4)


def test_a_torn_note_keeps_no_step_from_the_mirror(near: Path, far: Path) -> None:
    with down(far):
        for step in (1, 2, 3):
            save(near, far, step, step=step)
    notes = sorted((near / "steps").glob("*.mirror"))
    notes[0].write_bytes(b"")
    notes[1].unlink()
    notes[1].symlink_to("/etc/hostname")
    assert ckpt.prune(near, keep=ckpt.Keep(last=1)) == []
    assert ckpt.drain(near, far, keep_local=9) == [1, 2, 3]
    assert [seed_of(far, step=step) for step in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.root
def test_an_overwrite_on_a_disk_without_a_free_byte_is_not_hidden(
    near: Path, far: Path
) -> None:
    with small_disk(near, "2m"):
        save(near, far, 1, step=1)
        fill_up(near)
        save(near, far, 2, step=1, overwrite=True)
        assert seed_of(near, mirror=far) == 2
        assert ckpt.steps(near) == []


def test_an_old_commit_here_does_not_hide_a_newer_one_in_the_mirror(
    near: Path, far: Path
) -> None:
    """As a save leaves it that went to the mirror at once, and was killed then."""
    save(near, far, 1, step=1)
    ckpt.save(make_tree(2, 4), None, far, step=1, overwrite=True)
    assert seed_of(near) == 1
    assert seed_of(near, mirror=far) == 2
