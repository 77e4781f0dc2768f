"""In every kind of store equal objects are sent once, and kept while one needs them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckpt
from tests._harness.servers import KINDS as CLOUDS, Cloud, Kind
from tests.stores._places import CloudPlace, Place, cloud_place

FROZEN = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)


def make_tree(step: int) -> dict[str, Any]:
    adapter = np.full((512, 1024), step, np.float32)
    return {"base": FROZEN, "adapter": adapter, "step": step}


def save(url: str, step: int, **options: Any) -> ckpt.Checkpoint:
    return ckpt.save(make_tree(step), None, url, step=step, reuse=True, **options)


def find_wrong(url: str) -> list[int]:
    """Return the steps that are not as they were saved, or that verify complains of."""
    wrong: list[int] = []
    for step in ckpt.steps(url):
        found, expected = ckpt.restore(url, step=step), make_tree(step)
        same = all(np.array_equal(found[x], expected[x]) for x in expected)
        report = ckpt.verify(url, step=step)
        if not same or not report.ok or report.orphans:
            wrong.append(step)
    return wrong


def count_data(place: Place) -> int:
    """Count the bytes of all objects of a run."""
    return sum(len(place.get(name)) for name in place.names())


def test_a_run_with_a_frozen_base(place: Place) -> None:
    done = [save(place.url, step) for step in (1, 2, 3)]
    assert find_wrong(place.url) == []
    assert count_data(place) < FROZEN.nbytes + 3 * 2.2e6
    for opened in done:
        assert np.array_equal(ckpt.restore(opened.url)["base"], FROZEN)
    save(place.url, 2, overwrite=True)
    ckpt.prune(place.url, keep=ckpt.Keep(last=1))
    assert ckpt.steps(place.url) == [3]
    assert find_wrong(place.url) == []
    assert count_data(place) < FROZEN.nbytes + 2.2e6
    ckpt.prune(place.url, drop=[3])
    assert place.names() == []


def test_copies_and_mirrors_have_all_objects(place: Place, folder: Path) -> None:
    near = str(folder / "near")
    for step in (1, 2, 3):
        save(near, step, mirror=place.url, keep_local=1)
    ckpt.drain(near, place.url, keep_local=1)
    assert ckpt.steps(near) == [3]
    assert find_wrong(near) == find_wrong(place.url) == []
    ckpt.prune(place.url, drop=[1])
    assert find_wrong(place.url) == []
    back = str(folder / "back")
    ckpt.copy(place.url, back, step=2)
    assert find_wrong(back) == []


@pytest.mark.parametrize("kind", CLOUDS)
def test_what_is_equal_is_not_sent(clouds: dict[Kind, Cloud], kind: Kind) -> None:
    place: CloudPlace = cloud_place(clouds[kind])
    for step in (1, 2, 3):
        place.cloud.take_log()
        save(place.url, step)
        log = place.cloud.take_log()
        sent = [request for request in log if request.method in ("PUT", "POST")]
        plan = ckpt.plan(place.url)
        assert plan.puts == (len(sent),)
        size = sum(request.bytes for request in sent)
        assert (size > FROZEN.nbytes) == (step == 1)
        place.cloud.take_log()
        ckpt.restore(place.url)
        asked = sum(r.method in ("GET", "HEAD") for r in place.cloud.take_log())
        assert asked == plan.opening + plan.processes[0].requests
