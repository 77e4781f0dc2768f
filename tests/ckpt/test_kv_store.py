"""What S3 and GCS do besides answering: lose answers, hide sizes, fail."""

import re

import pytest
import tensorstore as ts

from ckpt._errors import LimitExceeded, StoreError
from ckpt._store import open_store
from tests._harness.servers import KINDS, Cloud, Kind, Rule
from tests.ckpt._stores import Case, cloud_case, write

LOST = Rule("lost", method="PUT|POST", count=1)


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, clouds: dict[Kind, Cloud]) -> Case:
    """A store behind a proxy."""
    return cloud_case(clouds[request.param])


def cloud_of(case: Case) -> Cloud:
    assert case.cloud is not None
    return case.cloud


def test_a_lost_answer_is_no_lost_race(case: Case) -> None:
    cloud = cloud_of(case)
    cloud.break_with(LOST)
    assert case.store.create("record", b"mine") is True
    cloud.break_with(LOST)
    assert case.store.replace("record", b"mine too", expected=b"mine") is True
    cloud.break_with(LOST)
    write(case.store, "data", b"0123456789")
    assert case.get("record") == b"mine too"
    assert case.get("data") == b"0123456789"
    # Somebody else's object is not taken for ours.
    cloud.break_with(LOST)
    assert case.store.create("record", b"again") is False
    assert sum(request.fault == "lost" for request in cloud.take_log()) == 4


@pytest.mark.parametrize("size", [0, 1, 2, 65_535, 65_536, 65_537, 1_500_000])
def test_a_size_is_found_whether_or_not_an_answer_tells_it(
    case: Case, size: int
) -> None:
    """GCS does not; S3 does."""
    case.put("a/0", bytes(size))
    assert case.store.size("a/0") == size
    with case.store.open("a/0", size=size) as reader:
        assert reader.size == size


def test_an_expected_size_costs_one_request(case: Case) -> None:
    case.put("a/0", bytes(1000))
    with case.store.open("a/0", size=1000) as reader:
        assert reader.size == 1000
    assert len(cloud_of(case).take_log()) == 1


def test_an_object_as_large_as_the_limit_says_is_not_fetched(case: Case) -> None:
    case.put("a/0", bytes(5_000_000))
    with pytest.raises(LimitExceeded):
        case.store.read("a/0", limit=100)
    assert len(cloud_of(case).take_log()) == 1


def test_a_store_s_error_is_one_line_without_secrets(
    clouds: dict[Kind, Cloud], monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    context = ts.Context({"s3_request_retries": {"max_retries": 1}})
    store = open_store("s3://bucket/runs", context=context)
    with pytest.raises(StoreError, match="Whether it was done is not known") as caught:
        store.create("record", b"x")
    text = str(caught.value)
    assert "- at `record` in s3://bucket/runs." in text
    assert "\n" not in text
    assert not re.search(r"hush|aws_|spec|\{", text)
    assert caught.value.outcome == "unknown"
    assert caught.value.__context__ is None
