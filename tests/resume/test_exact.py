"""Twenty steps equal ten, a kill -9, a new process, and ten more, bit for bit."""

from pathlib import Path
from typing import Any

import pytest

from tests._harness.jobs import JobServer, Setup
from tests.resume._sources import ELASTIC, SAMPLES, SOURCES
from tests.resume._styles import STYLES
from tests.resume._train import read_log

TRAIN = "tests.resume._train:train"
CASES = [(style, "batches") for style in STYLES] + [
    ("plain", source) for source in SOURCES if source != "batches"
]


def make_spec(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    return {
        "run": str(folder / name),
        "log": str(folder / f"{name}.log"),
        "style": "plain",
        "source": "batches",
        "every": 10,
        "until": 20,
        **more,
    }


def run_job(
    server: JobServer, processes: int, spec: dict[str, Any], cache: Path, devices: int = 1
) -> list[Any]:
    config = {
        "jax_compilation_cache_dir": str(cache),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    with server.start(Setup(processes, devices, config=config)) as job:
        return list(job.run(TRAIN, spec, timeout=120))


@pytest.mark.parametrize(("style", "source"), CASES)
def test_a_killed_run_goes_on_bit_for_bit(
    server: JobServer, folder: Path, cache: Path, style: str, source: str
) -> None:
    case = {"style": style, "source": source}
    (whole,) = run_job(server, 1, make_spec(folder, "whole", **case), cache)
    assert whole.status == "returned", whole
    killed = make_spec(folder, "killed", **case)
    (first,) = run_job(server, 1, killed | {"die_at": 13}, cache)
    assert first.status == "killed", first
    (second,) = run_job(server, 1, killed, cache)
    assert second.status == "returned", second
    assert second.value["begun"] == 10
    assert second.value["state"] == whole.value["state"]
    expected = read_log(str(folder / "whole.log"), 0)
    found = read_log(str(folder / "killed.log"), 0)
    assert [step for step, _, _ in expected] == list(range(1, 21))
    assert found == expected[:13] + expected[10:]
