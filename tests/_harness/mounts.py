"""Mount the image of a file system through a loop device, and leave none behind."""

import ctypes
import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOOP_CTL_GET_FREE = 0x4C82
LOOP_CONFIGURE = 0x4C0A
LO_FLAGS_AUTOCLEAR = 4
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def mounted(image: Path, target: Path, *, filesystem: str) -> Iterator[Path]:
    """Mount an image for the time of a `with`; OSError where it does not mount."""
    with unmounting(target):
        device, descriptor = attach_loop(image)
        try:
            mount(device, target, filesystem=filesystem)
        finally:
            # A loop device of this kind goes away with the last who has it open.
            os.close(descriptor)
        yield target


@contextmanager
def unmounting(target: Path) -> Iterator[None]:
    """Unmount at the end what was mounted within, if anything was.

    The kernel is asked, since a signal can raise just after a mount was made.
    """
    try:
        yield
    finally:
        if is_mounted(target):
            unmount(target)


def is_mounted(target: Path) -> bool:
    """Whether something is mounted there, be it a FUSE whose server is dead."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return any(
        line.split(" ")[1].replace("\\040", " ") == str(target) for line in lines
    )


def attach_loop(image: Path) -> tuple[str, int]:
    """Give an image a loop device that is freed when it is closed and not mounted."""
    control = os.open("/dev/loop-control", os.O_RDWR)
    backing = os.open(image, os.O_RDWR)
    # struct loop_config: the file, the block size, and a struct loop_info64 within.
    config = struct.pack("<II52xI176x64x", backing, 0, LO_FLAGS_AUTOCLEAR)
    try:
        while True:
            device = f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}"
            loop = os.open(device, os.O_RDWR)
            try:
                fcntl.ioctl(loop, LOOP_CONFIGURE, config)
            except OSError as error:
                os.close(loop)
                if error.errno != errno.EBUSY:  # else another process was faster
                    raise
            else:
                return device, loop
    finally:
        os.close(backing)
        os.close(control)


def mount(
    source: str | Path, target: Path, *, filesystem: str, options: str = ""
) -> None:
    """Mount; OSError says why not."""
    names = os.fsencode(source), bytes(target), filesystem.encode()
    _call("mount", *names, 0, options.encode())


def unmount(target: Path, *, patience: float = 5.0) -> None:
    """Unmount, wait while the mount is busy, and detach it before giving up."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return _call("umount2", bytes(target), 0)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            if time.monotonic() > deadline:
                _call("umount2", bytes(target), MNT_DETACH)
                raise
        time.sleep(0.01)


def sync_filesystem(folder: Path) -> None:
    """Make all of the file system of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _call("syncfs", descriptor)
    finally:
        os.close(descriptor)


def _call(function: str, *arguments: bytes | int) -> None:
    if getattr(_libc, function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{function}{arguments}: {os.strerror(number)}")
