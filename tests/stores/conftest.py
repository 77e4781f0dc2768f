"""A run in a store of each kind, and the warm processes of writers and of jobs."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests._harness.forkserver import ForkServer
from tests._harness.jobs import JobServer
from tests._harness.servers import Cloud, Kind
from tests.jobs._matrix import MODULES as JOB_MODULES
from tests.stores._places import KINDS, Place, new_place
from tests.stores._races import MODULES


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stores-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture(params=KINDS)
def place(
    request: pytest.FixtureRequest, clouds: dict[Kind, Cloud], folder: Path
) -> Place:
    """A run that does not exist yet, in a store of each kind."""
    return new_place(request.param, clouds, folder)


@pytest.fixture(scope="package")
def server(clouds: dict[Kind, Cloud]) -> Iterator[ForkServer]:
    """A process that forks writers; it has the environment of the clouds."""
    with ForkServer(*MODULES, devices=2) as started:
        yield started


@pytest.fixture(scope="package")
def job_server(clouds: dict[Kind, Cloud]) -> Iterator[JobServer]:
    """A process that forks members of jobs; it has the environment of the clouds."""
    with JobServer(*JOB_MODULES) as started:
        yield started
