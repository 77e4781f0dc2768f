"""Work in parallel: results in order, the first error, and nothing begun after it."""

import threading
import time

import pytest

from ckpt._write import run_all


def test_results_come_in_the_order_of_the_items() -> None:
    late = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert late.wait(30)
        elif item == 3:
            late.set()
        return item * item

    assert run_all(work, range(50), parallel=2) == [n * n for n in range(50)]


def test_of_several_errors_that_of_the_first_item_is_raised() -> None:
    second = threading.Event()

    def work(item: int) -> None:
        if item == 0:
            assert second.wait(30)
            time.sleep(0.05)
        else:
            second.set()
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 0"):
        run_all(work, range(2), parallel=2)


def test_after_an_error_what_has_not_begun_is_given_up() -> None:
    begun: list[int] = []
    raised = threading.Event()

    def work(item: int) -> None:
        begun.append(item)
        if item == 1:
            raised.set()
            raise ValueError("item 1")
        assert raised.wait(30)
        time.sleep(0.001)

    with pytest.raises(ValueError, match="item 1"):
        run_all(work, range(5000), parallel=2)
    assert len(begun) < 5000
