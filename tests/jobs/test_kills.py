"""A process that is killed or stopped in a save tears nothing, and is named."""

from pathlib import Path

import pytest

from tests._harness.jobs import JobServer
from tests.jobs._kills import How, strike_saves


@pytest.mark.campaign
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_struck_process_tears_nothing_and_is_named(
    server: JobServer, folder: Path, how: How
) -> None:
    figures = strike_saves(server, folder, how, instants=2)
    assert figures.complaints == ()
    assert figures.ends.keys() <= {
        *("BarrierTimeout", "CommitUnknown", "aborted", "returned")
    }


@pytest.mark.parametrize(
    ("saver", "complaint"),
    [
        ("save_seed_record_first", "Damaged"),
        ("save_seed_and_ignore_errors", "nothing is committed"),
        ("save_seed_after_a_collective", "hung"),
    ],
)
def test_unsafe_saves_are_caught(
    server: JobServer, folder: Path, saver: str, complaint: str
) -> None:
    figures = strike_saves(
        server, folder, "kill", instants=1, victims=(1,), saver=saver
    )
    assert any(complaint in found for found in figures.complaints)
