"""A stream that is resumed gives the batches of one that was never interrupted."""

import json
import subprocess
import sys

import pytest

from ckpt.resume import Stream
from ckpt.resume._stream import open_stream

from ._sources import CASES, resume, take, through_json, to_text

EVERY = pytest.mark.parametrize("name", CASES)


@EVERY
def test_twenty_batches_are_ten_and_ten_more(name: str) -> None:
    case = CASES[name]
    stream = case.stream()
    assert take(stream, 10) == case.read(10)
    later = resume(case.stream(), through_json(stream.position()))
    assert later.batches == 10
    assert later.epoch == stream.epoch
    assert take(later, 10) == case.read(20)[10:]
    assert later.batches == 20


@EVERY
def test_a_stream_is_resumed_again_and_again(name: str) -> None:
    case = CASES[name]
    stream, got = case.stream(), []
    for count in (0, 1, 2, 0, 4, 3, 5, 1, 4):
        got += take(stream, count)
        stream = resume(case.stream(), through_json(stream.position()))
    assert got == case.read(20)


@pytest.mark.campaign
def test_a_new_process_goes_on_where_another_stopped() -> None:
    asked, expected = "", []
    for name, case in CASES.items():
        stream = case.stream()
        take(stream, 10)
        asked += json.dumps([name, to_text(stream.position()), 10]) + "\n"
        expected.append(case.read(20)[10:])
    done = subprocess.run(
        [sys.executable, "-c", "from tests.resume._sources import answer; answer()"],
        input=asked,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *others, (resumed, uninterrupted) = map(json.loads, done.stdout.splitlines())
    assert others == expected
    assert resumed == uninterrupted


def test_a_stream_is_opened_as_it_is() -> None:
    stream = Stream([1, 2])
    assert open_stream(stream) is stream
    assert open_stream([1, 2]).source == [1, 2]
