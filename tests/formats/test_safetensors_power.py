"""A power cut leaves the old set of safetensors files or the new one, whole."""

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import ckpt
from ckpt._local_store import LocalStore
from ckpt.formats import _safetensors_write
from tests._harness.powercut import Report, record, replay
from tests.formats._exports import export, tree_of

KINDS = (False, True, True, False)
"""Whether each export makes shards: every kind takes the place of every other."""


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


def cut_power(folder: Path) -> Report:
    def work(mountpoint: Path, acknowledge: Callable[[str], None]) -> None:
        for number, sharded in enumerate(KINDS, 1):
            export(str(mountpoint / "deep" / "out"), number, sharded)
            acknowledge(str(number))

    def check(mountpoint: Path, acknowledged: tuple[str, ...]) -> str | None:
        done = int(acknowledged[-1]) if acknowledged else 0
        try:
            found = ckpt.restore(mountpoint / "deep" / "out")
        except ckpt.CkptError as error:
            return None if not done else f"expected {done}, found {error!r}"
        for seed in (done, done + 1):
            wanted = tree_of(seed)
            if found.keys() == wanted.keys() and all(
                np.array_equal(found[name], wanted[name]) for name in wanted
            ):
                return None
        return f"expected {done} or the next, found {found['w0'][0, 0]}"

    return replay(record(work, folder), check, subsets=1, seed=0)


@pytest.mark.root
@pytest.mark.filterwarnings("ignore:not all in:UserWarning")
def test_an_export_survives_any_power_cut(folder: Path) -> None:
    report = cut_power(folder)
    assert report.failures == ()
    assert report.images > 50


@pytest.mark.root
@pytest.mark.filterwarnings("ignore:not all in:UserWarning")
def test_an_export_without_fsync_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locate(path: str, options: object) -> LocalStore:
        del options
        return LocalStore(path, durable=False)

    monkeypatch.setattr(_safetensors_write, "locate", locate)
    report = cut_power(folder)
    assert any("expected" in failure.complaint for failure in report.failures)
