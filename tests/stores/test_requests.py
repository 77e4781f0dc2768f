"""How many requests a store gets is what a plan says, and few."""

import numpy as np
import pytest

import ckpt
from tests._harness.servers import KINDS, Cloud, Kind
from tests.faults._trees import make_tree, place_tree
from tests.stores._places import CloudPlace, cloud_place


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, clouds: dict[Kind, Cloud]) -> CloudPlace:
    """A run that does not exist yet."""
    return cloud_place(clouds[request.param])


def count(place: CloudPlace, *methods: str) -> int:
    """Count the requests since the last call."""
    return sum(request.method in methods for request in place.cloud.take_log())


def test_two_thousand_small_leaves_take_few_requests(place: CloudPlace) -> None:
    ckpt.save({f"l{n}": np.full(9, n) for n in range(2000)}, None, place.url, step=1)
    assert count(place, "PUT", "POST") <= 10
    opened = ckpt.open(place.url)
    assert count(place, "GET", "HEAD") <= 3
    assert ckpt.restore(opened)["l1999"].tolist() == [1999] * 9
    assert count(place, "GET", "HEAD") <= 3


def test_a_plan_counts_what_the_store_sees(place: CloudPlace) -> None:
    state, mesh = place_tree(make_tree(1, "wide"), devices=2)
    ckpt.save(state, mesh, place.url)
    sent = count(place, "PUT", "POST")
    for select in (None, "deep/layer0/*", "seed"):
        plan = ckpt.plan(place.url, select=select)
        assert plan.puts == (sent,)
        place.cloud.take_log()
        ckpt.restore(place.url, select=select)
        asked = count(place, "GET", "HEAD")
        assert asked == plan.opening + plan.processes[0].requests
