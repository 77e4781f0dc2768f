"""Of processes that race for a step of a run in a store, one commits and all know."""

from pathlib import Path

import pytest

from tests._harness.forkserver import ForkServer
from tests._harness.servers import KINDS, Cloud, Kind
from tests.stores._races import WRITERS, race_for_a_step

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize("kind", KINDS)
def test_of_writers_racing_for_a_step_exactly_one_commits(
    kind: Kind, server: ForkServer, clouds: dict[Kind, Cloud], folder: Path
) -> None:
    figures = race_for_a_step(server, clouds[kind], folder, rounds=2)
    assert figures.complaints == ()
    assert figures.ends == {"returned": 2, "StepExists": 2 * (WRITERS - 1)}


@pytest.mark.parametrize("kind", KINDS)
def test_writers_that_look_before_they_write_are_caught(
    kind: Kind, server: ForkServer, clouds: dict[Kind, Cloud], folder: Path
) -> None:
    cloud = clouds[kind]
    figures = race_for_a_step(server, cloud, folder, rounds=1, saver="save_if_absent")
    assert figures.complaints
    assert figures.ends["returned"] > 1
