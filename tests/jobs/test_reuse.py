"""Processes of a job reuse what any process wrote; of a save and a prune, both hold."""

from collections.abc import Callable
from pathlib import Path

import pytest

import ckpt
from tests._harness.jobs import JobServer, Setup
from tests.faults._reuse import drop, save
from tests.jobs._matrix import WORK, find_failed
from tests.jobs._reuse import STOPPED, STOPS, stop_beside


def test_jobs_reuse_what_any_process_wrote(server: JobServer, folder: Path) -> None:
    run = folder / "run"
    frozen = (1024 + 512) * 4096
    sizes: list[int] = []
    for shape, steps in ((Setup(2, devices=2), (1, 2)), (Setup(4), (3, 4))):
        with server.start(shape) as job:
            for step in steps:
                saved = job.run(f"{WORK}:save_frozen", str(run), step)
                assert find_failed(f"save {step}", saved) == []
                written = (f for f in run.glob(f"{step}-*/**/*") if f.is_file())
                sizes.append(sum(file.stat().st_size for file in written))
    assert sizes[0] > frozen + (4 << 20)
    # What is each process's own is equal too, but for that of two more.
    assert [size < (4 << 20) + (1 << 20) for size in sizes[1:]] == [True, False, True]
    assert sizes[2] < (4 << 20) + (5 << 20)
    reused = ckpt.open(run).manifest.reused
    assert reused is not None
    assert len(reused.directories) == 2
    assert sum(reused.objects) == 4 + 2 + 4
    ckpt.prune(run, drop=[1, 3])
    for step in (2, 4):
        assert ckpt.verify(run, step=step), str(ckpt.verify(run, step=step))
        assert ckpt.verify(run, step=step).orphans == ()
    with server.start(Setup(2)) as job:
        for step in (2, 4):
            found = job.run(f"{WORK}:restore_frozen", str(run), step)
            assert [answer.value for answer in found] == [[], []]


@pytest.mark.campaign
@pytest.mark.parametrize(("stopped", "beside"), STOPS.values(), ids=STOPS)
def test_one_may_stop_at_any_call_while_the_other_works(
    server: JobServer,
    folder: Path,
    stopped: tuple[str, list[object]],
    beside: Callable[[str], object],
) -> None:
    figures = stop_beside(
        server, folder, stopped=stopped, beside=beside, legal=STOPPED, stride=17
    )
    assert figures.complaints == ()
    assert figures.ends["returned"] > 1


def test_a_save_that_nobody_sees_is_found_out(server: JobServer, folder: Path) -> None:
    figures = stop_beside(
        server,
        folder,
        stopped=("save_unnoted", [2]),
        beside=lambda run: drop(run, [1]),
        legal=[{2: 2}],
        first=20,
        stride=2,
    )
    assert any("gone" in c or "Damaged" in c for c in figures.complaints)


def test_a_prune_that_looks_too_early_is_found_out(
    server: JobServer, folder: Path
) -> None:
    figures = stop_beside(
        server,
        folder,
        stopped=("drop_as_seen_before", [[1]]),
        beside=lambda run: save(run, 2),
        legal=[{2: 2}],
        stride=20,
    )
    assert any("Damaged" in complaint for complaint in figures.complaints)
