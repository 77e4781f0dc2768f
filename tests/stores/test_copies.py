"""Runs are copied to and from stores of any kind, and drained to them."""

from pathlib import Path

import pytest

import ckpt
from tests.faults._trees import make_tree, restore_seed
from tests.stores._places import CloudPlace, FilePlace, Place
from tests.stores._runs import committed_folders


def contents(place: Place) -> dict[str, bytes]:
    return {name: place.get(name) for name in place.names()}


def save(place: Place, *steps: int) -> None:
    for step in steps:
        ckpt.save(make_tree(step), None, place.url, step=step)


@pytest.fixture
def disk(folder: Path) -> FilePlace:
    """A run on the disk that does not exist yet."""
    return FilePlace(folder / "disk")


def test_a_copy_is_the_same_byte_by_byte(place: Place, disk: FilePlace) -> None:
    save(disk, 1, 2)
    copies = ckpt.copy(disk.url, place.url)
    assert [copy.step for copy in copies] == [1, 2]
    assert contents(place) == contents(disk)
    back = FilePlace(disk.root.parent / "back")
    ckpt.copy(place.url, back.url, step=2)
    (folder,) = committed_folders(back).values()
    wanted = {n: d for n, d in contents(disk).items() if n.startswith(f"{folder}/")}
    assert contents(back) == wanted | {"steps/2.json": disk.get("steps/2.json")}
    assert restore_seed(back.url) == 2


def test_a_copy_goes_on_where_another_has_stopped(
    place: Place, disk: FilePlace
) -> None:
    save(disk, 1)
    ckpt.copy(disk.url, place.url)
    whole = contents(place)
    lost = [n for n in whole if n.endswith(("w/c/0/0", "manifest.json", "1.json"))]
    for name in lost:
        place.delete(name)
    if isinstance(place, CloudPlace):
        place.cloud.take_log()
    ckpt.copy(disk.url, place.url)
    assert contents(place) == whole
    if isinstance(place, CloudPlace):
        sent = [request for request in place.cloud.take_log() if request.writes]
        # What is lost, and the note of the copy, which is renewed before the commit.
        assert len(sent) == len(lost) + 2


def test_a_copy_refuses_what_is_damaged_and_what_is_taken(
    place: Place, disk: FilePlace
) -> None:
    save(place, 1)
    (pack,) = (name for name in place.names() if name.endswith("w/c/0/0"))
    was = place.get(pack)
    place.put(pack, was[:1000] + bytes([was[1000] ^ 1]) + was[1001:])
    with pytest.raises(ckpt.Damaged):
        ckpt.copy(place.url, disk.url)
    assert ckpt.steps(disk.url) == []
    place.put(pack, was)
    ckpt.save(make_tree(5), None, disk.url, step=1)
    with pytest.raises(ckpt.StepExists):
        ckpt.copy(disk.url, place.url)
    assert restore_seed(place.url) == 1
    ckpt.copy(disk.url, place.url, overwrite=True)
    assert restore_seed(place.url) == 5
    assert {name.partition("/")[0] for name in place.names()} == {
        "steps",
        *committed_folders(place).values(),
    }


def test_a_mirror_has_every_step_and_the_disk_the_newest(
    place: Place, disk: FilePlace
) -> None:
    for step in (1, 2, 3):
        ckpt.save(
            make_tree(step), None, disk.url, step=step, mirror=place.url, keep_local=1
        )
    ckpt.drain(disk.url, place.url, keep_local=1)
    assert committed_folders(place).keys() == {1, 2, 3}
    assert committed_folders(disk).keys() == {3}
    assert [restore_seed(place.url, step) for step in (1, 2, 3)] == [1, 2, 3]
    assert int(ckpt.restore(disk.url, step=1, mirror=place.url)["seed"][0]) == 1
    assert int(ckpt.restore(disk.url, mirror=place.url)["seed"][0]) == 3
    assert not any(".attempt" in name for name in place.names())
