"""Cut the power at any point of what a writer did, and look at what is left.

`record` runs a writer on a file system whose disk logs its writes and flushes. A disk
that loses power has every write up to its last flush, and any of the later ones, in
any order and in pieces of a page. `replay` builds such disks, mounts each, and has it
checked against what the writer had acknowledged by then:

* at every flush, acknowledgement, and the end: none and all of the later writes lost;
* before every flush and at every acknowledgement and the end: random ones lost.
"""

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests._harness.blocklog import Flush, Write, logged_disk, read_log
from tests._harness.mounts import mounted, sync_filesystem

PAGE = 4096
MEBI = 1 << 20

MAKE = {
    "ext4": (64 * MEBI, ["mkfs.ext4", "-q", "-F", "-b", "4096"]),
    "xfs": (300 * MEBI, ["mkfs.xfs", "-q"]),
}

Work = Callable[[Path, Callable[[str], None]], object]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The writer said that what it calls `label` is durable."""

    label: str


@dataclass(frozen=True, slots=True)
class Recording:
    """A disk as it was when the writer began, and what reached it since, in order."""

    filesystem: str
    base: Path
    events: tuple[Write | Flush | Acknowledged, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A power cut before `event`: the writes that stay, and what was acknowledged."""

    event: int
    durable: tuple[Write, ...]
    kept: tuple[Write, ...]
    lost: int
    acknowledged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A complaint about what one power cut left."""

    cut: Cut
    complaint: str


@dataclass(frozen=True, slots=True)
class Report:
    """How many power cuts were looked at, and those that left too little."""

    images: int
    failures: tuple[Failure, ...]


def record(work: Work, folder: Path, *, filesystem: str = "ext4") -> Recording:
    """Run `work(mountpoint, acknowledge)` on a fresh file system and record its disk.

    `folder` is an empty one for images, best in memory. `work` calls `acknowledge`
    with a label when what it promises for this label holds.
    """
    size, make = MAKE[filesystem]
    disk, log, base = folder / "disk", folder / "log", folder / "base"
    fuse, target = folder / "fuse", folder / "mount"
    fuse.mkdir()
    target.mkdir()
    with disk.open("wb") as file:
        file.truncate(size)
    subprocess.run([*make, disk], check=True, stdin=subprocess.DEVNULL)
    # The zeros of a new journal would be copied for every power cut.
    subprocess.run(["fallocate", "--dig-holes", disk], check=True)
    marks: list[tuple[int, str]] = []
    with ExitStack() as stack:
        device = stack.enter_context(logged_disk(disk, log, fuse))
        stack.enter_context(mounted(device, target, filesystem=filesystem))
        sync_filesystem(target)
        copy_sparse(disk, base)
        start = log.stat().st_size
        work(target, lambda label: marks.append((log.stat().st_size, label)))
        # What unmounting will make durable, the writer did not.
        written = log.read_bytes()
    events: list[Write | Flush | Acknowledged] = []
    for position, event in read_log(written):
        if position > start:
            while marks and marks[0][0] < position:
                events.append(Acknowledged(marks.pop(0)[1]))
            events.append(event)
    events += [Acknowledged(label) for _, label in marks]
    return Recording(filesystem, base, tuple(events))


def plan_cuts(
    events: tuple[Write | Flush | Acknowledged, ...], *, subsets: int, seed: int
) -> Iterator[Cut]:
    """Yield the power cuts; `durable` holds what became so since the cut before."""
    generator = random.Random(seed)
    durable: list[Write] = []
    pending: list[Write] = []
    labels: tuple[str, ...] = ()

    def cut(event: int, kept: list[Write]) -> Cut:
        fresh, durable[:] = tuple(durable), []
        return Cut(event, fresh, tuple(kept), len(pending) - len(kept), labels)

    def cuts(event: int) -> Iterator[Cut]:
        yield cut(event, [])
        if pending:
            yield cut(event, pending)
        for _ in range(subsets if len(pending) > 1 else 0):
            yield cut(event, choose(pending, generator))

    for number, event in enumerate(events):
        match event:
            case Write():
                pending += split(event)
            case Flush():
                if pending:
                    yield from cuts(number)
                durable += pending
                pending = []
            case Acknowledged():
                labels = (*labels, event.label)
                yield from cuts(number + 1)
    yield from cuts(len(events))


def split(write: Write) -> Iterator[Write]:
    """Cut a write at the pages of the disk: a disk promises no more of it at once."""
    position = 0
    while position < len(write.data):
        offset = write.offset + position
        length = PAGE - offset % PAGE
        yield Write(offset, write.data[position : position + length])
        position += length


def choose(pending: list[Write], generator: random.Random) -> list[Write]:
    """Keep a first part of the writes, or each one by chance, in their order."""
    if generator.random() < 0.5:
        return pending[: generator.randrange(len(pending))]
    share = generator.random()
    return [write for write in pending if generator.random() < share]


def replay(
    recording: Recording,
    check: Callable[[Path, tuple[str, ...]], str | None],
    *,
    subsets: int = 2,
    seed: int = 0,
) -> Report:
    """Check the file system that each power cut leaves.

    `check(mountpoint, acknowledged)` returns a complaint or None. It may write.
    """
    folder = recording.base.parent
    now, image, target = folder / "now", folder / "image", folder / "mount"
    copy_sparse(recording.base, now)
    failures: list[Failure] = []
    images = 0
    for cut in plan_cuts(recording.events, subsets=subsets, seed=seed):
        apply(cut.durable, now)
        copy_sparse(now, image)
        apply(cut.kept, image)
        try:
            with mounted(image, target, filesystem=recording.filesystem):
                complaint = check(target, cut.acknowledged)
        except OSError as error:
            complaint = f"{type(error).__name__}: {error}"
        images += 1
        if complaint is not None:
            failures.append(Failure(cut, complaint))
    return Report(images, tuple(failures))


def apply(writes: tuple[Write, ...], image: Path) -> None:
    """Do writes on an image."""
    descriptor = os.open(image, os.O_WRONLY)
    try:
        for write in writes:
            os.pwrite(descriptor, write.data, write.offset)
    finally:
        os.close(descriptor)


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a file and keep its holes, which make up most of a small file system."""
    reading = os.open(source, os.O_RDONLY)
    writing = os.open(target, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    try:
        size = os.fstat(reading).st_size
        os.ftruncate(writing, size)
        start = end = 0
        while end < size:
            try:
                start = os.lseek(reading, end, os.SEEK_DATA)
            except OSError:  # ENXIO: only a hole is left
                return
            end = os.lseek(reading, start, os.SEEK_HOLE)
            os.lseek(writing, start, os.SEEK_SET)
            os.lseek(reading, start, os.SEEK_SET)
            while start < end:
                start += os.sendfile(writing, reading, None, end - start)
    finally:
        os.close(reading)
        os.close(writing)
