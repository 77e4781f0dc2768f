"""A power cut loses what no flush covered, and the harness catches who relied on it."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests._harness import writers
from tests._harness.blocklog import Flush, Write, logged_disk, read_log
from tests._harness.forkserver import Fault, ForkServer, Job
from tests._harness.mounts import is_mounted, mounted, sync_filesystem
from tests._harness.powercut import (
    PAGE,
    Acknowledged,
    Cut,
    Recording,
    Report,
    apply,
    copy_sparse,
    plan_cuts,
    record,
    replay,
)

STATES = [f"state {number} " * 1000 for number in range(5)]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


def check_states(mountpoint: Path, acknowledged: tuple[str, ...]) -> str | None:
    path = mountpoint / "x"
    found = path.read_text() if path.exists() else None
    legal = STATES[int(acknowledged[-1]) :] if acknowledged else [None, *STATES]
    return None if found in legal else f"found {found} after {acknowledged}"


def write_states(
    writer: Callable[[str, str], None],
    mountpoint: Path,
    acknowledge: Callable[[str], None],
) -> None:
    for number, state in enumerate(STATES):
        writer(str(mountpoint / "x"), state)
        acknowledge(str(number))


def look(
    writer: Callable[[str, str], None], folder: Path, *, filesystem: str
) -> Report:
    work = partial(write_states, writer)
    return replay(record(work, folder, filesystem=filesystem), check_states)


@pytest.mark.root
@pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
def test_a_safe_writer_loses_nothing_at_any_cut(folder: Path, filesystem: str) -> None:
    report = look(writers.replace, folder, filesystem=filesystem)
    assert report.images > 4 * len(STATES)
    assert report.failures == ()


@pytest.mark.root
@pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
@pytest.mark.parametrize(
    "writer",
    [
        writers.overwrite,
        writers.replace_without_file_sync,
        writers.replace_without_folder_sync,
    ],
)
def test_an_unsafe_writer_is_caught(
    writer: Callable[[str, str], None], folder: Path, filesystem: str
) -> None:
    failures = look(writer, folder, filesystem=filesystem).failures
    assert any(failure.complaint.startswith("found") for failure in failures)


@pytest.mark.root
def test_a_safe_writer_on_a_disk_that_does_not_sync_is_caught(folder: Path) -> None:
    with ForkServer("tests._harness.writers") as server:

        def write(path: str, state: str) -> None:
            fault = Fault(str(Path(path).parent), mode="nosync")
            job = Job("tests._harness.writers:replace", (path, state), fault)
            (outcome,) = server.run(job)
            assert (outcome.status, outcome.faults) == ("returned", 2)

        assert look(write, folder, filesystem="ext4").failures


@pytest.mark.root
def test_a_disk_logs_its_writes_and_flushes_in_order(folder: Path) -> None:
    (folder / "fuse").mkdir()
    (folder / "backing").write_bytes(bytes(8 * PAGE))
    with logged_disk(folder / "backing", folder / "log", folder / "fuse") as disk:
        descriptor = os.open(disk, os.O_RDWR)
        os.pwrite(descriptor, b"one", 10)
        os.fsync(descriptor)
        os.pwrite(descriptor, b"two", PAGE)
        os.pwrite(descriptor, b"three", 0)
        os.fdatasync(descriptor)
        assert os.pread(descriptor, 14, 0) == b"three" + bytes(5) + b"one" + bytes(1)
        os.close(descriptor)
    events = [event for _, event in read_log((folder / "log").read_bytes())]
    assert events == [
        Write(10, b"one"),
        Flush(),
        Write(PAGE, b"two"),
        Write(0, b"three"),
        Flush(),
    ]


@pytest.mark.root
def test_replaying_all_of_a_log_gives_the_very_disk(folder: Path) -> None:
    recording = record(partial(write_states, writers.replace), folder)
    for event in recording.events:
        if isinstance(event, Write):
            apply((event,), recording.base)
    (folder / "again").mkdir()
    with mounted(recording.base, folder / "again", filesystem="ext4"):
        assert (folder / "again" / "x").read_text() == STATES[-1]


@pytest.mark.root
def test_a_writer_that_raises_leaves_no_mount_and_no_device(folder: Path) -> None:
    def work(mountpoint: Path, acknowledge: Callable[[str], None]) -> None:
        (mountpoint / "x").write_text("x")
        raise ValueError("no such luck")

    with pytest.raises(ValueError, match="no such luck"):
        record(work, folder)
    assert str(folder) not in Path("/proc/mounts").read_text()
    devices = subprocess.run(["losetup", "-a"], capture_output=True, check=True)
    assert str(folder).encode() not in devices.stdout


@pytest.mark.root
def test_a_run_that_is_told_to_end_leaves_no_mount_and_no_server(folder: Path) -> None:
    source = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "import tests.conftest\n"
        "from tests._harness.powercut import record\n"
        "def work(mountpoint, acknowledge):\n"
        "    (mountpoint / 'x').write_text('x')\n"
        "    print('working', flush=True)\n"
        "    time.sleep(60)\n"
        "record(work, Path(sys.argv[1]))\n"
    )
    argv = [sys.executable, "-c", source, folder]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        assert is_mounted(folder / "mount")
        assert is_mounted(folder / "fuse")
        process.terminate()
        assert process.wait(30) == -signal.SIGINT
    assert str(folder) not in Path("/proc/mounts").read_text()
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, check=True)
    assert str(folder).encode() not in running.stdout


@pytest.mark.root
def test_a_file_system_that_does_not_mount_is_a_complaint(folder: Path) -> None:
    def work(mountpoint: Path, acknowledge: Callable[[str], None]) -> None:
        sync_filesystem(mountpoint)

    recording = record(work, folder)
    zeros = (Write(0, bytes(2 * PAGE)), Flush())
    broken = Recording(recording.filesystem, recording.base, zeros)
    report = replay(broken, lambda mountpoint, acknowledged: None)
    assert {failure.complaint[:7] for failure in report.failures} == {"OSError"}


def kept(cut: Cut) -> bytes:
    return b"".join(write.data for write in cut.kept)


def durable(cuts: list[Cut]) -> bytes:
    return b"".join(write.data for cut in cuts for write in cut.durable)


def test_cuts_keep_what_was_flushed_and_lose_any_of_the_rest() -> None:
    letters = [Write(number * PAGE, bytes([97 + number])) for number in range(6)]
    a, b, c, d, e, f = letters
    events = (a, Flush(), b, c, Acknowledged("1"), d, Flush(), e, f)
    cuts = list(plan_cuts(events, subsets=200, seed=1))
    at = {event: [cut for cut in cuts if cut.event == event] for event in (1, 5, 6, 9)}
    assert sum(map(len, at.values())) == len(cuts)
    assert {kept(cut) for cut in at[1]} == {b"", b"a"}
    assert {kept(cut) for cut in at[5]} == {b"", b"b", b"c", b"bc"}
    assert {kept(cut) for cut in at[6]} == {
        *(b"", b"b", b"c", b"d"),
        *(b"bc", b"bd", b"cd", b"bcd"),
    }
    assert {kept(cut) for cut in at[9]} == {b"", b"e", b"f", b"ef"}
    assert [durable(at[event]) for event in (1, 5, 6, 9)] == [b"", b"a", b"", b"bcd"]
    assert {cut.acknowledged for cut in at[1]} == {()}
    assert {cut.acknowledged for cut in at[5] + at[6] + at[9]} == {("1",)}


def test_a_long_write_can_be_lost_page_by_page() -> None:
    long = Write(PAGE - 1, b"x" + b"y" * PAGE + b"z")
    cuts = list(plan_cuts((long,), subsets=200, seed=1))
    sizes = {tuple(len(write.data) for write in cut.kept) for cut in cuts}
    assert {(), (1,), (PAGE,), (1, PAGE), (1, PAGE, 1)} <= sizes
    assert {len(cut.kept) + cut.lost for cut in cuts} == {3}


def test_a_log_that_ends_within_a_record_is_read_up_to_there(tmp_path: Path) -> None:
    record_one = b"\x01" + (5).to_bytes(8, "little") + (3).to_bytes(8, "little")
    flush = b"\x02" + bytes(16)
    log = record_one + b"abc" + flush + record_one + b"ab"
    assert list(read_log(log)) == [(20, Write(5, b"abc")), (37, Flush())]


def test_a_sparse_copy_has_the_same_bytes_and_holes(folder: Path) -> None:
    source, target = folder / "source", folder / "target"
    with source.open("wb") as file:
        for offset in (3, 10 * PAGE, 100 * PAGE):
            file.seek(offset)
            file.write(b"data")
        file.truncate(1000 * PAGE)
    target.write_bytes(b"old" * PAGE)
    copy_sparse(source, target)
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks == source.stat().st_blocks
