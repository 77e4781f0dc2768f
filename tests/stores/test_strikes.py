"""Whatever a store does wrong: saved is there, refused is not, read is what was saved.

Each table of faults is done to unsafe calls too, which must be found out. S3 and GCS
are struck at the same time: what a strike takes is mostly waiting.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import ckpt
from tests._harness.servers import KINDS, Cloud, Kind
from tests.faults._trees import make_tree, restore_seed
from tests.stores import _unsafe
from tests.stores._places import cloud_place
from tests.stores._runs import find_complaint
from tests.stores._strikes import Figures, Strike, strike_restores, strike_saves
from tests.stores._tables import (
    conflict_strikes,
    restore_strikes,
    save_strikes,
    wrong_strikes,
)

pytestmark = pytest.mark.campaign


def on_both(
    clouds: Mapping[Kind, Cloud], strike: Callable[[Cloud], Figures]
) -> Figures:
    """Strike S3 and GCS at the same time, and return all that was found."""
    with ThreadPoolExecutor(len(clouds)) as pool:
        one, other = pool.map(strike, clouds.values())
    return Figures(
        one.ends + other.ends,
        one.complaints + other.complaints,
        one.unnoticed + other.unnoticed,
    )


def strikes_on(cloud: Cloud) -> list[Strike]:
    """Return the strikes of saves; requests conflict on S3 alone."""
    return [*save_strikes(), *(conflict_strikes() if cloud.kind == "s3" else [])]


def test_a_save_is_there_or_is_not(clouds: dict[Kind, Cloud]) -> None:
    figures = on_both(clouds, lambda cloud: strike_saves(cloud, strikes_on(cloud)))
    assert figures.complaints == ()
    assert figures.ends["returned"] >= 25


def test_an_unsafe_save_is_found_out_under_each_fault(
    clouds: dict[Kind, Cloud],
) -> None:
    def strike(cloud: Cloud) -> Figures:
        strikes = [one for one in strikes_on(cloud) if one.unsafe]
        return strike_saves(cloud, strikes, "unsafe")

    figures = on_both(clouds, strike)
    assert figures.unnoticed == ()
    assert figures.ends["returned"] == figures.ends.total() >= 30


def test_a_restore_survives_what_passes(clouds: dict[Kind, Cloud]) -> None:
    figures = on_both(clouds, lambda cloud: strike_restores(cloud, restore_strikes()))
    assert figures.complaints == ()


def test_a_restore_refuses_what_stays_wrong(clouds: dict[Kind, Cloud]) -> None:
    figures = on_both(clouds, lambda cloud: strike_restores(cloud, wrong_strikes()))
    assert figures.complaints == ()


def test_a_reader_that_asks_once_is_found_out_under_each_fault(
    clouds: dict[Kind, Cloud],
) -> None:
    def strike(cloud: Cloud) -> Figures:
        strikes = [*restore_strikes(), *wrong_strikes()]
        return strike_restores(cloud, strikes, partial(_unsafe.restore, cloud))

    figures = on_both(clouds, strike)
    assert figures.unnoticed == ()
    assert figures.ends["WrongTree"] == figures.ends.total() >= 30


@pytest.mark.parametrize("kind", KINDS)
def test_unsafe_calls_do_well_without_faults(
    clouds: dict[Kind, Cloud], kind: Kind
) -> None:
    """So what is found out is what they do under faults."""
    cloud = clouds[kind]
    place = cloud_place(cloud)
    ckpt.save(make_tree(1), None, place.url, step=1)
    for way in _unsafe.SAVERS:
        _unsafe.save(cloud, way, place.url, 2, 2)
        assert find_complaint(place, [{1: 1, 2: 2}], "returned") == ""
        assert _unsafe.restore(cloud, place.url) == 2
        for name in place.names():
            if name.startswith(("2-", "steps/2.")):
                place.delete(name)


class _EqualsAll(int):
    """A checksum that is the expected one, whatever that is."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def test_a_reader_that_checks_nothing_is_found_out(
    clouds: dict[Kind, Cloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt._crc.crc32c", lambda data: _EqualsAll())
    strikes = [
        strike
        for strike in wrong_strikes()
        if (strike.on, strike.rule.fault) == ("data read", "corrupt")
    ]
    figures = on_both(
        clouds, lambda cloud: strike_restores(cloud, strikes, restore_seed)
    )
    assert figures.ends == {"WrongTree": 2}
    assert figures.unnoticed == ()
