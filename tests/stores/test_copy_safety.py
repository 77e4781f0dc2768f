"""What must not happen to copies, whoever prunes or copies beside."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckpt
from ckpt._catalog import locate
from ckpt._commit import remove_step
from ckpt._notes import note_removal
from tests._harness.jobs import JobServer, Setup
from tests._harness.servers import Cloud, Kind
from tests.faults._trees import make_tree, place_tree, restore_seed
from tests.jobs._matrix import find_failed
from tests.stores._places import FilePlace, Place, new_place
from tests.stores._runs import committed_folders

TREE = {f"w{n}": np.full((512, 1024), n, np.float32) for n in range(4)}
TWO_DAYS = 2 * 24 * 3600.0


class BrokenOff(BaseException):
    """Ends a copy as a signal would."""


@pytest.fixture
def source(folder: Path) -> str:
    url = str(folder / "source")
    ckpt.save(TREE, None, url, step=1)
    return url


def break_off(done: int, total: int) -> None:
    if done > total // 2:
        raise BrokenOff


@pytest.mark.parametrize("later", [0.0, TWO_DAYS], ids=["renewed", "old"])
def test_a_prune_beside_a_copy_that_goes_on_leaves_it_or_ends_it(
    later: float, source: str, place: Place
) -> None:
    with pytest.raises(BrokenOff):
        ckpt.copy(source, place.url, progress=break_off)
    assert any(name.endswith(".attempt") for name in place.names())
    pruned: list[list[ckpt.Removed]] = []

    def prune_once(done: int, total: int) -> None:
        if not pruned and done == total:
            clock = time.time() + later
            pruned.append(ckpt.prune(place.url, clock=lambda: clock))

    if later:
        with pytest.raises(ckpt.StoreError):
            ckpt.copy(source, place.url, progress=prune_once)
        assert [one.orphan for one in pruned[0]] == [True]
        assert (ckpt.steps(place.url), place.names()) == ([], [])
    else:
        ckpt.copy(source, place.url, progress=prune_once)
    ckpt.copy(source, place.url)
    assert ckpt.verify(place.url).ok
    np.testing.assert_array_equal(ckpt.restore(place.url)["w3"], TREE["w3"])


def test_nothing_goes_on_with_what_is_being_removed(source: str, place: Place) -> None:
    """As a prune leaves it that was killed between its note and the data."""
    ckpt.copy(source, place.url)
    names = place.names()
    (record,) = [name for name in names if name == "steps/1.json"]
    folder = committed_folders(place)[1]
    place.delete(record)
    note_removal(locate(place.url), 1, folder.partition("-")[2])
    with pytest.raises(ckpt.StoreError, match="being removed"):
        ckpt.copy(source, place.url)
    assert [one.orphan for one in ckpt.prune(place.url)] == [True]
    ckpt.copy(source, place.url)
    assert place.names() == names
    assert ckpt.verify(place.url).ok


def test_what_lies_under_an_object_s_name_is_not_taken_for_it(
    source: str, place: Place
) -> None:
    folder = committed_folders(FilePlace(Path(source)))[1]
    place.put(f"{folder}/w1/c/0/0", b"rubbish")
    ckpt.copy(source, place.url)
    assert ckpt.verify(place.url).ok


def test_a_copy_into_itself_is_refused_and_removes_nothing(folder: Path) -> None:
    run = folder / "run"
    done = ckpt.save(TREE, None, run, step=1)
    victim = Path(done.url) / "w1/c/0/0"
    data = bytearray(victim.read_bytes())
    data[9] ^= 1
    victim.write_bytes(data)
    (folder / "alias").symlink_to(run)
    for source in (done.url, folder / "alias"):
        with pytest.raises(ValueError, match=r"two runs|another run"):
            ckpt.copy(source, run)
    assert victim.read_bytes() == data


def test_a_step_is_removed_only_as_the_commit_that_was_meant(folder: Path) -> None:
    run = locate(folder / "run")
    first = ckpt.save({"x": 1}, None, run.url, step=1)
    ckpt.save({"x": 2}, None, run.url, step=1, overwrite=True)
    with pytest.raises(ckpt.NotFound, match="overwritten"):
        remove_step(run, 1, commit=first.manifest.commit)
    assert ckpt.restore(run.url) == {"x": 2}


@pytest.mark.root
def test_a_near_run_that_each_process_has_for_itself_is_read_from_the_mirror(
    clouds: Mapping[Kind, Cloud], folder: Path, job_server: JobServer
) -> None:
    """One of them has nothing nearby: all go to the mirror, and none waits."""
    near, kept = folder / "near", folder / "kept"
    far = new_place("s3", clouds, folder)
    state, mesh = place_tree(make_tree(1, "wide"), devices=2)
    ckpt.save(state, mesh, kept, step=1, mirror=far.url)
    ckpt.drain(kept, far.url)
    near.mkdir()
    with job_server.start(Setup(2, private=str(near))) as job:
        answers = job.run(
            "tests.stores._mirrored:restore_private",
            *(str(near), str(kept), far.url, 1),
        )
    assert find_failed("restore", answers) == []
    assert [answer.value for answer in answers] == [["it is read from"]] * 2
    assert restore_seed(far.url) == 1


@pytest.mark.root
def test_a_step_that_no_other_place_has_ends_for_all_processes(
    folder: Path, job_server: JobServer
) -> None:
    near, kept, far = folder / "near", folder / "kept", folder / "far"
    ckpt.save(make_tree(1, "wide"), None, kept, step=1)
    near.mkdir()
    with job_server.start(Setup(2, private=str(near))) as job:
        begun = time.monotonic()
        answers = job.run(
            "tests.stores._mirrored:restore_private",
            *(str(near), str(kept), str(far), 1),
        )
        assert time.monotonic() - begun < 15
    assert [answer.error for answer in answers] == ["NotFound", "NotFound"]


def test_secrets_in_the_wrong_place_are_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong: list[Any] = [
        "aws_secret=hush",
        {"secret": "hush"},
        {"s3://bucket": "hush"},
        {"s3://other": {"hush": 1}},
        {"endpoint": "http://user:hush@host"},
        {"region": ["hush"]},
        {"timeout": 0},
    ]
    for options in wrong:
        with pytest.raises((TypeError, ValueError), match="expected") as caught:
            ckpt.steps("s3://bucket/run", store_options=options)
        assert "hush" not in str(caught.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hush@127.0.0.1:1/x?hush")
    with pytest.raises(ValueError, match="endpoint") as caught:
        ckpt.steps("s3://bucket/run")
    assert "hush" not in str(caught.value)


def test_the_options_of_the_longest_prefix_count(
    clouds: Mapping[Kind, Cloud], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_place("s3", clouds, folder)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    options = {
        "s3://": {"endpoint": "http://127.0.0.1:1", "timeout": 0.2},
        "s3://bucket": {"endpoint": clouds["s3"].url, "region": "us-east-1"},
        "s3://buck": {"timeout": 0.1},
    }
    ckpt.save({"x": 1}, None, place.url, store_options=options)
    assert ckpt.restore(place.url, store_options=options) == {"x": 1}
    with pytest.raises(ckpt.StoreError, match=r"no answer|Could not connect"):
        ckpt.steps("s3://elsewhere/run", store_options=options)
