"""Races of processes for one step of a run in an object store."""

from collections import Counter
from pathlib import Path

from tests._harness.forkserver import ForkServer, Job
from tests._harness.servers import Cloud, Rule
from tests.faults._races import Figures
from tests.faults._sweeps import MODULES as FAULT_MODULES, end_of
from tests.stores._places import cloud_place
from tests.stores._runs import find_complaint
from tests.stores._strikes import REQUESTS

JOBS = "tests.stores._jobs"
MODULES = (*FAULT_MODULES, JOBS)

WRITERS = 8

_METHOD, _PATH = REQUESTS["record"]
LOST_RECORDS = Rule("lost", method=_METHOD, path=_PATH, count=4)
"""The answers to the first records of a round, the winner's among them."""


def race_for_a_step(
    server: ForkServer, cloud: Cloud, folder: Path, *, rounds: int, saver: str = "save"
) -> Figures:
    """Let writers save one step at the same time: one commits, the others are told.

    In every other round answers to the first records are lost.
    """
    ends: Counter[str] = Counter()
    complaints: list[str] = []
    for turn in range(rounds):
        place, meeting = cloud_place(cloud), folder / f"{cloud.kind}-{saver}-{turn}"
        meeting.mkdir()
        if turn % 2:
            cloud.break_with(LOST_RECORDS)
        outcomes = server.run(
            *(
                Job(
                    f"{JOBS}:save_when_all_are_ready",
                    (saver, place.url, 1, seed, str(meeting), WRITERS),
                    timeout=120,
                )
                for seed in range(WRITERS)
            )
        )
        cloud.break_with()
        lost = sum(request.fault == "lost" for request in cloud.take_log())
        found = [end_of(outcome) for outcome in outcomes]
        ends.update(found)
        winners = [n for n, end in enumerate(found) if end == "returned"]
        if Counter(found) != {"returned": 1, "StepExists": WRITERS - 1}:
            complaints.append(f"{cloud.kind}, round {turn}: {found}")
        elif bool(lost) != bool(turn % 2):
            complaints.append(f"{cloud.kind}, round {turn}: {lost} answers were lost")
        elif complaint := find_complaint(place, [{1: winners[0]}], "returned"):
            complaints.append(f"{cloud.kind}, round {turn}: {complaint}")
    return Figures(ends, tuple(complaints))
