"""A training that is killed and stopped at random goes on as if nothing happened."""

from pathlib import Path

import pytest

from tests._harness.jobs import JobServer
from tests.resume._soak import soak

pytestmark = pytest.mark.campaign


def test_a_training_that_is_struck_becomes_what_it_would_have(
    server: JobServer, folder: Path
) -> None:
    found = soak(server, folder, strikes=5, seed=1)
    assert found.complaints == (), found


def test_a_training_that_forgets_its_position_is_found_out(
    server: JobServer, folder: Path
) -> None:
    found = soak(server, folder, strikes=2, seed=1, forgets=True)
    assert any("the final state is not" in line for line in found.complaints), found
