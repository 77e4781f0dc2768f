"""Whatever mesh is set around it and however axes are typed, a job saves the same."""

from pathlib import Path

import jax
import pytest

from tests._harness.jobs import JobServer, Setup
from tests.jobs._matrix import WORK, find_failed

AMBIENT = ["", "set_mesh"]
AMBIENT += ["use_mesh"] if hasattr(jax.sharding, "use_mesh") else []


@pytest.mark.parametrize("x64", [False, True])
def test_a_job_saves_and_restores_under_any_mesh(
    server: JobServer, folder: Path, x64: bool
) -> None:
    config = {"jax_enable_x64": x64}
    with server.start(Setup(2, devices=2, config=config)) as job:
        for ambient in AMBIENT:
            for explicit in (False, True):
                for kind in ("data_model", "mixed"):
                    name = f"{kind}-{ambient}-{explicit}"
                    answers = job.run(
                        f"{WORK}:round_trip_in_context",
                        *(str(folder / name), kind, ambient, explicit),
                    )
                    assert find_failed(name, answers) == []
                    assert [answer.value for answer in answers] == [[], []], name


def test_a_job_lays_live_arrays_on_another_mesh(server: JobServer) -> None:
    with server.start(Setup(2, devices=2)) as job:
        answers = job.run(f"{WORK}:remesh_seed", 3)
    assert find_failed("remesh", answers) == []
    assert [answer.value for answer in answers] == [[], []]
