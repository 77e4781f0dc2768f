"""Twenty steps equal ten, a kill -9, a new process, and ten more, bit for bit."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests._harness.jobs import JobServer
from tests.resume._jobs import make_spec, run_job, values_of
from tests.resume._pipelines import ELASTIC, SAMPLES, SOURCES
from tests.resume._styles import STYLES
from tests.resume._train import read_log

pytestmark = pytest.mark.campaign

CASES = [(style, "batches") for style in STYLES] + [
    ("plain", source) for source in SOURCES if source != "batches"
]
NEEDS = {
    "torchdata": ("torch", "torchdata"),
    "datasets": ("datasets",),
    "datasets-map": ("datasets",),
}


@pytest.fixture(scope="module")
def server() -> Iterator[JobServer]:
    """A process that has imported all that is tried: that takes longest."""
    modules = ("flax.nnx", "flax.linen", "optax", "equinox", "grain")
    loaders = {package for needed in NEEDS.values() for package in needed}
    found = [name for name in sorted(loaders) if find_spec(name)]
    with JobServer(
        *("ckpt", "ckpt.resume", "tests.resume._loops", "tests.resume._train"),
        *modules,
        *found,
    ) as started:
        yield started


@pytest.mark.parametrize(("style", "source"), CASES)
def test_a_killed_run_goes_on_bit_for_bit(
    server: JobServer, folder: Path, cache: Path, style: str, source: str
) -> None:
    for package in NEEDS.get(source, ()):
        pytest.importorskip(package, reason="needs the extra data")
    case = {"style": style, "source": source}
    whole_spec = make_spec(folder, "whole", **case)
    (whole,) = values_of(run_job(server, 1, whole_spec, cache))
    killed = make_spec(folder, "killed", **case)
    (first,) = run_job(server, 1, killed | {"die_at": 13}, cache)
    assert first.status == "killed", first
    (second,) = values_of(run_job(server, 1, killed, cache))
    assert second["begun"] == 10
    assert second["state"] == whole["state"]
    expected = read_log(whole_spec["log"], 0)
    assert [step for step, _, _ in expected] == list(range(1, 21))
    assert read_log(killed["log"], 0) == expected[:13] + expected[10:]


def test_what_is_not_saved_shows(server: JobServer, folder: Path, cache: Path) -> None:
    """Without the data's position the same comparison fails."""
    whole_spec = make_spec(folder, "whole")
    (whole,) = values_of(run_job(server, 1, whole_spec, cache))
    cut = make_spec(folder, "cut", forgets=True)
    values_of(run_job(server, 1, cut | {"until": 10}, cache))
    (second,) = values_of(run_job(server, 1, cut, cache))
    assert second["begun"] == 10
    assert second["state"] != whole["state"]
    assert read_log(cut["log"], 0) != read_log(whole_spec["log"], 0)


@pytest.mark.parametrize("source", ELASTIC)
def test_four_then_two_then_one_process_see_each_sample_once_an_epoch(
    server: JobServer, folder: Path, cache: Path, source: str
) -> None:
    spec = make_spec(folder, "run", source=source, every=None)
    states: list[dict[str, str]] = []
    found: dict[int, list[int]] = {}
    for number, (processes, until) in enumerate([(4, 6), (2, 13), (1, 16)]):
        part: dict[str, Any] = spec | {"until": until, "log": f"{spec['log']}.{number}"}
        ends = values_of(run_job(server, processes, part, cache))
        for end in ends:
            assert end["state"] == ends[0]["state"]
            if states:
                assert end["there"] == states[-1]
        states.append(ends[0]["state"])
        for member in range(processes):
            for step, _, indices in read_log(part["log"], member):
                found.setdefault(step, []).extend(indices)
    assert sorted(found) == list(range(1, 17))
    for epoch in range(4):
        steps = range(4 * epoch + 1, 4 * epoch + 5)
        seen = [index for step in steps for index in found[step]]
        assert sorted(seen) == list(range(SAMPLES))
