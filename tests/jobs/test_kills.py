"""A process that is killed or stopped in a save tears nothing, and is named."""

from pathlib import Path

import pytest

from tests._harness.jobs import JobServer
from tests.jobs._kills import How, Instant, strike, strike_saves

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_struck_process_tears_nothing_and_is_named(
    server: JobServer, folder: Path, how: How
) -> None:
    figures = strike_saves(server, folder, how, instants=1)
    assert figures.complaints == ()
    assert figures.ends.keys() <= {
        *("BarrierTimeout", "CommitUnknown", "aborted", "returned")
    }


def test_a_process_killed_in_a_background_save_tears_nothing(
    server: JobServer, folder: Path
) -> None:
    figures = strike_saves(
        server, folder, "kill", instants=2, victims=(1,), saver="save_seed_async"
    )
    assert figures.complaints == ()


@pytest.mark.parametrize(
    ("saver", "complaint"),
    [
        ("save_seed_record_first", "Damaged"),
        ("save_seed_and_ignore_errors", "nothing is committed"),
    ],
)
def test_unsafe_saves_are_caught(
    server: JobServer, folder: Path, saver: str, complaint: str
) -> None:
    _, complaints = strike(
        server, folder / "run", "kill", Instant(1, call=1), saver=saver
    )
    assert any(complaint in found for found in complaints)


def test_a_save_that_waits_for_ever_is_caught(server: JobServer, folder: Path) -> None:
    saver = "save_seed_after_a_collective"
    instant = Instant(1, call=1)
    _, complaints = strike(
        server, folder / "run", "stop", instant, saver=saver, patience=4
    )
    assert any("hung" in complaint for complaint in complaints)
