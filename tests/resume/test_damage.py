"""A step that one process alone finds damaged: all go back behind the same one."""

from pathlib import Path

import ckpt
from tests._harness.jobs import JobServer
from tests.resume._jobs import make_spec, run_job, values_of


def test_all_skip_a_step_that_one_cannot_read(
    server: JobServer, folder: Path, cache: Path
) -> None:
    spec = make_spec(folder, "run", every=3)
    values_of(run_job(server, 2, spec | {"until": 7}, cache))
    # What a process has for itself, its data's position among it, lies in its pack.
    (pack,) = Path(spec["run"]).glob("7-*/~packs/1-0/c/0")
    pack.write_bytes(bytes(pack.stat().st_size))
    ends = values_of(run_job(server, 2, spec | {"until": 9}, cache))
    assert [end["begun"] for end in ends] == [6, 6]
    assert ends[0]["state"] == ends[1]["state"]
    assert ckpt.steps(spec["run"]) == [3, 6, 7, 9]
