"""Files below a folder that is held open: the system calls, and what they lack where.

A place (`Place`) is an open folder's descriptor, so that what happens in it cannot be
led astray by a link put in its way; on Windows, which has no such calls, it is a path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import TypeAlias

from ._store import Buffer, view_bytes

if sys.platform != "win32":
    import fcntl

Place: TypeAlias = "int | str"

_COMMON = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_ROOT = os.O_RDONLY | _COMMON | getattr(os, "O_DIRECTORY", 0)
_FOLDER = _ROOT | _NOFOLLOW
# O_NONBLOCK: opening a FIFO that nobody writes to must not hang.
_READ = os.O_RDONLY | _COMMON | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0)
_WRITE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | _COMMON | _NOFOLLOW

_HAS_PLACES = os.open in os.supports_dir_fd
_MAX_BUFFERS = 1024
_MAX_DEPTH = 256
_LOCK_SECONDS = 60.0

_NO_FSYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
_NO_LINK = {
    errno.EPERM,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.EMLINK,
    errno.ENOSYS,
}
# NFS has no flock on a folder (EBADF); other network file systems say the others.
_NO_LOCK = _NO_FSYNC | {errno.EBADF, errno.ENOLCK, errno.ENOSYS}


def enter(root: str, parts: Sequence[str]) -> Place:
    """Open the folder that lies `parts` below `root`, following no link below root."""
    if not _HAS_PLACES:
        path = root
        for part in parts:
            path = os.path.join(path, part)
            refuse_non_folder(root, os.path.relpath(path, root))
        return path
    fd = os.open(root, _ROOT)
    for part in parts:
        try:
            below = os.open(part, _FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def is_in_memory(path: str) -> bool:
    """Tell whether a folder lies on a tmpfs, where an fsync has nothing to wait for."""
    if sys.platform != "linux":
        return False
    try:
        return _is_tmpfs(os.stat(path).st_dev)
    except OSError:
        return False


@lru_cache(maxsize=64)
def _is_tmpfs(device: int) -> bool:
    number = f" {os.major(device)}:{os.minor(device)} "
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
        return any(number in line and " - tmpfs " in line for line in lines)


@contextlib.contextmanager
def entered(root: str, parts: Sequence[str]) -> Generator[Place]:
    """Hold a folder open, as `enter` opens it."""
    at = enter(root, parts)
    try:
        yield at
    finally:
        leave(at)


def leave(at: Place) -> None:
    """Close a place."""
    if isinstance(at, int):
        os.close(at)


def open_file(at: Place, leaf: str) -> tuple[int, int]:
    """Open a regular file for reading and return its descriptor and size.

    A link is refused with ELOOP, anything else that is no regular file with ENXIO.
    """
    if not _NOFOLLOW and (status := find(at, leaf)) and is_link(status):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    fd = os.open(_path(at, leaf), _READ, dir_fd=_fd(at))
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise OSError(errno.ENXIO, "not a regular file")
    return fd, status.st_size


def make_file(at: Place, leaf: str) -> int:
    """Create a file for writing; FileExistsError when the name is taken."""
    return os.open(_path(at, leaf), _WRITE, 0o666, dir_fd=_fd(at))


def make_folder(at: Place, leaf: str) -> None:
    """Make a folder unless it is there; a link or file of that name is refused."""
    try:
        os.mkdir(_path(at, leaf), dir_fd=_fd(at))
    except FileExistsError:
        refuse_non_folder(at, leaf)


def write_file(at: Place, leaf: str, data: bytes, *, durable: bool) -> None:
    """Create a whole small file; when that fails, nothing of it is left."""
    fd = make_file(at, leaf)
    try:
        try:
            write_all(fd, [data], offset=0)
            if durable:
                sync_file(fd)
        finally:
            os.close(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            unlink(at, leaf)
        raise


def write_all(fd: int, buffers: Sequence[Buffer], *, offset: int) -> int:
    """Write all buffers, however short the single writes are; return where they end."""
    views = [view for buffer in buffers if len(view := view_bytes(buffer))]
    views.reverse()
    while views:
        if sys.platform != "win32":
            done = os.pwritev(fd, views[: -_MAX_BUFFERS - 1 : -1], offset)
        else:
            done = os.write(fd, views[-1])
        if not done:
            raise OSError(errno.EIO, "the file took no bytes")
        offset += done
        while views and done >= len(views[-1]):
            done -= len(views.pop())
        if done:
            views[-1] = views[-1][done:]
    return offset


def link(at: Place, source: str, target: str) -> None:
    """Give a file a second name; FileExistsError when that is taken."""
    os.link(
        _path(at, source),
        _path(at, target),
        src_dir_fd=_fd(at),
        dst_dir_fd=_fd(at),
        follow_symlinks=False,
    )


def link_or_write(
    at: Place, source: str, target: str, data: bytes, *, durable: bool
) -> bool:
    """Give a file that holds `data` a second name; False when that is taken."""
    try:
        link(at, source, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        # FAT and some FUSE file systems: still create-only, but a kill during the
        # write leaves a part of the data, which the reader's checksum must catch.
        try:
            write_file(at, target, data, durable=durable)
        except FileExistsError:
            return False
    return True


def rename(at: Place, source: str, target: str) -> None:
    """Rename a file over another."""
    os.replace(
        _path(at, source), _path(at, target), src_dir_fd=_fd(at), dst_dir_fd=_fd(at)
    )


def unlink(at: Place, leaf: str) -> None:
    """Remove a file's or a link's name."""
    os.unlink(_path(at, leaf), dir_fd=_fd(at))


def find(at: Place, leaf: str) -> os.stat_result | None:
    """Return what a name stands for, itself and not what it links to."""
    try:
        return os.stat(_path(at, leaf), dir_fd=_fd(at), follow_symlinks=False)
    except FileNotFoundError:
        return None


def is_link(status: os.stat_result) -> bool:
    """Tell whether a name stands for another place."""
    # A junction is no symlink to Python, and leads elsewhere all the same.
    reparse = getattr(status, "st_file_attributes", 0) & 0x400
    return stat.S_ISLNK(status.st_mode) or bool(reparse)


def refuse_non_folder(at: Place, leaf: str) -> None:
    """Raise ELOOP for a link and ENOTDIR for anything else that is no folder."""
    status = os.stat(_path(at, leaf), dir_fd=_fd(at), follow_symlinks=False)
    if is_link(status):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))


def remove_folder(at: Place, leaf: str, *, depth: int = 0) -> int:
    """Remove a folder and all below it, following no link; return the bytes freed."""
    freed = 0
    below = _enter_one(at, leaf, depth=depth)
    try:
        with os.scandir(below) as entries:
            found = list(entries)
        for entry in found:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    freed += remove_folder(below, entry.name, depth=depth + 1)
                    continue
                status = entry.stat(follow_symlinks=False)
                unlink(below, entry.name)
                if status.st_nlink == 1:
                    freed += status.st_size
    finally:
        leave(below)
    os.rmdir(_path(at, leaf), dir_fd=_fd(at))
    return freed


def list_files(at: Place, prefix: str, found: list[str], *, depth: int = 0) -> None:
    """Add to `found` all names below a place that are not folders, links unfollowed."""
    with os.scandir(at) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                found.append(prefix + entry.name)
                continue
            with contextlib.suppress(FileNotFoundError):
                below = _enter_one(at, entry.name, depth=depth)
                try:
                    list_files(below, f"{prefix}{entry.name}/", found, depth=depth + 1)
                finally:
                    leave(below)


def sync_file(fd: int) -> None:
    """Make a file's bytes durable."""
    if sys.platform == "darwin":
        # macOS's fsync stops at the drive's cache.
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _NO_FSYNC:
                raise
        else:
            return
    os.fsync(fd)


def sync_folder(at: Place) -> None:
    """Make a folder's entries durable, where the file system knows such a thing."""
    if isinstance(at, int):
        try:
            os.fsync(at)
        except OSError as error:
            # Some network and FUSE file systems have no fsync of folders. Nothing
            # else is forgiven: EIO here means that the entry may be lost.
            if error.errno not in _NO_FSYNC:
                raise


@contextlib.contextmanager
def lock_folder(at: Place) -> Generator[bool]:
    """Hold a folder's lock against other writers; False where there are no locks."""
    locked = _lock(at)
    try:
        yield locked
    finally:
        # Closing would do only while no forked child holds a copy of the descriptor.
        if sys.platform != "win32" and locked and isinstance(at, int):
            fcntl.flock(at, fcntl.LOCK_UN)


def lock_file(fd: int) -> bool:
    """Lock an open file; False while another process has it locked."""
    if sys.platform != "win32":
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCK:
                raise
    return True


def _lock(at: Place) -> bool:
    if sys.platform == "win32" or isinstance(at, str):
        return False
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(at, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    errno.ETIMEDOUT,
                    f"another process has locked the folder for {_LOCK_SECONDS:.0f} s",
                ) from None
            time.sleep(0.005)
        except OSError as error:
            if error.errno in _NO_LOCK:
                return False
            raise
        else:
            return True


def _enter_one(at: Place, leaf: str, *, depth: int) -> Place:
    if depth >= _MAX_DEPTH:
        raise OSError(errno.ELOOP, f"folders nested more than {_MAX_DEPTH} deep")
    if isinstance(at, str):
        refuse_non_folder(at, leaf)
        return os.path.join(at, leaf)
    return os.open(leaf, _FOLDER, dir_fd=at)


def _path(at: Place, leaf: str) -> str:
    return os.path.join(at, leaf) if isinstance(at, str) else leaf


def _fd(at: Place) -> int | None:
    return None if isinstance(at, str) else at
