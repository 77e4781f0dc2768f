"""Damaged files are refused or harmless, and always reported; never wrong values."""

from itertools import islice
from pathlib import Path

import pytest

import ckpt
from tests.faults._flips import (
    chunk_swaps,
    do_damages,
    files_of,
    flips,
    losses,
    make_checkpoint,
    restore_end,
    swaps,
)


@pytest.fixture
def run(folder: Path) -> Path:
    make_checkpoint(folder / "run")
    return folder / "run"


@pytest.mark.campaign
@pytest.mark.parametrize(("codec", "count"), [(None, 150), ("zstd", 50)])
def test_flipped_bits_are_never_wrong_values(
    folder: Path, codec: str | None, count: int
) -> None:
    make_checkpoint(folder / "run", codec=codec)
    figures = do_damages(folder / "run", flips(folder / "run", count=count))
    assert (figures.silent, figures.unreported) == ((), ())
    assert figures.ends["Damaged"] > count / 2


def test_cut_longer_and_deleted_files_are_never_wrong_values(run: Path) -> None:
    figures = do_damages(run, losses(run))
    assert (figures.silent, figures.unreported) == ((), ())
    assert figures.ends.total() == 5 * len(files_of(run))


def test_swapped_files_are_never_wrong_values(run: Path) -> None:
    damages = list(swaps(run))
    figures = do_damages(run, iter(damages))
    assert (figures.silent, figures.unreported) == ((), ())
    same_shape = [damage for damage in damages if damage.name.count("kernel/c/") == 2]
    assert len(same_shape) == 6
    assert do_damages(run, iter(same_shape)).ends == {"Damaged": 6}


def test_swapped_chunks_of_one_object_are_damage(run: Path) -> None:
    # Of four objects with sixteen chunks each, every fortieth pair.
    figures = do_damages(run, islice(chunk_swaps(run), 0, None, 40))
    assert figures.ends == {"Damaged": 12}
    assert figures.unreported == ()


def test_an_extra_object_is_reported_and_harms_nothing(run: Path) -> None:
    (objects,) = run.glob("*/deep/layer0/kernel/c")
    extra = objects / "2" / "0"
    extra.parent.mkdir()
    extra.write_bytes((objects / "1" / "0").read_bytes())
    report = ckpt.verify(run)
    assert report.ok
    assert report.orphans == ("deep/layer0/kernel/c/2/0",)
    assert restore_end(run) == "equal"


class _EqualsAll(int):
    """A checksum that is the expected one, whatever that is."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def test_without_checksums_the_same_damage_is_silent(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damages = [*flips(run, count=20), *chunk_swaps(run)]
    monkeypatch.setattr("ckpt._crc.crc32c", lambda data: _EqualsAll())
    figures = do_damages(run, (d for d in damages if "/c/" in d.name))
    assert len(figures.silent) >= 10
