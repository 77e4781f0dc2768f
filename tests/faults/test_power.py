"""A power cut loses nothing that was acknowledged and shows no half of the rest."""

from pathlib import Path

import pytest

from tests.faults._power import OPERATIONS, UNSAFE, cut_power


@pytest.mark.root
@pytest.mark.campaign
def test_an_acknowledged_save_survives_any_power_cut(folder: Path) -> None:
    report = cut_power(OPERATIONS, folder)
    assert report.failures == ()
    assert report.images > 200


@pytest.mark.root
def test_a_save_without_fsync_does_not(folder: Path) -> None:
    report = cut_power(UNSAFE, folder)
    assert any("expected one of" in f.complaint for f in report.failures)
