"""What the time of a run went to is told as it was."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

import ckpt
from ckpt._store import open_store
from ckpt.resume import goodput
from tests._harness.servers import KINDS, Cloud, Kind
from tests.resume._logs import event, new_run, save, train, write_log
from tests.resume._trainers import STARTS, Clock, Start, simulate
from tests.stores._places import cloud_place


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    starts=st.lists(STARTS, min_size=1, max_size=7),
    every=st.integers(1, 5),
    on_disk=st.booleans(),
)
def test_every_second_is_told_as_it_was(
    memory_run: Path, starts: list[Start], every: int, on_disk: bool
) -> None:
    run = new_run(memory_run if on_disk else None)
    truth = simulate(run, starts, every)
    told, spent = goodput(run.url), truth.finish()
    assert told.seconds == pytest.approx(spent, abs=1e-4)
    assert told.wall == math.fsum(told.seconds.values())
    assert told.wall == pytest.approx(math.fsum(spent.values()), abs=1e-4)
    assert (told.steps, told.failures) == (len(truth.state), truth.failures)
    assert (told.starts, told.skipped, told.overlap) == (len(starts), 0, 0)


NUMBERS = st.one_of(
    st.floats(),
    st.integers(-3, 60),
    st.sampled_from([None, True, "7", [], 10**400, -(1 << 70), 1e300]),
)
EVENTS = st.fixed_dictionaries(
    {
        "t": st.one_of(st.floats(1e9, 1e9 + 300), NUMBERS),
        "m": st.one_of(st.floats(0, 300), NUMBERS),
        "event": st.sampled_from(
            ["start", "resume", "step", "save", "saved", "failed_save", "stop", "?"]
        ),
    },
    optional={"step": NUMBERS, "stall": NUMBERS, "seconds": NUMBERS, "reason": NUMBERS},
)


@given(
    logs=st.lists(
        st.lists(st.one_of(EVENTS, EVENTS, st.binary(max_size=40)), max_size=30),
        min_size=1,
        max_size=4,
    )
)
@example(logs=[[event(0, "step", step=0), event(1, "step", step=0)]])
@example(logs=[[b"[" * 60_000, b"9" * 5_000, b'{"t":1e999,"m":0,"event":"step"}']])
def test_whatever_the_logs_hold_the_parts_add_up(logs: list[list[Any]]) -> None:
    run = new_run()
    for number, lines in enumerate(logs):
        write_log(run, 10**12 + number, [*lines, event(number, "start")])
    told = goodput(run.url)
    assert told.wall == math.fsum(told.seconds.values())
    assert all(seconds >= 0 for seconds in told.seconds.values())
    assert told.starts == len(logs)
    # The spans that are drawn are the same time, without a gap.
    ends = [0.0, *(span.end for span in told.spans)]
    assert [span.begin for span in told.spans] == ends[:-1]
    assert told.wall == pytest.approx(ends[-1], rel=1e-9, abs=1e-6)
    json.dumps(told.to_json(), allow_nan=False)
    assert str(told)


def test_steps_between_two_lines_share_their_time() -> None:
    run, clock = new_run(), Clock()
    for first, last, told in ((1, 400, None), (301, 310, "finished")):
        with clock.log(run) as log:
            log.add("resume", step=first - 1, seconds=0.0, fresh=first == 1)
            train(clock, log, first, last, each=0.01)
            if told:
                log.add("stop", step=last, reason=told)
    found = goodput(run.url)
    assert found.steps == 310
    assert (found.productive, found.lost) == pytest.approx((3.1, 1.0), abs=1e-6)


def test_a_start_that_only_restored_an_older_step_loses_nothing() -> None:
    run, clock = new_run(), Clock()
    with clock.log(run) as log:
        log.add("resume", step=0, seconds=0.0, fresh=True)
        train(clock, log, 1, 9, each=1.0)
        save(log, 9)
    with clock.log(run) as log:
        log.add("resume", step=4, seconds=0.0, skipped=[9])
    with clock.log(run) as log:
        log.add("resume", step=9, seconds=0.0)
        train(clock, log, 10, 12, each=1.0)
    found = goodput(run.url)
    assert (found.steps, found.productive, found.lost) == (12, 12.0, 0.0)


def test_of_two_jobs_at_once_the_one_counts_that_was_gone_on_from() -> None:
    run = new_run()
    for began, upto in ((0, 20), (1, 40)):
        steps = [event(began + n, "step", step=n) for n in range(1, upto + 1)]
        done = [event(began + 20.5, "saved", step=20)] if began == 0 else []
        head = [event(began, "start"), event(began, "resume", step=0)]
        write_log(run, 10**12 + began, [*head, *steps, *done])
    write_log(
        run,
        10**12 + 60_000,
        [event(60, "start"), event(60, "resume", step=20), event(61, "step", step=21)],
    )
    found = goodput(run.url)
    assert (found.steps, found.productive, found.lost) == (21, 21.0, 40.0)
    assert found.overlap == pytest.approx(19.5)
    assert found.wall == pytest.approx(61 + found.overlap)
    assert "overlap for 19.5 s" in str(found)


def test_a_commit_that_was_not_told_is_the_last_trainer_s() -> None:
    run, clock = new_run(), Clock()
    for first, last in ((1, 8), (1, 8), (6, 10)):
        with clock.log(run) as log:
            log.add("resume", step=first - 1, seconds=0.0)
            train(clock, log, first, last, each=1.0)
    found = goodput(run.url)
    assert (found.steps, found.productive, found.lost) == (10, 10.0, 11.0)


def test_what_a_killed_start_could_not_send_is_downtime_and_no_loss_of_the_rest() -> (
    None
):
    run, clock = new_run(), Clock()
    with clock.log(run) as log:
        log.add("resume", step=0, seconds=0.0, fresh=True)
        train(clock, log, 1, 5, each=1.0)
    clock.now += 30
    with clock.log(run) as log:
        log.add("resume", step=20, seconds=0.0)
        train(clock, log, 21, 25, each=1.0)
    found = goodput(run.url)
    assert (found.productive, found.lost, found.downtime) == (10.0, 0.0, 30.0)


def test_going_back_within_a_start_loses_steps() -> None:
    run, clock = new_run(), Clock()
    with clock.log(run) as log:
        log.add("resume", step=0, seconds=0.0, fresh=True)
        train(clock, log, 1, 10, each=1.0)
        clock.now += 5
        log.add("resume", step=4, seconds=2.0)
        train(clock, log, 5, 8, each=1.0)
        train(clock, log, 7, 9, each=1.0)
    found = goodput(run.url)
    assert (found.steps, found.productive, found.lost) == (9, 9.0, 8.0)
    assert (found.other, found.restore) == (3.0, 2.0)


def test_clocks_that_jump_make_no_time_negative() -> None:
    run = new_run()
    head = [event(0, "start"), event(1, "resume", step=0)]
    jumps = [event(n, "step", step=n, wall=1e9 + (-1) ** n * 9e5) for n in (2, 3, 4)]
    write_log(run, 10**12, [*head, *jumps])
    back = [event(x, "step", step=5 + x, wall=1e9 - 3600) for x in (0, 2)]
    write_log(run, 10**12 + 1, back)
    found = goodput(run.url)
    assert (found.wall, found.downtime) == (6.0, 0.0)
    assert all(seconds >= 0 for seconds in found.seconds.values())


def test_lines_out_of_order_and_saves_told_before_their_step_count_once() -> None:
    run = new_run()
    lines = [
        event(0, "start"),
        event(1, "resume", step=0),
        event(3, "step", step=1),
        event(2.5, "saved", step=1),
        event(8, "save", step=2, stall=3),
        event(8, "step", step=2),
        event(10, "step", step=3),
        event(9, "notice", source="x"),
    ]
    write_log(run, 10**12, lines)
    found = goodput(run.url)
    assert (found.wall, found.steps) == (10.0, 3)
    assert (found.productive, found.stall, found.startup) == (6.0, 3.0, 1.0)


def test_another_process_speaks_where_process_0_does_not() -> None:
    run, clock = new_run(), Clock()
    for processes in ([0, 1, 2], [2], [1, 0]):
        begun = clock.now
        for process in processes:
            clock.now = begun + process / 100
            told = {"process": process, "processes": len(processes)}
            with clock.log(run, **told) as log:
                log.add("resume", step=0, seconds=0.0, fresh=True)
                train(clock, log, 1, 4, each=1.0)
        clock.now += 500
    found = goodput(run.url)
    assert (found.starts, found.steps) == (3, 4)
    assert (found.productive, found.lost) == pytest.approx((4.0, 8.0))


def test_no_events_are_not_found_and_links_are_not_followed(memory_run: Path) -> None:
    with pytest.raises(ckpt.NotFound, match=r"events/\*\.jsonl.*ckpt\.Run"):
        goodput(memory_run)
    run = open_store(memory_run)
    write_log(run, 10**12, [event(0, "start"), event(4, "resume", step=0)])
    aside = memory_run.parent / "aside"
    aside.write_bytes((memory_run / "events/1000000000000-0.jsonl").read_bytes())
    (memory_run / "events/1000000000009-0.jsonl").symlink_to(aside)
    for name in ("x", "1-0.json", "01-0.jsonl", "1-0-0-0.jsonl", "-1-0.jsonl"):
        (memory_run / "events" / name).write_text("{}\n")
    found = goodput(memory_run)
    assert (found.starts, found.skipped, found.wall) == (1, 1, 4.0)


def test_torn_and_long_lines_are_counted(memory_run: Path) -> None:
    run = open_store(memory_run)
    good = [event(n, "step", step=n) for n in range(1, 5)]
    long = event(2.5, "notice", source="x" * 3_000_000)
    torn = json.dumps(event(9, "step", step=9)).encode()[:-4]
    write_log(run, 10**12, [*good[:2], long, b"\0\xff", *good[2:], torn])
    found = goodput(memory_run)
    assert (found.last_step, found.skipped, found.wall) == (4, 3, 3.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bucket_tells_the_same_and_is_asked_little(
    clouds: dict[Kind, Cloud], kind: Kind
) -> None:
    place, clock = cloud_place(clouds[kind]), Clock()
    run = open_store(place.url)
    for first in (1, 6):
        with clock.log(run) as log:
            log.add("resume", step=first - 1, seconds=0.0)
            train(clock, log, first, first + 9, each=1.0)
            log.flush()
            save(log, 5)
        clock.now += 60
    place.put("events/0-0-0.jsonl", b"x" * 9_000_000)
    clouds[kind].take_log()
    found = goodput(place.url)
    assert (found.steps, found.productive, found.lost) == (15, 15.0, 5.0)
    assert (found.starts, found.skipped, found.downtime) == (2, 1, 60.0)
    objects = len(run.list("events"))
    assert objects in (3, 4, 5)
    # A listing, and two requests an object.
    assert len(clouds[kind].take_log()) <= 3 + 2 * objects
