"""A trainer killed in a drain: the next process does the rest, and only that."""

from pathlib import Path

import pytest

from tests._harness.jobs import JobServer
from tests._harness.servers import KINDS, Cloud, Kind
from tests.stores._drains import Instant, strike, strike_drains

BEFORE_MANIFEST = Instant(write=16)
"""When all else of the first step has come to the mirror."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_drain_is_finished_and_sends_nothing_again(
    kind: Kind, job_server: JobServer, clouds: dict[Kind, Cloud], folder: Path
) -> None:
    found = strike_drains(job_server, clouds[kind], folder, instants=2, seed=1)
    assert (found.complaints, found.again) == ((), 0)
    assert found.left["steps"] > 0


def test_a_killed_copy_is_finished_and_sends_nothing_again(
    job_server: JobServer, clouds: dict[Kind, Cloud], folder: Path
) -> None:
    found = strike(
        *(job_server, clouds["gs"], folder / "0", BEFORE_MANIFEST),
        trainer="copy_run",
        finish="copy",
    )
    assert found.complaints == ()
    assert found.left["objects of a step that was under way"] == 14


def test_a_drain_that_starts_over_is_found_out(
    job_server: JobServer, clouds: dict[Kind, Cloud], folder: Path
) -> None:
    found = strike(
        *(job_server, clouds["gs"], folder / "0", BEFORE_MANIFEST), finish="start over"
    )
    assert found.again == 14
    assert len(found.complaints) == 1
    assert "sent again" in found.complaints[0]


@pytest.mark.parametrize("trainer", ["train_without_notes", "train_and_move"])
def test_a_trainer_that_may_lose_a_step_is_found_out(
    trainer: str, job_server: JobServer, clouds: dict[Kind, Cloud], folder: Path
) -> None:
    found = strike(
        *(job_server, clouds["gs"], folder / "0", BEFORE_MANIFEST), trainer=trainer
    )
    assert len(found.complaints) == 1
    assert "the mirror lacks [1]" in found.complaints[0]
