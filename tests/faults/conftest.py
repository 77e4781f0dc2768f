"""The warm process of writers, and folders in memory."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests._harness.forkserver import ForkServer
from tests.faults._sweeps import MODULES


@pytest.fixture(scope="package")
def server() -> Iterator[ForkServer]:
    with ForkServer(*MODULES, devices=2) as started:
        yield started


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory that any user may enter."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        Path(path).chmod(0o755)
        yield Path(path)
