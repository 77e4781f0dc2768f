"""What one job saves, every other restores bit for bit, moving no byte in vain."""

from pathlib import Path

import pytest

from tests._harness.jobs import JobServer, Setup
from tests.jobs._matrix import WORK, run_matrix
from tests.jobs._trees import KINDS

FULL = [kind for kind in KINDS if kind != "tiny"]


@pytest.mark.campaign
def test_jobs_of_all_sizes_restore_what_others_saved(
    server: JobServer, folder: Path
) -> None:
    found = run_matrix(
        server,
        folder,
        saved_by=[(1, 1), (2, 2), (4, 1)],
        restored_by=[(2, 1), (4, 1)],
        kinds=FULL,
    )
    assert found.complaints == ()
    assert (found.saves, found.restores) == (18, 36)


def test_replicated_targets_are_read_once_over_the_job(
    server: JobServer, folder: Path
) -> None:
    found = run_matrix(
        server,
        folder,
        saved_by=[(2, 2)],
        restored_by=[(4, 1)],
        kinds=["data_model", "fsdp", "replicated", "keys"],
        ways=["replicate"],
    )
    assert found.complaints == ()
    assert found.amplification < 1.05


def test_without_broadcast_each_process_reads_for_itself(
    server: JobServer, folder: Path
) -> None:
    found = run_matrix(
        server,
        folder,
        saved_by=[(2, 1)],
        restored_by=[(2, 1)],
        kinds=["data_model", "replicated"],
        ways=["alone"],
    )
    assert found.complaints == ()
    assert found.amplification > 0.95


def test_trees_are_compared_to_the_last_bit(server: JobServer) -> None:
    kinds = ["mixed", "keys"]
    with server.start(Setup(2, devices=2)) as job:
        for answer in job.run(f"{WORK}:check_trees", kinds):
            assert answer.status == "returned", answer.output
            for kind in kinds:
                assert answer.value[kind] == []
                # What is empty has no bits.
                differing = [x for x in KINDS[kind] if x != "empty"]
                found = {x.partition(":")[0] for x in answer.value[f"{kind}, other"]}
                assert found == set(differing)
