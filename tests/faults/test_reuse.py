"""Whatever is killed when: no step is committed whose objects elsewhere are gone."""

from pathlib import Path

import pytest

from tests._harness.crashpoint import Mode
from tests._harness.forkserver import ForkServer
from tests.faults._oracle import State
from tests.faults._reuse import race, sweep_beside

SAVED: list[State] = [{1: 1, 2: 2}, {1: 1, 2: 2, 3: 3}]
PRUNED: list[State] = [{1: 1, 2: 2}, {2: 2}]
BOTH: list[State] = [*SAVED, *PRUNED, {2: 2, 3: 3}, {3: 3}]


@pytest.mark.campaign
def test_a_save_killed_at_any_call_needs_nothing_that_is_gone(
    server: ForkServer, folder: Path
) -> None:
    figures = sweep_beside(
        server, folder, killed=("save", [3]), beside=None, legal=SAVED, stride=12
    )
    assert figures.complaints == ()
    assert figures.faults > 4


@pytest.mark.campaign
def test_a_prune_killed_at_any_call_keeps_what_is_needed(
    server: ForkServer, folder: Path
) -> None:
    figures = sweep_beside(
        server, folder, killed=("prune", []), beside=None, legal=PRUNED, stride=7
    )
    assert figures.complaints == ()
    assert figures.faults > 4


@pytest.mark.campaign
@pytest.mark.parametrize("mode", ["eio", "enospc"])
@pytest.mark.parametrize(("work", "legal"), [("save", SAVED), ("prune", PRUNED)])
def test_an_error_at_any_call_loses_nothing_that_is_needed(
    server: ForkServer, folder: Path, work: str, legal: list[State], mode: Mode
) -> None:
    job, stride = ((work, [3]), 25) if work == "save" else ((work, list[object]()), 10)
    figures = sweep_beside(
        server, folder, killed=job, beside=None, legal=legal, stride=stride, mode=mode
    )
    assert figures.complaints == ()
    assert figures.faults >= 2


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("killed", "beside", "stride"),
    [(("save", [3]), ("prune", []), 14), (("prune", []), ("save", [3]), 5)],
)
def test_a_kill_beside_another_that_goes_on_loses_nothing(
    server: ForkServer,
    folder: Path,
    killed: tuple[str, list[object]],
    beside: tuple[str, list[object]],
    stride: int,
) -> None:
    figures = sweep_beside(
        server, folder, killed=killed, beside=beside, legal=BOTH, stride=stride
    )
    assert figures.complaints == ()
    assert figures.faults > 2


def test_saves_that_reuse_beside_two_prunes_lose_nothing(
    server: ForkServer, folder: Path
) -> None:
    figures = race(server, folder, saves=12)
    assert figures.complaints == ()
    assert figures.ends["reusing"] >= 1


@pytest.mark.parametrize(
    ("job", "args"), [("prune_what_others_need", []), ("save_unnoted", [3])]
)
def test_a_sweep_finds_out_what_lets_needed_objects_go(
    server: ForkServer, folder: Path, job: str, args: list[object]
) -> None:
    figures = sweep_beside(
        server, folder, killed=(job, args), beside=None, legal=BOTH, stride=40
    )
    assert any("Damaged" in complaint for complaint in figures.complaints)
