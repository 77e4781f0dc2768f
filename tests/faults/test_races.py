"""Processes that race on one run see whole steps, and one of them wins each."""

from pathlib import Path

import pytest

from tests._harness.forkserver import ForkServer
from tests.faults._races import race_for_a_step, race_on_a_run


@pytest.mark.campaign
def test_of_writers_racing_for_a_step_exactly_one_commits(
    server: ForkServer, folder: Path
) -> None:
    figures = race_for_a_step(server, folder, rounds=5)
    assert figures.complaints == ()
    assert figures.ends == {"returned": 5, "StepExists": 25}


def test_writers_that_look_before_they_write_are_caught(
    server: ForkServer, folder: Path
) -> None:
    figures = race_for_a_step(server, folder, rounds=2, saver="save_if_absent")
    assert figures.complaints


@pytest.mark.campaign
def test_readers_and_writers_survive_a_pruner(server: ForkServer, folder: Path) -> None:
    figures = race_on_a_run(server, folder, saves=30)
    assert figures.complaints == ()
    assert figures.ends["pruned"] >= 10
    assert figures.ends["whole"] >= 10


@pytest.mark.campaign
def test_followers_see_whole_steps_beside_a_trainer_that_prunes(
    server: ForkServer, folder: Path
) -> None:
    jobs = [
        ("prune_until", (2, 24 * 3600.0)),
        ("follow_until", ()),
        ("follow_until", ()),
    ]
    figures = race_on_a_run(server, folder, saves=60, jobs=jobs)
    assert figures.complaints == ()
    # How many come to be read depends on the machine; the last one always does.
    assert figures.ends["followed"] >= 2
    assert figures.ends["gone"] >= 1


def test_followers_beside_a_pruner_that_removes_data_first_are_caught(
    server: ForkServer, folder: Path
) -> None:
    jobs = [
        ("prune_data_first_until", (1,)),
        ("follow_until", ()),
        ("follow_until", ()),
    ]
    figures = race_on_a_run(server, folder, saves=30, jobs=jobs)
    assert any("Damaged" in complaint for complaint in figures.complaints)


def test_readers_beside_a_pruner_that_removes_data_first_are_caught(
    server: ForkServer, folder: Path
) -> None:
    jobs = [("prune_data_first_until", (1,)), ("read_until", ()), ("read_until", ())]
    figures = race_on_a_run(server, folder, saves=30, jobs=jobs)
    assert any("Damaged" in complaint for complaint in figures.complaints)


def test_a_pruner_that_spares_no_live_writer_is_caught(
    server: ForkServer, folder: Path
) -> None:
    figures = race_on_a_run(server, folder, saves=30, jobs=[("prune_until", (2, 0.0))])
    assert figures.complaints
