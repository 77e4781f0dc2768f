"""The warm process of jobs, and folders in memory."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests._harness.jobs import JobServer
from tests.jobs._matrix import MODULES


@pytest.fixture(scope="package")
def server() -> Iterator[JobServer]:
    with JobServer(*MODULES) as started:
        yield started


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="jobs-", dir="/dev/shm") as path:
        yield Path(path)
