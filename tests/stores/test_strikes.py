"""Whatever a store does wrong: saved is there, refused is not, read is what was saved.

Each table of faults is done to unsafe calls too, which must be found out.
"""

from functools import partial

import pytest

import ckpt
from tests._harness.servers import KINDS, Cloud, Kind
from tests.faults._trees import make_tree, restore_seed
from tests.stores import _unsafe
from tests.stores._places import cloud_place
from tests.stores._runs import find_complaint
from tests.stores._strikes import strike_restores, strike_saves
from tests.stores._tables import (
    conflict_strikes,
    restore_strikes,
    save_strikes,
    wrong_strikes,
)


@pytest.fixture(params=KINDS)
def cloud(request: pytest.FixtureRequest, clouds: dict[Kind, Cloud]) -> Cloud:
    """S3, then GCS."""
    return clouds[request.param]


@pytest.mark.campaign
def test_a_save_is_there_or_is_not(cloud: Cloud) -> None:
    figures = strike_saves(cloud, save_strikes())
    assert figures.complaints == ()
    assert figures.ends["returned"] >= 12


def test_an_unsafe_save_is_found_out_under_each_fault(cloud: Cloud) -> None:
    strikes = [strike for strike in save_strikes() if strike.unsafe]
    assert strike_saves(cloud, strikes, "unsafe").unnoticed == ()


def test_a_conflict_of_requests_on_s3_is_tried_again(clouds: dict[Kind, Cloud]) -> None:
    assert strike_saves(clouds["s3"], conflict_strikes()).complaints == ()
    unsafe = strike_saves(clouds["s3"], conflict_strikes(), "unsafe")
    assert unsafe.unnoticed == ()


def test_unsafe_calls_do_well_without_faults(cloud: Cloud) -> None:
    """So what is found out is what they do under faults."""
    place = cloud_place(cloud)
    ckpt.save(make_tree(1), None, place.url, step=1)
    for way in _unsafe.SAVERS:
        _unsafe.save(cloud, way, place.url, 2, 2)
        assert find_complaint(place, [{1: 1, 2: 2}], "returned") == ""
        assert _unsafe.restore(cloud, place.url) == 2
        ckpt.prune(place.url, drop=[2])


@pytest.mark.campaign
def test_a_restore_survives_what_passes(cloud: Cloud) -> None:
    assert strike_restores(cloud, restore_strikes()).complaints == ()


def test_a_restore_refuses_what_stays_wrong(cloud: Cloud) -> None:
    assert strike_restores(cloud, wrong_strikes()).complaints == ()


def test_a_reader_that_asks_once_is_found_out_under_each_fault(cloud: Cloud) -> None:
    strikes = [*restore_strikes(), *wrong_strikes()]
    figures = strike_restores(cloud, strikes, partial(_unsafe.restore, cloud))
    assert figures.unnoticed == ()
    assert figures.ends == {"WrongTree": len(strikes)}


class _EqualsAll(int):
    """A checksum that is the expected one, whatever that is."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def test_a_reader_that_checks_nothing_is_found_out(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt._crc.crc32c", lambda data: _EqualsAll())
    strikes = [
        strike
        for strike in wrong_strikes()
        if (strike.on, strike.rule.fault) == ("data read", "corrupt")
    ]
    figures = strike_restores(cloud, strikes, restore_seed)
    assert figures.ends == {"WrongTree": 1}
    assert figures.unnoticed == ()
