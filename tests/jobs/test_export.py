"""The processes of a job write one set of safetensors files of a tree they share."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import ckpt
from tests._harness.forkserver import Fault
from tests._harness.jobs import JobServer, Setup
from tests.jobs._export import NAMES, check_set, values_of

WORK = "tests.jobs._export"


@pytest.mark.parametrize(("count", "most"), [(2, 1 << 30), (3, 500_000)])
def test_all_write_one_set_that_safetensors_reads(
    server: JobServer, folder: Path, count: int, most: int
) -> None:
    out = folder / "set"
    with server.start(Setup(count, devices=2)) as job:
        options = {"max_shard_bytes": most}
        answers = job.run(f"{WORK}:export", str(out), options)
    values = [answer.value for answer in answers]
    assert all(value is not None for value in values), answers
    assert all(value["names"] == values[0]["names"] for value in values)
    assert sorted(values[0]["names"]) == sorted(os.listdir(out))
    check_set(out)
    # Each was told of its own files, to the last byte; the larger share is no more
    # than one file above the smaller.
    written = [value["told"][0] if value["told"] else [0, 0] for value in values]
    assert all(done == total for done, total in written)
    sizes = [path.stat().st_size for path in out.glob("*.safetensors")]
    assert sum(done for done, _ in written) == sum(sizes)
    spread = max(done for done, _ in written) - min(done for done, _ in written)
    assert spread <= max(sizes)
    restored = ckpt.restore(out)
    assert restored["both"].tobytes() == values_of("both").tobytes()


def test_little_memory_is_many_small_steps(server: JobServer, folder: Path) -> None:
    out = folder / "set"
    with server.start(Setup(2, devices=2)) as job:
        options = {"max_host_bytes": 1 << 20, "max_shard_bytes": 1_200_000}
        answers = job.run(f"{WORK}:export", str(out), options)
        assert [answer.status for answer in answers] == ["returned"] * 2, answers
        check_set(out)
        # A set that is there is refused by all, and replaced where that is asked for.
        answers = job.run(f"{WORK}:export", str(out))
        assert [answer.error for answer in answers] == ["StepExists"] * 2, answers
        answers = job.run(f"{WORK}:export", str(out), {"overwrite": True})
        assert [answer.status for answer in answers] == ["returned"] * 2, answers
    check_set(out)


REFUSED = {
    "host": ("Unsupported", "Unsupported", "`host`: process 1 and process 0 differ"),
    "rename": ("Unsupported", "Unsupported", "process 1"),
    "leaf": ("Unsupported", "Unsupported", "`number`"),
    "step": ("CkptError", "ValueError", "expected step=3 with a path, found a tree"),
}
"""What process 1 does otherwise, what both raise, and what they say."""


def test_trees_that_differ_are_refused_by_all(server: JobServer, folder: Path) -> None:
    out = folder / "set"
    with server.start(Setup(2, devices=2)) as job:
        for change, (*errors, told) in REFUSED.items():
            answers = job.run(f"{WORK}:export_with", str(out), change)
            assert [answer.error for answer in answers] == errors, answers
            assert all(told in answer.message for answer in answers), answers
    assert not out.exists()


@pytest.mark.parametrize("careless", [False, True])
def test_a_process_killed_while_it_writes_leaves_the_old_set(
    server: JobServer, folder: Path, careless: bool
) -> None:
    """An export that first makes room, as careless ones do, is found out."""
    out = folder / "set"
    with server.start(Setup(2, devices=2)) as job:
        options = {"max_shard_bytes": 1_200_000}
        answers = job.run(f"{WORK}:export", str(out), options)
        assert [answer.status for answer in answers] == ["returned"] * 2, answers
        before = {name: (out / name).read_bytes() for name in os.listdir(out)}
        answers = job.run(f"{WORK}:export_struck", str(out), 8, careless, timeout=60)
        assert answers[0].status != "returned", answers
    if careless:
        assert not set(before) & set(os.listdir(out))
        return
    # The kill came while files of the new set were written.
    assert set(os.listdir(out)) > set(before)
    for name, data in before.items():
        assert (out / name).read_bytes() == data
    with warnings.catch_warnings():
        # Files of the set that was begun may lie beside.
        warnings.filterwarnings("ignore", message="(?s).*does not name")
        found = ckpt.restore(out)
    assert all(found[n].tobytes() == values_of(n).tobytes() for n in NAMES)
    # What is left over is removed by the next that overwrites.
    with server.start(Setup(2, devices=2)) as job:
        answers = job.run(f"{WORK}:export", str(out), {"overwrite": True})
        assert [answer.status for answer in answers] == ["returned"] * 2, answers
    check_set(out)


def test_files_in_another_folder_are_not_named(server: JobServer, folder: Path) -> None:
    with server.start(Setup(2, devices=2, private=str(folder))) as job:
        answers = job.run(f"{WORK}:export_apart", str(folder))
    values = [answer.value for answer in answers]
    assert [value["error"] for value in values] == ["NotFound"] * 2, answers
    assert not any(name.endswith(".json") for v in values for name in v["names"])


def test_one_file_takes_its_place_when_none_can_fail_any_more(
    server: JobServer, folder: Path
) -> None:
    with server.start(Setup(2, devices=2)) as job:
        faults = {1: Fault(str(folder), at=1, mode="eio")}
        answers = job.run(f"{WORK}:export", str(folder), faults=faults)
        assert [answer.error for answer in answers] == ["StoreError"] * 2, answers
        assert os.listdir(folder) == []
        # An exchange goes on for the others where one process is interrupted in it.
        answers = job.run(f"{WORK}:trade_interrupted")
        assert answers[1].value == [1, 2], answers
        answers = job.run(f"{WORK}:export", str(folder))
        assert [answer.status for answer in answers] == ["returned"] * 2, answers
    check_set(folder)


def test_the_check_sees_one_byte_that_is_wrong(folder: Path) -> None:
    tree = {name: values_of(name) for name in NAMES}
    tree |= {"empty": np.empty((0, 3), np.float32), "number": np.asarray(7)}
    save_file(tree, folder / "model.safetensors")
    check_set(folder)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(AssertionError):
        check_set(folder)
