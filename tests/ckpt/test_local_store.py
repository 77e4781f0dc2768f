"""Folders that hold what no checkpoint does, and file systems that refuse."""

import errno
import fcntl
import os
import socket
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckpt import _place
from ckpt._errors import NotFound, StoreError, Unsupported, Untrusted
from ckpt._local_store import LocalStore
from tests._harness.mounts import mount, unmount
from tests.ckpt._stores import write


@pytest.fixture(params=["folder", "path"])
def store(
    request: pytest.FixtureRequest, memory_run: Path, monkeypatch: pytest.MonkeyPatch
) -> LocalStore:
    if request.param == "path":
        # As on Windows: no descriptors of folders, no O_NOFOLLOW.
        monkeypatch.setattr(_place, "_HAS_PLACES", False)
        monkeypatch.setattr(_place, "_NOFOLLOW", 0)
        monkeypatch.setattr(_place, "_READ", _place._READ & ~os.O_NOFOLLOW)
    store = LocalStore(str(memory_run))
    store.make_folders(["a/b"])
    write(store, "a/b/0", b"data")
    return store


def make_link(path: Path) -> None:
    secret = path.parents[2] / "secret"
    secret.write_bytes(b"secret")
    path.symlink_to(secret)


def make_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def make_link_within(path: Path) -> None:
    path.symlink_to(path.parent / "b" / "0")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def make_device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))


STRANGE = [
    make_link,
    make_dangling_link,
    make_link_within,
    make_socket,
    Path.mkdir,
    os.mkfifo,
    pytest.param(make_device, marks=pytest.mark.root),
]


@pytest.mark.parametrize("make", STRANGE)
def test_only_regular_files_are_read(
    store: LocalStore, make: Callable[[Path], None]
) -> None:
    make(Path(store.root, "a", "x"))
    calls: list[Callable[[], object]] = [
        lambda: store.open("a/x"),
        lambda: store.read("a/x", limit=100),
        lambda: store.size("a/x"),
        lambda: store.child("a").open("x"),
    ]
    message = (
        "Expected a regular file, found a link, folder, pipe or device - at `{}` in "
        "{}. No checkpoint contains one: copy the files in."
    )
    for call in calls[:3]:
        with pytest.raises(Untrusted) as caught:
            call()
        assert str(caught.value) == message.format("a/x", store.root)
    with pytest.raises(Untrusted) as caught:
        calls[3]()
    assert str(caught.value) == message.format("x", f"{store.root}/a")


def test_no_linked_folder_is_entered(store: LocalStore) -> None:
    outside = Path(store.root).parent / "outside"
    outside.mkdir()
    (outside / "0").write_bytes(b"secret")
    Path(store.root, "a", "link").symlink_to(outside)
    calls: list[Callable[[], object]] = [
        lambda: store.open("a/link/0"),
        lambda: store.read("a/link/0", limit=100),
        lambda: store.size("a/link/0"),
        lambda: store.write("a/link/1", size=None),
        lambda: store.create("a/link/1", b"x"),
        lambda: store.remove("a/link/0"),
        lambda: store.remove_tree("a/link/0"),
        lambda: store.list("a/link"),
        lambda: store.make_folders(["a/link/c"]),
        lambda: store.make_folders(["a/link"]),
        lambda: store.sync_folders(["a/link"]),
        lambda: store.child("a/link").read("0", limit=100),
    ]
    for call in calls:
        with pytest.raises(Untrusted):
            call()
    assert [p.name for p in outside.iterdir()] == ["0"]


def test_the_root_may_be_reached_through_links(store: LocalStore) -> None:
    link = Path(store.root).parent / "link"
    link.symlink_to(store.root)
    assert LocalStore(str(link)).read("a/b/0", limit=10) == b"data"
    assert LocalStore(str(link / "a")).list("") == ["b/0"]


def test_list_names_links_and_does_not_follow_them(store: LocalStore) -> None:
    Path(store.root, "a", "up").symlink_to("..")
    Path(store.root, "a", "file").symlink_to("b/0")
    Path(store.root, "a", "odd name\n").touch()
    assert store.list("") == ["a/b/0", "a/file", "a/odd name\n", "a/up"]


def test_remove_tree_removes_links_and_not_what_they_lead_to(store: LocalStore) -> None:
    outside = Path(store.root).parent / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"kept")
    (Path(store.root).parent / "twin").hardlink_to(Path(store.root, "a/b/0"))
    Path(store.root, "a", "folder").symlink_to(outside)
    Path(store.root, "a", "file").symlink_to(outside / "kept")
    Path(store.root, "a", "odd name").write_bytes(b"odd")
    os.mkfifo(Path(store.root, "a", "pipe"))
    # A name of an object that has another name frees nothing.
    assert store.remove_tree("a") == 3 + len(str(outside)) + len(str(outside / "kept"))
    assert (outside / "kept").read_bytes() == b"kept"
    assert (Path(store.root).parent / "twin").read_bytes() == b"data"
    Path(store.root, "gone").symlink_to(outside)
    assert store.remove_tree("gone") == 0
    assert os.listdir(store.root) == []
    assert (outside / "kept").read_bytes() == b"kept"


def test_endless_nesting_is_refused_in_order(memory_run: Path) -> None:
    memory_run.mkdir()
    at = os.open(memory_run, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    store = LocalStore(str(memory_run))
    try:
        for call in [lambda: store.list(""), lambda: store.remove_tree("d")]:
            with pytest.raises(StoreError, match="nested more than 256 deep"):
                call()
    finally:
        subprocess.run(["rm", "-rf", str(memory_run)], check=True)


def test_no_descriptor_is_left_open(store: LocalStore) -> None:
    def work() -> None:
        with pytest.raises(NotFound):
            store.open("a/none/x")
        with pytest.raises(Untrusted):
            store.open("a/b")
        with pytest.raises(StoreError):
            store.write("a/b/0", size=None)
        with store.open("a/b/0") as reader:
            reader.read_into(0, bytearray(4))
        reader.close()
        store.create("a/r", b"1")
        store.create("a/r", b"2")
        store.list("")
        store.remove("a/r")
        store.write("a/w", size=None).abort()

    work()
    before = sorted(os.listdir("/proc/self/fd"))
    work()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_temporary_file_left_by_a_killed_writer_is_replaced(
    memory_run: Path,
) -> None:
    store = LocalStore(str(memory_run))
    store.make_folders(["steps"])
    (memory_run / "steps" / "1.json.tmp").write_bytes(b"left over, and longer")
    assert store.create("steps/1.json", b"whole") is True
    (memory_run / "steps" / "1.json.tmp").symlink_to("/etc/passwd")
    assert store.replace("steps/1.json", b"newer", expected=b"whole") is True
    assert store.list("") == ["steps/1.json"]
    assert store.read("steps/1.json", limit=99) == b"newer"


def test_a_change_waits_for_another_process_s_change(
    memory_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(memory_run))
    store.make_folders(["steps"])
    folder = os.open(memory_run / "steps", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        thread = threading.Thread(target=store.create, args=["steps/1.json", b"x"])
        thread.start()
        thread.join(0.1)
        assert store.size("steps/1.json") is None
        fcntl.flock(folder, fcntl.LOCK_UN)
        thread.join()
        assert store.size("steps/1.json") == 1
        fcntl.flock(folder, fcntl.LOCK_EX)
        monkeypatch.setattr(_place, "_LOCK_SECONDS", 0.05)
        with pytest.raises(
            StoreError, match="another process has locked the"
        ) as caught:
            store.remove("steps/1.json")
        assert caught.value.outcome == "failed"
    finally:
        os.close(folder)


def refuse(code: int) -> Callable[..., None]:
    def call(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_there_are_no_hard_links_create_still_takes_free_names_only(
    code: int, memory_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(memory_run))
    store.make_folders(["steps"])
    monkeypatch.setattr(os, "link", refuse(code))
    assert store.create("steps/1.json", b"first") is True
    assert store.create("steps/1.json", b"second") is False
    # Another host, which our lock does not reach, may come between.
    monkeypatch.setattr(_place, "find", lambda *_: None)
    assert store.create("steps/1.json", b"third") is False
    assert store.list("") == ["steps/1.json"]
    assert store.read("steps/1.json", limit=99) == b"first"


@pytest.mark.parametrize("code", [errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_there_are_no_locks_create_is_whole_and_replace_is_refused(
    code: int, memory_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(memory_run))
    store.make_folders(["steps"])
    monkeypatch.setattr(fcntl, "flock", refuse(code))
    # A temporary file of another writer, who may be at work, is left alone.
    (memory_run / "steps" / "1.json.tmp").write_bytes(b"theirs")
    assert store.create("steps/1.json", b"first") is True
    assert store.create("steps/1.json", b"second") is False
    with pytest.raises(Unsupported, match="Nothing was changed"):
        store.replace("steps/1.json", b"second", expected=b"first")
    assert store.list("") == ["steps/1.json", "steps/1.json.tmp"]
    assert store.remove("steps/1.json") is True


@pytest.mark.parametrize(
    ("code", "kept"),
    [(errno.EINVAL, True), (errno.EOPNOTSUPP, True), (errno.EIO, False)],
)
def test_only_a_missing_fsync_of_folders_is_forgiven(
    code: int, kept: bool, memory_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(memory_run))
    store.make_folders(["steps"])
    fsync = os.fsync

    def fail_on_folders(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail_on_folders)
    if kept:
        assert store.create("steps/1.json", b"x") is True
        store.sync_folders(["steps"])
        return
    with pytest.raises(StoreError) as caught:
        store.create("steps/1.json", b"x")
    assert str(caught.value) == (
        "Expected the file system to do as asked, found: Input/output error - at "
        f"`steps/1.json` in {memory_run}. It was done, but may not survive a power "
        "cut. Check the disk before you trust what is on it."
    )
    assert caught.value.outcome == "unsynced"
    with pytest.raises(StoreError, match="- at `steps` in"):
        store.sync_folders(["steps"])


def test_a_failed_fsync_is_never_tried_again_and_the_file_goes(
    memory_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(memory_run))
    store.make_folders(["a"])
    asked: list[int] = []

    def fail(fd: int) -> None:
        asked.append(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    writer = store.write("a/0", size=1)
    writer.write([b"x"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StoreError, match="Input/output error - at `a/0` in"):
            writer.close()
    writer.close()
    assert len(asked) == 1
    assert store.list("") == []


@pytest.fixture
def small_disk(memory_run: Path) -> Iterator[Path]:
    memory_run.mkdir()
    mount("tmpfs", memory_run, filesystem="tmpfs", options="size=256k")
    try:
        yield memory_run
    finally:
        unmount(memory_run)


@pytest.mark.root
def test_a_full_disk_is_named_and_its_space_is_given_back(small_disk: Path) -> None:
    store = LocalStore(str(small_disk))
    store.make_folders(["a"])
    free = os.statvfs(small_disk).f_bavail
    with pytest.raises(StoreError) as caught, store.write("a/0", size=None) as writer:
        writer.write([bytes(200_000), bytes(200_000)])
    assert str(caught.value) == (
        "Expected the file system to do as asked, found: No space left on device - at "
        f"`a/0` in {small_disk}. Free some space and try again."
    )
    assert isinstance(caught.value.__cause__, OSError)
    assert os.statvfs(small_disk).f_bavail == free
    with pytest.raises(StoreError, match="No space left") as caught:
        store.create("a/1", bytes(400_000))
    assert caught.value.outcome == "full"
    assert store.list("") == []
    write(store, "a/0", bytes(100_000))


def test_a_missing_folder_is_named_with_what_to_do(store: LocalStore) -> None:
    for call in [
        lambda: store.write("new/0", size=None),
        lambda: store.create("new/0", b"x"),
        lambda: store.sync_folders(["new"]),
    ]:
        with pytest.raises(StoreError, match="Make its folder first"):
            call()


def test_a_file_in_the_place_of_a_folder_is_named(store: LocalStore) -> None:
    for folder, name in [(store, "a/b/0"), (store.child("a"), "b/0")]:
        where = f"Not a directory - at `{name}` in {folder.url}"
        with pytest.raises(StoreError, match=where):
            folder.make_folders([name])
    with pytest.raises(StoreError, match="Not a directory - at"):
        store.make_folders(["a/b/0/c"])
    with pytest.raises(StoreError, match="Not a directory - "):
        LocalStore(f"{store.root}/a/b/0").make_folders(["x"])


def test_a_writer_that_gives_up_removes_its_own_file_alone(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.make_folders(["a"])
    writer = store.write("a/0", size=None)
    writer.write([b"mine"])
    store.remove("a/0")
    write(store, "a/0", b"another's")
    writer.abort()
    assert store.read("a/0", limit=100) == b"another's"


def test_an_object_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.create("note", b"x")
    with store.hold("note") as first, store.hold("note") as second:
        assert (first, second) == (True, False)
    with store.hold("note") as third:
        assert third
