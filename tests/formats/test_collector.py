import gc
from collections.abc import Iterator

import pytest

from ckpt.formats._collector import hold_collector


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    ran = gc.isenabled()
    yield
    (gc.enable if ran else gc.disable)()


def test_the_collector_runs_again_once_nobody_holds_it() -> None:
    gc.enable()
    with hold_collector():
        assert not gc.isenabled()
        with hold_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_the_caller_stopped_stays_so() -> None:
    gc.disable()
    with hold_collector():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_the_collector_runs_again_after_an_error() -> None:
    gc.enable()
    with pytest.raises(KeyError), hold_collector():
        raise KeyError
    assert gc.isenabled()
