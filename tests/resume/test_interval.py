"""How often to save is what costs least, within bounds that are named."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ckpt.resume import choose_interval, daly, estimate_mtbf, young_daly

STALLS = st.floats(1e-3, 300)
MTBFS = st.floats(600, 3e7)
GRID = np.geomspace(1 / 50, 50, 4001)


@given(stall=STALLS, mtbf=MTBFS)
def test_young_daly_costs_least_of_all_intervals(stall: float, mtbf: float) -> None:
    best = young_daly(stall, mtbf)

    def cost(interval: np.ndarray) -> np.ndarray:
        return stall / interval + interval / 2 / mtbf

    assert cost(np.array([best])) <= cost(best * GRID).min() * (1 + 1e-9)


@given(share=st.floats(1e-5, 0.4), mtbf=MTBFS)
def test_daly_is_near_the_optimum_of_the_exact_model(share: float, mtbf: float) -> None:
    stall = share * mtbf
    between = mtbf * np.geomspace(1e-4, 4, 20_001)
    # The expected time for a unit of work, where failures strike while saving too.
    exact = np.expm1((between + stall) / mtbf) / between
    found = daly(stall, mtbf)
    assert np.expm1((found + stall) / mtbf) / found <= exact.min() * 1.001


def test_daly_of_a_stall_beyond_twice_the_mtbf_is_the_mtbf() -> None:
    assert daly(200, 100) == 100
    assert daly(0, 100) == young_daly(0, 100) == 0


@pytest.mark.parametrize(
    ("failures", "days", "hosts"),
    [(0, 0, 1), (0, 30, 16), (7, 10, 64), (419, 54, 2048)],
)
def test_mtbf_is_the_inverse_of_the_mean_of_the_posterior(
    failures: int, days: float, hosts: int
) -> None:
    rate = np.linspace(1e-9, 0.2, 2_000_001)  # failures of a host in a day
    exposure = hosts * days
    # Prior: exponential with a mean of 5 in 1000 days; likelihood: Poisson.
    log = -rate / 0.005 + failures * np.log(rate) - rate * exposure
    weight = np.exp(log - log.max())
    mean = (rate * weight).sum() / weight.sum()
    found = estimate_mtbf(failures, days * 86400, hosts=hosts)
    assert found == pytest.approx(86400 / mean / hosts, rel=1e-3)


@given(
    stall=st.floats(0, 600),
    write=st.floats(0, 7200),
    failures=st.integers(0, 1000),
    seconds=st.floats(0, 1e8),
    hosts=st.integers(1, 20_000),
)
def test_interval_keeps_its_bounds(
    stall: float, write: float, failures: int, seconds: float, hosts: int
) -> None:
    told: dict[str, Any] = {"failures": failures, "seconds": seconds, "hosts": hosts}
    found = choose_interval(stall, write, **told)
    best = young_daly(stall, found.mtbf)
    assert found.optimum == best
    assert found.seconds >= max(write, 10)
    assert found.seconds <= max(1800, write)
    match found.bound:
        case "optimum":
            assert found.seconds == best
            assert stall <= 0.01 * best * (1 + 1e-9)
        case "share":
            assert found.seconds > best
            assert found.seconds == pytest.approx(min(stall * 100, 2 * best))
        case "cap":
            assert found.seconds == 1800 < max(best, min(stall * 100, 2 * best))
        case "write":
            assert found.seconds == write
        case _:
            assert (found.bound, found.seconds) == ("floor", 10)


def test_interval_says_what_bound_it() -> None:
    quiet: dict[str, Any] = {"failures": 0, "seconds": 86400.0, "hosts": 1}
    assert choose_interval(0.5, 60, **quiet).bound == "cap"
    assert choose_interval(0, 3600, **quiet).bound == "write"
    assert choose_interval(0, 0, **quiet).bound == "floor"
    assert choose_interval(0, 0, **quiet, floor=0).seconds == 0
    assert choose_interval(9, 9, **quiet, cap=1e9).bound == "optimum"
    often: dict[str, Any] = {"failures": 100, "seconds": 86400.0, "hosts": 64}
    assert choose_interval(5, 0, **often).bound == "share"
    assert "share" in str(choose_interval(5, 0, **often))


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_wrong_measures_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="expected stall of 0 or more"):
        choose_interval(wrong, 1, failures=0, seconds=1)
    with pytest.raises(ValueError, match="expected mtbf of 0 or more"):
        young_daly(1, wrong)
    with pytest.raises(ValueError, match="expected seconds of 0 or more"):
        estimate_mtbf(0, wrong)
    with pytest.raises(ValueError, match="expected hosts of 1 or more"):
        estimate_mtbf(0, 0, hosts=0)
