"""Steps in which bytes are handed over: every need is met, within the room there is."""

from collections import defaultdict

import numpy as np
from hypothesis import given, strategies as st

from layouts import Box, Grid, Need, Share, plan_handovers, share_box

MOST = 256


@st.composite
def needs_of(draw: st.DrawFn) -> list[Need]:
    processes = draw(st.integers(1, 5))
    some = st.sets(st.integers(0, processes - 1), min_size=1)
    found: list[Need] = []
    group = 0
    for _ in range(draw(st.integers(0, 30))):
        group += draw(st.integers(0, 1))
        lengths = draw(st.lists(st.integers(1, MOST), min_size=1, max_size=4))
        at = 0
        shares: list[Share] = []
        for length in lengths:
            shares.append(Share(Box((at,), (length,)), tuple(sorted(draw(some)))))
            at += length
        to = draw(st.integers(0, processes - 1))
        found.append(Need(to, tuple(shares), 1, group))
    return found


@given(needs_of())
def test_each_share_is_sent_once_by_a_holder_where_the_receiver_lacks_it(
    needs: list[Need],
) -> None:
    steps = plan_handovers(needs, most=MOST)
    assert sorted(n for step in steps for n in step.needs) == list(range(len(needs)))
    for step in steps:
        wanted = {
            (n, s)
            for n in step.needs
            for s, share in enumerate(needs[n].shares)
            if needs[n].receiver not in share.holders
        }
        assert sorted(wanted) == sorted((p.need, p.share) for p in step.parcels)
        for parcel in step.parcels:
            share = needs[parcel.need].shares[parcel.share]
            assert parcel.sender in share.holders
            assert parcel.nbytes == share.box.size


@given(needs_of())
def test_parcels_lie_apart_within_the_buffers(needs: list[Need]) -> None:
    for step in plan_handovers(needs, most=MOST):
        taken: dict[tuple[int, int], np.ndarray] = defaultdict(
            lambda length=step.length: np.zeros(length, int)
        )
        loads: dict[tuple[int, int, int], int] = defaultdict(int)
        for parcel in step.parcels:
            pair = parcel.sender, needs[parcel.need].receiver
            assert parcel.offset % 64 == 0
            assert parcel.offset + parcel.nbytes <= step.length
            taken[pair][parcel.offset : parcel.offset + parcel.nbytes] += 1
            loads[*pair, parcel.need] += -(-parcel.nbytes // 64) * 64
        assert all(found.max() == 1 for found in taken.values())
        for pair, found in taken.items():
            ends = int(np.flatnonzero(found).max()) + 1
            # One need alone may be larger than the room.
            large = max(load for (*at, _), load in loads.items() if tuple(at) == pair)
            assert ends <= max(MOST, large)


@given(needs_of())
def test_a_later_group_of_a_receiver_does_not_come_before_an_earlier_one(
    needs: list[Need],
) -> None:
    steps = plan_handovers(needs, most=MOST)
    at = {n: number for number, step in enumerate(steps) for n in step.needs}
    for n, need in enumerate(needs):
        for m, other in enumerate(needs[:n]):
            if other.receiver == need.receiver and other.group != need.group:
                assert at[m] <= at[n]


def test_senders_are_busy_at_once() -> None:
    """Rows of two processes go to a third in as many steps as one has rows."""
    rows = [Share(Box((n,), (MOST,)), (1 + n // 8,)) for n in range(16)]
    needs = [Need(0, (row,), 1) for row in rows]
    steps = plan_handovers(needs, most=MOST)
    assert [len(step.needs) for step in steps] == [2] * 8
    assert all({p.sender for p in step.parcels} == {1, 2} for step in steps)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=3).flatmap(
        lambda shape: st.tuples(
            st.just(tuple(shape)),
            st.tuples(*(st.integers(1, n) for n in shape)),
            st.tuples(
                *(
                    st.integers(0, n - 1).flatmap(
                        lambda a, n=n: st.tuples(st.just(a), st.integers(1, n - a))
                    )
                    for n in shape
                )
            ),
        )
    )
)
def test_shares_fill_a_box_once(
    case: tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]],
) -> None:
    shape, piece, spans = case
    box = Box(tuple(a for a, _ in spans), tuple(n for _, n in spans))
    grid = Grid(shape, piece)
    holders = tuple((n % 3,) for n in range(grid.length))
    filled = np.zeros(shape, int)
    for share in share_box(box, shape, piece, holders):
        filled[share.box.slices] += 1
        cell = tuple(a // p for a, p in zip(share.box.start, piece, strict=True))
        assert share.holders == holders[grid.number(cell)]
    expected = np.zeros(shape, int)
    expected[box.slices] = 1
    assert (filled == expected).all()
