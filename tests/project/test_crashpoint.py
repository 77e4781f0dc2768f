"""The shim counts every call that changes a file, and each fault is what it says."""

import errno
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests._harness.crashpoint import (
    Call,
    Mode,
    count_calls,
    list_calls,
    preload,
    read_calls,
    run_with_fault,
)
from tests._harness.forkserver import Fault, ForkServer, Job, sweep

WRITERS = "tests._harness.writers"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(WRITERS, "numpy", "tensorstore") as started:
        yield started


def python(source: str) -> list[str]:
    return [sys.executable, "-c", f"import os; from {WRITERS} import *; {source}"]


def test_every_call_that_python_offers_is_counted_by_its_name(tmp_path: Path) -> None:
    calls = list_calls(python(f"use_every_call({str(tmp_path)!r})"), tmp_path)
    # Python writes with pwritev2 even where no flag is given.
    expected = (
        "mkdir mkdir open write pwrite writev pwritev2 pwritev2 ftruncate truncate "
        "fallocate fsync fdatasync open copy_file_range sendfile open write open "
        "rename rename rename link link symlink symlink unlink unlink rmdir rmdir "
        "mkdir mkdir"
    )
    assert [call.name for call in calls] == expected.split()
    assert [call.number for call in calls] == list(range(1, len(calls) + 1))


def family(name: str) -> str:
    """Name a call without its variant: the shim ends some in another one."""
    return re.sub(r"^p?writev?2?(64)?$", "write", name).removesuffix("at")


def strace_calls(lines: list[str], prefix: Path) -> list[str]:
    """Name the changing calls under a prefix in a log of `strace -f -y`."""
    found: list[str] = []
    for line in lines:
        match = re.match(r"\d+ +(\w+)\((.*)", line)
        if match is None or str(prefix) not in match[2]:
            continue
        name = family(match[1].removesuffix("2"))
        if name == "open" and not re.search("O_CREAT|O_TRUNC|O_TMPFILE", match[2]):
            continue
        found.append("rmdir" if "AT_REMOVEDIR" in match[2] else name)
    return found


@pytest.mark.root
@pytest.mark.parametrize("writer", ["use_every_call", "write_tensors"])
def test_strace_sees_no_other_call_in_the_same_run(writer: str, tmp_path: Path) -> None:
    folder, log, trace = tmp_path / "run", tmp_path / "calls", tmp_path / "trace"
    folder.mkdir()
    changing = (
        "open,openat,creat,write,pwrite64,writev,pwritev,pwritev2,sendfile,"
        "copy_file_range,ftruncate,truncate,fallocate,fsync,fdatasync,syncfs,mkdir,"
        "mkdirat,mknod,mknodat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,"
        "unlink,unlinkat,rmdir,sync_file_range,splice"
    )
    strace = ["strace", "-f", "-y", "-s", "4096", "-e", f"trace={changing}"]
    subprocess.run(
        [*strace, "-o", str(trace), *python(f"{writer}({str(folder)!r})")],
        env=preload(dict(os.environ))
        | {
            "CRASHPOINT_PREFIX": str(folder),
            "CRASHPOINT_MODE": "count",
            "CRASHPOINT_LOG": str(log),
        },
        check=True,
        timeout=120,
    )
    counted = Counter(family(call.name) for call in read_calls(log))
    lines = [line for line in trace.read_text().splitlines() if str(log) not in line]
    assert counted == Counter(strace_calls(lines, folder))
    assert counted["fsync"] > 0


def test_calls_of_all_threads_of_tensorstore_are_counted(tmp_path: Path) -> None:
    calls = list_calls(python(f"write_tensors({str(tmp_path)!r})"), tmp_path)
    renamed = sorted(call.path for call in calls if call.name == "rename")
    chunks = ["c/0/0", "c/0/1", "c/1/0", "c/1/1", "zarr.json"]
    assert renamed == [f"{tmp_path}/array/{chunk}.__lock" for chunk in chunks]


def test_paths_outside_of_the_prefix_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run-2").mkdir()
    write = python(f"overwrite({str(tmp_path / 'run-2' / 'x')!r}, 'text')")
    assert count_calls(write, tmp_path / "run") == 0
    assert count_calls(write, tmp_path / "run-2") == 2


def test_a_prefix_that_does_not_exist_yet_is_counted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    calls = list_calls(python(f"os.mkdir({str(run)!r})"), run)
    assert calls == (Call(1, "mkdir", str(run)),)


def test_a_prefix_through_a_link_is_counted_at_its_target(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write = python(f"overwrite({str(tmp_path / 'link' / 'x')!r}, 'text')")
    calls = list_calls(write, tmp_path / "link")
    assert calls == (
        Call(1, "open", str(tmp_path / "real/x")),
        Call(2, "write", str(tmp_path / "real/x")),
    )


def test_kill_strikes_before_each_call_in_turn(
    server: ForkServer, tmp_path: Path
) -> None:
    def make(number: int) -> Job:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "x").write_text("old")
        fault = Fault(str(folder), number, "kill")
        return Job(f"{WRITERS}:replace", (str(folder / "x"), "new!"), fault)

    states: list[tuple[str, str | None]] = []
    for number, _, outcome in sweep(server, make):
        assert outcome.status == "killed"
        fresh = tmp_path / str(number) / "x.new"
        state = (tmp_path / str(number) / "x").read_text()
        states.append((state, fresh.read_text() if fresh.exists() else None))
    # Before: the open, the write, the fsync, the rename, and the fsync of the folder.
    assert states == [
        ("old", None),
        ("old", ""),
        ("old", "new!"),
        ("old", "new!"),
        ("new!", None),
    ]


@pytest.mark.parametrize(
    ("writer", "caught"), [("overwrite", True), ("replace", False)]
)
@pytest.mark.parametrize("mode", ["kill", "torn"])
def test_a_sweep_catches_the_unsafe_writer_only(
    server: ForkServer, tmp_path: Path, writer: str, *, caught: bool, mode: Mode
) -> None:
    def make(number: int) -> Job:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "x").write_text("old")
        fault = Fault(str(folder), number, mode)
        return Job(f"{WRITERS}:{writer}", (str(folder / "x"), "new!"), fault)

    states = {
        (tmp_path / str(number) / "x").read_text()
        for number, _, outcome in sweep(server, make)
        if outcome.status == "killed"
    }
    assert states
    assert bool(states - {"old", "new!"}) == caught


def test_a_torn_write_leaves_half_and_kills(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write = python(f"overwrite({str(path)!r}, '0123456789')")
    done = run_with_fault(write, tmp_path, at=1, mode="torn")
    assert (done.returncode, path.read_text()) == (-9, "01234")


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("os.write(f, b'0123456789')", "01234"),
        ("os.writev(f, [b'012', b'345', b'6789'])", "01234"),
        ("os.pwrite(f, b'0123456789', 2)", "\0\x0001234"),
        ("os.pwritev(f, [b'0123', b'456789'], 2)", "\0\x0001234"),
    ],
)
def test_a_short_write_of_any_kind_writes_half_and_says_so(
    call: str, found: str, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    source = f"f = os.open({str(path)!r}, os.O_CREAT | os.O_WRONLY); print({call})"
    done = run_with_fault(python(source), tmp_path, at=1, mode="short")
    assert (done.stdout, done.stderr, path.read_text()) == ("5\n", "", found)


@pytest.mark.parametrize(
    ("mode", "error"), [("eio", errno.EIO), ("enospc", errno.ENOSPC)]
)
def test_an_error_is_returned_once_by_each_call_in_turn(
    server: ForkServer, tmp_path: Path, mode: Mode, error: int
) -> None:
    def make(number: int) -> Job:
        folder = tmp_path / str(number)
        folder.mkdir()
        fault = Fault(str(folder), number, mode, str(tmp_path / f"log{number}"))
        return Job(f"{WRITERS}:use_every_call", (str(folder),), fault)

    names: list[str] = []
    for number, _, outcome in sweep(server, make):
        assert (outcome.status, outcome.faults) == ("raised", 1)
        assert f"[Errno {error}] {os.strerror(error)}" in outcome.message
        names.append(read_calls(tmp_path / f"log{number}")[number - 1].name)
    removals = {"unlink", "rmdir"}
    assert len(names) == (32 if mode == "eio" else 28)
    assert (not removals & set(names)) == (mode == "enospc")


def test_a_full_disk_stays_full_but_lets_files_go(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    source = (
        f"os.chdir({str(tmp_path)!r})\n"
        "for call in (os.mkdir, os.unlink, os.mkdir):\n"
        "    try: call('x')\n"
        "    except OSError as error: print(error.errno)"
    )
    done = run_with_fault(python(source), tmp_path, at=1, mode="full")
    assert done.stdout.split() == [str(errno.ENOSPC)] * 2
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_does_not_sync_says_that_it_did(tmp_path: Path) -> None:
    path = tmp_path / "x"
    done = run_with_fault(
        python(f"replace({str(path)!r}, 'new')"), tmp_path, at=0, mode="nosync"
    )
    assert (done.returncode, path.read_text()) == (0, "new")


def test_an_unknown_mode_aborts(tmp_path: Path) -> None:
    done = run_with_fault(python("None"), tmp_path, at=1, mode="typo")  # pyright: ignore[reportArgumentType]
    assert done.returncode == -6
