"""Links, pipes and devices, and honest files that were exchanged."""

import hashlib
import os
import shutil
import socket
import stat
from pathlib import Path

import pytest

from tests._harness.forkserver import Job
from tests.attacks._forge import Forgery, dump, forge, seal
from tests.attacks._sandbox import Sandbox

OBJECTS = ["w/c/0/0", "w/c/1/0", "~packs/0-0/c/0", "parts/0.json", "manifest.json"]
FOLDERS = ["w", "w/c", "w/c/0", "~packs", "~packs/0-0/c", "parts"]


def _target(forgery: Forgery, name: str) -> Path:
    return forgery.run / name if name.startswith("steps") else forgery.folder / name


@pytest.mark.parametrize("name", [*OBJECTS, "steps/1.json", *FOLDERS, "steps", "."])
def test_a_link_to_the_very_same_data_is_not_followed(
    forgery: Forgery, sandbox: Sandbox, name: str
) -> None:
    target = _target(forgery, name)
    moved = forgery.outside / "moved"
    shutil.move(target, moved)
    target.symlink_to(moved)
    sandbox.refuse(forgery, "Untrusted")


@pytest.mark.parametrize("name", [*OBJECTS, "steps/1.json"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "socket", "dangling", "loop"])
def test_what_is_no_regular_file_is_refused(
    forgery: Forgery, sandbox: Sandbox, name: str, kind: str
) -> None:
    target = _target(forgery, name)
    # A folder is no record, so then there is no step.
    expected = "NotFound" if (kind, name[:5]) == ("folder", "steps") else "Untrusted"
    target.unlink()
    match kind:
        case "fifo":
            os.mkfifo(target)
        case "folder":
            target.mkdir()
        case "socket":
            # Names of sockets are short: it is bound from within its folder.
            folder = os.open(target.parent, os.O_RDONLY)
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(f"/proc/self/fd/{folder}/{target.name}")
            os.close(folder)
        case "dangling":
            target.symlink_to(forgery.outside / "nothing")
        case _:
            target.symlink_to(target.name)
    sandbox.refuse(forgery, expected)


@pytest.mark.root
@pytest.mark.parametrize("name", [*OBJECTS, "steps/1.json"])
def test_a_device_is_not_read(forgery: Forgery, sandbox: Sandbox, name: str) -> None:
    target = _target(forgery, name)
    target.unlink()
    os.mknod(target, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    sandbox.refuse(forgery, "Untrusted")


@pytest.mark.parametrize("name", [*OBJECTS, "steps/1.json"])
def test_a_hard_link_is_a_file_like_others(
    forgery: Forgery, sandbox: Sandbox, name: str
) -> None:
    os.link(_target(forgery, name), forgery.run / "second-name")
    ends = sandbox.expose(forgery)["ends"]
    assert {key: end["error"] for key, end in ends.items()} == dict.fromkeys(ends)


def _swap(first: Path, second: Path) -> None:
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


@pytest.mark.parametrize("other", ["w/c/1/0", "v/c/0/0"])
def test_objects_that_were_swapped_are_damaged(
    forgery: Forgery, sandbox: Sandbox, other: str
) -> None:
    _swap(forgery.folder / "w/c/0/0", forgery.folder / other)
    sandbox.refuse(forgery, "Damaged", "`w`", "w/c/0/0")


def test_chunks_that_were_swapped_inside_an_object_are_damaged(
    forgery: Forgery, sandbox: Sandbox
) -> None:
    path = forgery.folder / "w/c/0/0"
    data = path.read_bytes()
    chunk = len(data) // (len(forgery.chunks("w")) // 2)
    assert chunk * 2 <= len(data)
    path.write_bytes(data[chunk : 2 * chunk] + data[:chunk] + data[2 * chunk :])
    sandbox.refuse(forgery, "Damaged", "`w`", "w/c/0/0")


@pytest.mark.parametrize("size", [0, 1, -1, 1 << 40])
@pytest.mark.parametrize("name", ["w/c/0/0", "~packs/0-0/c/0", "parts/0.json"])
def test_an_object_of_another_size_is_damaged(
    forgery: Forgery, sandbox: Sandbox, name: str, size: int
) -> None:
    path = forgery.folder / name
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    sandbox.refuse(forgery, "Damaged", name)


def _second_process(forgery: Forgery) -> Path:
    """Add a process that wrote nothing, and return its part."""
    empty = {"leaf": [], "piece": [], "pack": [], "offset": [], "length": []}
    objects = {"leaf": [], "object": [], "crc32c": "", "lengths": []}
    body = {"process": 1, "commit": forgery.manifest["commit"], "objects": objects}
    body |= {"packs": empty | {"crc32c": ""}, "files": []}
    data = seal("ckpt-part", dump(body))
    path = forgery.folder / "parts/1.json"
    path.write_bytes(data)
    forgery.manifest["parts"].append([len(data), hashlib.sha256(data).hexdigest()])
    forgery.manifest["processes"] = 2
    forgery.write()
    return path


def test_a_process_that_wrote_nothing_is_fine(
    forgery: Forgery, sandbox: Sandbox
) -> None:
    _second_process(forgery)
    ends = sandbox.expose(forgery)["ends"]
    assert {key: end["error"] for key, end in ends.items()} == dict.fromkeys(ends)


def test_parts_that_were_swapped_are_damaged(
    forgery: Forgery, sandbox: Sandbox
) -> None:
    _swap(_second_process(forgery), forgery.folder / "parts/0.json")
    sandbox.refuse(forgery, "Damaged", "parts/0.json")


def test_parts_that_were_swapped_with_their_digests_are_refused(
    forgery: Forgery, sandbox: Sandbox
) -> None:
    _swap(_second_process(forgery), forgery.folder / "parts/0.json")
    for number, entry in enumerate(forgery.manifest["parts"]):
        data = (forgery.folder / f"parts/{number}.json").read_bytes()
        entry[:] = [len(data), hashlib.sha256(data).hexdigest()]
    forgery.write_manifest(dump(forgery.manifest))
    sandbox.refuse(forgery, "Untrusted", "parts/0.json")


@pytest.fixture
def other(compressed: Path, tmp_path: Path) -> Forgery:
    """An honest checkpoint of the same tree, of another commit."""
    return forge(compressed, tmp_path / "other")


def test_a_manifest_of_another_commit_is_damaged(
    forgery: Forgery, sandbox: Sandbox, other: Forgery
) -> None:
    shutil.copy(other.folder / "manifest.json", forgery.folder)
    sandbox.refuse(forgery, "Damaged", "manifest.json")


def test_a_manifest_of_another_commit_is_refused_with_its_digest(
    forgery: Forgery, sandbox: Sandbox, other: Forgery
) -> None:
    forgery.commit((other.folder / "manifest.json").read_bytes())
    sandbox.refuse(forgery, "Untrusted", "commit")


def test_a_part_of_another_commit_is_damaged(
    forgery: Forgery, sandbox: Sandbox, other: Forgery
) -> None:
    shutil.copy(other.folder / "parts/0.json", forgery.folder / "parts")
    sandbox.refuse(forgery, "Damaged", "parts/0.json")


def test_a_part_of_another_commit_is_refused_with_its_digest(
    forgery: Forgery, sandbox: Sandbox, other: Forgery
) -> None:
    forgery.part = other.part
    forgery.write()
    sandbox.refuse(forgery, "Untrusted", "parts/0.json")


def test_the_record_of_another_step_is_refused(
    forgery: Forgery, sandbox: Sandbox
) -> None:
    shutil.copy(forgery.record_path, forgery.run / "steps/2.json")
    sandbox.refuse(forgery, "Untrusted", "steps/2.json")


def test_an_older_step_under_a_new_number_is_refused(
    forgery: Forgery, sandbox: Sandbox
) -> None:
    data = (forgery.folder / "manifest.json").read_bytes()
    named = {"manifest": [len(data), hashlib.sha256(data).hexdigest()]}
    folder = f"2-{forgery.record['commit']}"
    body = forgery.record | named | {"step": 2, "directory": folder}
    shutil.copytree(forgery.folder, forgery.run / folder)
    (forgery.run / "steps/2.json").write_bytes(seal("ckpt-commit", dump(body)))
    sandbox.refuse(forgery, "Untrusted", "step 1")


def test_an_object_exchanged_after_opening_is_damaged(
    forgery: Forgery, sandbox: Sandbox
) -> None:
    swap = forgery.run.parent / "swap"
    shutil.copy(forgery.folder / "w/c/1/0", swap)
    job = Job("tests.attacks._child:read_twice", [str(forgery.run), str(swap)])
    [outcome] = sandbox.server.run(job)
    assert outcome.value["error"] == "Damaged"
    assert "w/c/0/0" in outcome.value["text"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0" * 100,
        b"[" * 100_000,
        seal("ckpt-attempt", b'{"began":"yesterday"}'),
        seal("ckpt-attempt", b'{"began":1%s}' % (b"0" * 400)),
        seal("ckpt-attempt", b"[]"),
        b"x" * (1 << 20),
    ],
    ids=["empty", "zeros", "nested", "text", "large", "list", "long"],
)
def test_a_note_of_an_attempt_that_makes_no_sense_harms_nothing(
    forgery: Forgery, sandbox: Sandbox, text: bytes
) -> None:
    (forgery.run / "steps/7-0123456789abcdef.attempt").write_bytes(text)
    ends = sandbox.expose(forgery)["ends"]
    assert {key: end["error"] for key, end in ends.items()} == dict.fromkeys(ends)
