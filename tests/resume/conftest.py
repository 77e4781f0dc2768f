"""The warm process of training jobs."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests._harness.jobs import JobServer


@pytest.fixture(scope="package")
def server() -> Iterator[JobServer]:
    with JobServer(
        "ckpt", "ckpt.resume", "tests.resume._loops", "tests.resume._train"
    ) as started:
        yield started


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="resume-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture(scope="package")
def cache() -> Iterator[Path]:
    """Where compiled steps are kept, so that each is compiled once."""
    with tempfile.TemporaryDirectory(prefix="resume-cache-", dir="/dev/shm") as path:
        yield Path(path)
