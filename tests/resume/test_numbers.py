"""Sample numbers of steps, and positions in other units, against naive models."""

from collections import Counter as Count
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import ckpt
from ckpt.resume import Batches, Stream, shuffle_indices
from ckpt.resume._moves import Pace, scale_state

LENGTHS = st.integers(1, 40)
SIZES = st.integers(1, 50)
SEEDS = st.integers(0, 2**70)


def orders(length: int, seed: int, epochs: int) -> list[list[int]]:
    return [
        shuffle_indices(length, length, seed=seed, step=epoch).tolist()
        for epoch in range(epochs)
    ]


@given(length=LENGTHS, seed=SEEDS)
def test_every_epoch_has_every_sample_once(length: int, seed: int) -> None:
    for order in orders(length, seed, 4):
        assert sorted(order) == list(range(length))


@given(length=LENGTHS, size=SIZES, seed=SEEDS, steps=st.integers(1, 8))
def test_batches_of_any_size_are_one_sequence(
    length: int, size: int, seed: int, steps: int
) -> None:
    epochs = -(-size * steps // length)
    flat = [n for order in orders(length, seed, epochs) for n in order]
    got = [shuffle_indices(length, size, seed=seed, step=n) for n in range(steps)]
    assert [batch.dtype for batch in got] == [np.dtype(np.int64)] * steps
    assert np.concatenate(got).tolist() == flat[: size * steps]


@given(length=st.integers(8, 40), seed=SEEDS)
def test_orders_differ_between_epochs_and_seeds(length: int, seed: int) -> None:
    first, second, third = orders(length, seed, 3)
    (other,) = orders(length, seed + 1, 1)
    assert len({tuple(o) for o in (first, second, third, other)}) == 4


def test_the_order_is_that_of_the_raw_numbers_of_pcg64() -> None:
    # The reference: the seed sequence [seed, epoch] and 64 bits for each sample.
    raw = [int(np.random.PCG64([6, 1]).random_raw(9)[n]) for n in range(9)]
    expected = sorted(range(9), key=lambda n: raw[n])
    assert shuffle_indices(9, 9, seed=6, step=1).tolist() == expected
    # Written down, so that no other version of numpy may change it.
    assert expected == [2, 4, 0, 3, 1, 6, 7, 5, 8]


@pytest.mark.parametrize(
    "wrong", [{"length": 0}, {"batch_size": 0}, {"seed": -1}, {"step": -1}]
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    good = {"length": 4, "batch_size": 2, "seed": 0, "step": 0}
    asked = good | wrong
    with pytest.raises(ValueError, match="expected length and batch_size of 1 or more"):
        shuffle_indices(
            asked["length"],
            asked["batch_size"],
            seed=asked["seed"],
            step=asked["step"],
        )


LEGS = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 4]), SIZES.filter(lambda n: n < 7), SIZES),
    min_size=1,
    max_size=5,
)


@given(legs=LEGS, unit=st.sampled_from(["batches", "samples", "global"]))
def test_a_position_in_any_unit_goes_on_at_the_next_sample(
    legs: list[tuple[int, int, int]], unit: Any
) -> None:
    state, old = {"n": 0}, Pace(1, 1)
    taken: list[int] = []
    for hosts, batch, steps in legs:
        new = Pace(hosts * batch, hosts)
        each = {"batches": new.batch_size, "samples": hosts, "global": 1}[unit]
        try:
            state = scale_state(state, taken=len(taken), old=old, new=new, unit=unit)
        except ckpt.DataMismatch:
            assert len(taken) % each
            return
        # What the hosts take that a number in this unit tells where to begin.
        for step in range(steps):
            at = state["n"] * each + step * new.batch_size
            for host in range(hosts):
                taken += range(at + host, at + new.batch_size, hosts)
        state = {"n": (state["n"] * each + steps * new.batch_size) // each}
        old = new
        assert Count(taken) == Count(range(len(taken)))


@given(legs=LEGS, seed=st.integers(0, 9), length=LENGTHS)
def test_batches_go_on_at_the_next_sample_with_any_hosts_and_sizes(
    legs: list[tuple[int, int, int]], seed: int, length: int
) -> None:
    got: list[int] = []
    saved: list[dict[str, Any]] = []
    for hosts, batch, steps in legs:
        size = hosts * batch

        def make(seed: int, step: int, size: int = size, hosts: int = hosts) -> Any:
            numbers = shuffle_indices(length, size, seed=seed, step=step)
            return [numbers[host::hosts] for host in range(hosts)]

        stream = Stream(
            Batches(make, seed=seed, batch_size=size), process=0, processes=hosts
        )
        if saved:
            try:
                stream = stream.restored(saved, process=0, processes=hosts)
            except ckpt.DataMismatch:
                assert len(got) % size
                return
        for _ in range(steps):
            shares = next(stream)
            got += np.stack(shares, axis=1).ravel().tolist()
        saved = [stream.position()] * hosts
    epochs = -(-len(got) // length)
    flat = [n for order in orders(length, seed, epochs) for n in order]
    assert got == flat[: len(got)]
