"""Small disks, for what must not happen when they are full."""

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests._harness.mounts import mount, unmounting


@contextmanager
def small_disk(folder: Path, size: str) -> Generator[None]:
    """Put a disk of that size in the place of a folder that does not exist yet."""
    folder.mkdir()
    with unmounting(folder):
        mount("none", folder, filesystem="tmpfs", options=f"size={size}")
        yield


def fill_up(folder: Path) -> None:
    """Leave no byte free on the disk of a folder."""
    ballast = os.open(folder / "ballast", os.O_CREAT | os.O_WRONLY)
    try:
        with suppress(OSError):
            while True:
                os.write(ballast, bytes(4096))
    finally:
        os.close(ballast)
