"""Jobs that train, as tests begin and end them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests._harness.jobs import Answer, Job, JobServer, Setup

TRAIN = "tests.resume._train:train"


def make_spec(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    """Return how to train: a plain state by `Batches`, 20 steps, each tenth saved."""
    return {
        "run": str(folder / name),
        "log": str(folder / f"{name}.log"),
        "style": "plain",
        "source": "batches",
        "every": 10,
        "until": 20,
        **more,
    }


def start_job(
    server: JobServer, processes: int, cache: Path, *, devices: int = 1, **config: Any
) -> Job:
    """Start a job whose compiled steps are kept for the next one."""
    fixed = {
        "jax_compilation_cache_dir": str(cache),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    return server.start(Setup(processes, devices, config=fixed | config))


def run_job(
    server: JobServer, processes: int, spec: dict[str, Any], cache: Path
) -> Sequence[Answer]:
    """Train in a job of so many processes; return how that ended in each."""
    with start_job(server, processes, cache) as job:
        return job.run(TRAIN, spec, timeout=120)


def values_of(answers: Sequence[Answer]) -> list[Any]:
    """Return what all have returned; else fail, with the output of one that did not."""
    for answer in answers:
        assert answer.status == "returned", f"{answer}\n{answer.output}"
    return [answer.value for answer in answers]
