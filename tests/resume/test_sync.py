"""Steps that all processes of a job agree on, while they train at their own pace."""

import pytest

from tests._harness.jobs import JobServer, Setup

LOOPS = "tests.resume._loops"


@pytest.mark.parametrize("together", [False, True], ids=["apart", "collective"])
@pytest.mark.parametrize("asker", [0, 2])
def test_all_meet_at_the_same_steps_again_and_again(
    server: JobServer, asker: int, *, together: bool
) -> None:
    with server.start(Setup(3)) as job:
        answers = job.run(f"{LOOPS}:loop_until_agreed", 3, asker, 7, together)
    found = [answer.value for answer in answers]
    assert len(found[0]) == 3, answers
    assert found[0] == found[1] == found[2]


def test_one_that_has_left_keeps_nobody_waiting(server: JobServer) -> None:
    with server.start(Setup(3)) as job:
        answers = job.run(f"{LOOPS}:loop_where_one_leaves", 2)
    found = [answer.value for answer in answers]
    assert found[0] == found[1]
    assert [why for _, why in found[0]] == ["late"]
    assert found[2] == []


def test_points_that_some_have_passed_are_found_out(server: JobServer) -> None:
    with server.start(Setup(3)) as job:
        answers = job.run(f"{LOOPS}:loop_with_points_in_the_past", 3, 2)
    found = [answer.value for answer in answers]
    assert not found[0] == found[1] == found[2]


def test_an_agreement_that_failed_is_not_asked_for_without_a_pause(
    server: JobServer,
) -> None:
    with server.start(Setup(2)) as job:
        answers = job.run(f"{LOOPS}:count_requests_after_failing", 1.0)
    # It listens five times a second.
    assert 1 <= answers[0].value <= 10
