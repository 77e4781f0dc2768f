"""A disk of one file that logs every write and flush that reaches it.

A file system mounted on it through a loop device sends its writes here, and a flush
where it wants all that was written to be durable. The kernel's FUSE protocol is spoken
directly, by a process of its own: `python -m tests._harness.blocklog FD BACKING LOG`.
"""

import errno
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from tests._harness.mounts import mount, unmounting

ROOT = Path(__file__).parents[2]
RECORD = struct.Struct("<BQQ")
WRITE, FLUSH = 1, 2


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes that were sent to the disk; durable only after the next flush."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Flush:
    """Every write before it is durable."""


def read_log(log: bytes) -> Iterator[tuple[int, Write | Flush]]:
    """Read the whole records of a log, each with the length of the log behind it."""
    position = 0
    while position + RECORD.size <= len(log):
        kind, offset, length = RECORD.unpack_from(log, position)
        start, position = position + RECORD.size, position + RECORD.size + length
        if position > len(log):
            return
        yield position, Flush() if kind == FLUSH else Write(offset, log[start:position])


@contextmanager
def logged_disk(backing: Path, log: Path, mountpoint: Path) -> Iterator[Path]:
    """Serve a backing file as a disk that logs; yields the path of the disk."""
    with ExitStack() as ending, unmounting(mountpoint):
        connection = os.open("/dev/fuse", os.O_RDWR)
        try:
            options = f"fd={connection},rootmode=40000,user_id=0,group_id=0"
            mount("blocklog", mountpoint, filesystem="fuse", options=options)
            argv = [sys.executable, "-m", "tests._harness.blocklog"]
            server = subprocess.Popen(
                [*argv, str(connection), backing, log],
                cwd=ROOT,
                pass_fds=[connection],
                stdin=subprocess.DEVNULL,
            )
            ending.callback(_end, server)
        finally:
            # With the server as its only holder, its death fails requests, hangs none.
            os.close(connection)
        yield mountpoint / "disk"


def _end(server: subprocess.Popen[bytes]) -> None:
    """Wait for a server, which ends when it is unmounted."""
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


class Opcode(IntEnum):
    """The requests of FUSE that a disk of one file is asked."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    OPEN = 14
    READ = 15
    WRITE = 16
    RELEASE = 18
    FSYNC = 20
    INIT = 26
    BATCH_FORGET = 42


REQUEST = struct.Struct("<IIQQIIII")
REPLY = struct.Struct("<IiQ")
SPAN = struct.Struct("<QQIIQII")
DISK_NODE = 2
LONGEST = 1 << 20
FOREVER = 1 << 30


class Disk:
    """Answers the requests of the kernel with the body of the reply, or OSError."""

    def __init__(self, backing: str, log: str) -> None:
        self._backing = os.open(backing, os.O_RDWR)
        self._log = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def answer(self, opcode: int, *, node: int, body: memoryview) -> bytes:
        match opcode:
            case Opcode.INIT:
                return self._negotiate()
            case Opcode.LOOKUP:
                if bytes(body) != b"disk\0":
                    raise OSError(errno.ENOENT, "lookup")
                entry = struct.pack("<QQQQII", DISK_NODE, 0, FOREVER, FOREVER, 0, 0)
                return entry + self._attributes(DISK_NODE)
            case Opcode.GETATTR:
                return struct.pack("<QII", FOREVER, 0, 0) + self._attributes(node)
            case Opcode.OPEN:
                return struct.pack("<QII", 0, 0, 0)
            case Opcode.READ:
                _, offset, length, *_ = SPAN.unpack_from(body)
                return os.pread(self._backing, length, offset)
            case Opcode.WRITE:
                _, offset, length, *_ = SPAN.unpack_from(body)
                data = body[SPAN.size : SPAN.size + length]
                os.writev(self._log, [RECORD.pack(WRITE, offset, length), data])
                os.pwrite(self._backing, data, offset)
                return struct.pack("<II", length, 0)
            case Opcode.FSYNC:
                os.write(self._log, RECORD.pack(FLUSH, 0, 0))
                return b""
            case Opcode.RELEASE:
                return b""
            case _:
                raise OSError(errno.ENOSYS, f"request {opcode}")

    def _negotiate(self) -> bytes:
        """Speak version 7.31, with long writes and no cache of writes."""
        big_writes, max_pages = 1 << 5, 1 << 22
        version = struct.pack("<IIII", 7, 31, LONGEST, big_writes | max_pages)
        limits = struct.pack("<HHIIHH", 16, 12, LONGEST, 1, LONGEST // 4096, 0)
        return (version + limits).ljust(64, b"\0")

    def _attributes(self, node: int) -> bytes:
        mode, links, size = stat.S_IFDIR | 0o700, 2, 0
        if node == DISK_NODE:
            size = os.fstat(self._backing).st_size
            mode, links = stat.S_IFREG | 0o600, 1
        return struct.pack("<QQ44xII20x", node, size, mode, links)


def main(connection: int, backing: str, log: str) -> None:
    """Serve until unmounted; one request at a time, so that the log has an order."""
    disk = Disk(backing, log)
    buffer = memoryview(bytearray(LONGEST + (1 << 16)))
    while True:
        try:
            length = os.readv(connection, [buffer])
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.EINTR, errno.ENOENT):
                continue
            raise
        _, opcode, unique, node, *_ = REQUEST.unpack_from(buffer)
        if opcode in (Opcode.FORGET, Opcode.BATCH_FORGET):
            continue
        try:
            body = disk.answer(opcode, node=node, body=buffer[REQUEST.size : length])
            head = REPLY.pack(REPLY.size + len(body), 0, unique)
        except OSError as error:
            number = error.errno or errno.EIO
            body, head = b"", REPLY.pack(REPLY.size, -number, unique)
        os.writev(connection, [head, body])


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
