"""The warm process of training jobs."""

from collections.abc import Iterator

import pytest

from tests._harness.jobs import JobServer


@pytest.fixture(scope="package")
def server() -> Iterator[JobServer]:
    with JobServer("ckpt", "ckpt.resume", "tests.resume._loops") as started:
        yield started
