"""A local store through failing calls, kills and power cuts: old or new, never a mix.

The routine makes every kind of change once. After any fault each of its objects is as
before or as after the change that was under way, and an error says which.
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ckpt._errors import StoreError
from ckpt._local_store import LocalStore
from tests._harness.crashpoint import Call, Mode, read_calls
from tests._harness.forkserver import Fault, ForkServer, Job, sweep
from tests._harness.powercut import record, replay

HERE = "tests.ckpt.test_store_faults"
DATA = bytes(range(256)) * 40
RECORD = "steps/1.json"
OBJECT = "1-x/parts/0"

State = tuple[bytes | None, bytes | None]
STATES: list[State] = [
    (None, None),
    (None, None),
    (DATA, None),
    (DATA, None),
    (DATA, b"first"),
    (DATA, b"second"),
    (DATA, None),
    (None, None),
]
LAST = len(STATES) - 1


def routine(store: LocalStore) -> list[Callable[[], object]]:
    def put() -> None:
        with store.write(OBJECT, size=len(DATA)) as writer:
            writer.write([DATA[:1000], DATA[1000:5000]])
            writer.write([DATA[5000:]])

    return [
        lambda: store.make_folders(["steps", "1-x/parts"]),
        put,
        lambda: store.sync_folders(["1-x/parts", "1-x"]),
        lambda: store.create(RECORD, b"first"),
        lambda: store.replace(RECORD, b"second", expected=b"first"),
        lambda: store.remove(RECORD),
        lambda: store.remove_tree("1-x"),
    ]


def run_routine(root: str) -> list[object]:
    """Return how many changes were done, and what the error of the next one says."""
    done = 0
    try:
        for change in routine(LocalStore(root)):
            change()
            done += 1
    except StoreError as error:
        return [done, error.outcome, str(error)]
    return [done, "", ""]


def run_loose(root: str) -> None:
    for change in routine(LocalStore(root, durable=False)):
        change()


def make_some_folders(root: str) -> None:
    LocalStore(root).make_folders(["steps/deep"])


def look(root: Path) -> State:
    def read(name: str) -> bytes | None:
        path = root / name
        return path.read_bytes() if path.exists() else None

    return read(OBJECT), read(RECORD)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(HERE) as started:
        yield started


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


def job_at(number: int, *, folder: Path, mode: Mode) -> Job:
    root = folder / str(number)
    fault = Fault(str(root), number, mode)
    return Job(f"{HERE}:run_routine", (str(root / "new" / "run"),), fault)


def check_leftovers(root: Path) -> None:
    """Nothing is left but the objects, folders, and one temporary name."""
    names = {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}
    assert names <= {OBJECT, RECORD, f"{RECORD}.tmp"}


def check_next_routine(root: Path) -> None:
    """A later writer that tidies up as one does finds its way."""
    store = LocalStore(str(root))
    store.remove(RECORD)
    store.remove_tree("1-x")
    for change, state in zip(routine(store), STATES[1:], strict=True):
        change()
        assert look(root) == state
    assert store.list("") == []


@pytest.mark.parametrize("mode", ["kill", "torn"])
def test_a_kill_leaves_the_old_or_the_new(
    mode: Mode, server: ForkServer, folder: Path
) -> None:
    met = 0
    for number, _, outcome in sweep(server, partial(job_at, folder=folder, mode=mode)):
        met += 1
        assert outcome.status == "killed"
        root = folder / str(number) / "new" / "run"
        data, record = look(root)
        if record is None:
            # Not committed: the data may be any part of what was to be written.
            assert DATA.startswith(data or b"")
        else:
            assert (data, record) in STATES
        check_leftovers(root)
        check_next_routine(root)
    assert met > {"kill": 30, "torn": 3}[mode]


@pytest.mark.parametrize("mode", ["eio", "enospc", "full"])
def test_an_error_says_truly_what_came_of_the_change(
    mode: Mode, server: ForkServer, folder: Path
) -> None:
    met = 0
    seen: set[str] = set()
    for number, _, outcome in sweep(server, partial(job_at, folder=folder, mode=mode)):
        met += 1
        assert outcome.status == "returned"
        done, said, text = outcome.value
        root = folder / str(number) / "new" / "run"
        seen.add(said)
        before, after = STATES[done], STATES[min(done + 1, LAST)]
        if said == "":
            # The call was one whose failure does not matter.
            assert done == LAST
            assert look(root) == STATES[LAST]
        elif said in ("failed", "full"):
            assert look(root) == before
        elif said == "unsynced":
            assert look(root) == after
        else:
            assert look(root) in (before, after)
        if said:
            assert "Expected the file system to do as asked, found: " in text
            assert f"in {root}" in text
        check_leftovers(root)
        check_next_routine(root)
    assert met > 15
    assert {"eio": {"failed", "unknown", "unsynced"}}.get(mode, {"full"}) <= seen


def test_short_writes_are_completed(server: ForkServer, folder: Path) -> None:
    met = 0
    for number, _, outcome in sweep(
        server, partial(job_at, folder=folder, mode="short")
    ):
        met += 1
        assert outcome.value == [LAST, "", ""], number
    assert met > 3


def trace(server: ForkServer, folder: Path, target: str) -> list[Call]:
    log = folder / "log"
    root = folder / "top"
    root.mkdir(exist_ok=True)
    fault = Fault(str(root), log=str(log))
    (outcome,) = server.run(
        Job(f"{HERE}:{target}", (str(root / "new" / "run"),), fault)
    )
    assert outcome.status == "returned", outcome
    return [
        Call(call.number, call.name, Path(call.path).relative_to(root).as_posix())
        for call in read_calls(log)
    ]


def parent(path: str) -> str:
    return Path(path).parent.as_posix()


def find_unsynced(calls: list[Call]) -> list[Call]:
    """Return the calls whose effect is relied on, or left, before it was synced.

    Bytes must be synced before the file gets another name and before the end; a new
    name must be before anything is made below it, and any change of names before the
    end. A temporary name need not be: it may come back or not.
    """
    unsynced: list[Call] = []
    pending: list[Call] = []
    for call in calls:
        match call.name:
            case "fsync":
                pending = [
                    p
                    for p in pending
                    if call.path != (p.path if p.name == "pwritev2" else parent(p.path))
                ]
                continue
            case "link" | "rename":
                early = [p for p in pending if p.path == call.path and p.name != "open"]
            case "mkdir" | "open":
                early = [p for p in pending if p.path == parent(call.path)]
            case _:
                early = []
        unsynced += early
        pending = [p for p in pending if p not in early]
        if call.name == "unlink" and call.path.endswith(".tmp"):
            continue
        if call.name in ("unlink", "rmdir"):
            pending = [
                p for p in pending if Path(call.path) not in Path(p.path).parents
            ]
        pending.append(call)
    return unsynced + pending


def test_every_change_is_synced_before_anything_relies_on_it(
    server: ForkServer, folder: Path
) -> None:
    assert find_unsynced(trace(server, folder, "run_routine")) == []


def test_without_fsync_the_check_of_the_order_fails(
    server: ForkServer, folder: Path
) -> None:
    names = {call.name for call in find_unsynced(trace(server, folder, "run_loose"))}
    assert names >= {"mkdir", "pwritev2", "link", "rename", "unlink", "rmdir"}


def test_folders_left_by_a_killed_writer_are_synced_too(
    server: ForkServer, folder: Path
) -> None:
    """What the next writer finds may have been made, and never synced."""
    (folder / "top" / "new" / "run" / "steps").mkdir(parents=True)
    calls = trace(server, folder, "make_some_folders")
    synced = [call.path for call in calls if call.name == "fsync"]
    assert synced == ["new", "new/run", "new/run/steps"]


def write_and_acknowledge(
    durable: bool, mountpoint: Path, acknowledge: Callable[[str], None]
) -> None:
    store = LocalStore(str(mountpoint / "new" / "run"), durable=durable)
    for number, change in enumerate(routine(store)):
        change()
        acknowledge(str(number + 1))


def check_cut(mountpoint: Path, acknowledged: tuple[str, ...]) -> str | None:
    done = int(acknowledged[-1]) if acknowledged else 0
    data, committed = look(mountpoint / "new" / "run")
    # Only the change after the last acknowledged one can have begun.
    complete = 3 <= done <= 5 or committed is not None
    if committed not in {record for _, record in STATES[done : done + 2]}:
        return f"found the record {committed} after {done}"
    if (complete and data != DATA) or (done == LAST and data is not None):
        return f"found other data after {done}"
    return None


@pytest.mark.root
def test_a_power_cut_leaves_what_was_acknowledged(folder: Path) -> None:
    report = replay(record(partial(write_and_acknowledge, True), folder), check_cut)
    assert report.images > 20
    assert report.failures == ()


@pytest.mark.root
def test_without_fsync_a_power_cut_is_seen_to_lose_it(folder: Path) -> None:
    report = replay(record(partial(write_and_acknowledge, False), folder), check_cut)
    assert report.failures
