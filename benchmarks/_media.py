"""Where checkpoints are written, and how the machine is made quiet before a part."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_DROP_CACHES = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True, slots=True)
class Medium:
    """A folder on one file system, and the quiet it needs before a timed part."""

    name: str
    folder: Path
    file_system: str
    drops_cache: bool
    pause: float


def find_medium(name: str, *, folder: Path, pause: float) -> Medium:
    """The medium over `folder`; ValueError when it isn't what `name` says."""
    file_system = find_file_system(folder)
    if name == "tmpfs":
        if file_system != "tmpfs":
            raise ValueError(f"Expected a tmpfs at {folder}, found {file_system}.")
        return Medium(name, folder, file_system, drops_cache=False, pause=0.0)
    if name == "disk":
        if file_system in ("tmpfs", "ramfs"):
            raise ValueError(f"Expected a disk at {folder}, found {file_system}.")
        allowed = os.access(_DROP_CACHES, os.W_OK)
        return Medium(name, folder, file_system, drops_cache=allowed, pause=pause)
    raise ValueError(f"Expected tmpfs or disk, found {name!r}.")


def find_file_system(folder: Path) -> str:
    """The type of the file system that holds `folder`, from the mount table."""
    place = folder.resolve()
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    mounts = {Path(fields[1]): fields[2] for fields in (x.split() for x in lines)}
    for candidate in (place, *place.parents):
        if candidate in mounts:
            return mounts[candidate]
    return "unknown"


def settle_medium(medium: Medium) -> None:
    """Writes back what is dirty, drops the page cache if allowed, and waits."""
    if medium.name != "disk":
        return
    os.sync()
    if medium.drops_cache:
        _DROP_CACHES.write_text("3", encoding="ascii")
    time.sleep(medium.pause)


def count_stored_bytes(folder: Path) -> int:
    """The sizes of all files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
