"""What S3 and GCS do besides answering: lose answers, hide sizes, fail."""

import re

import pytest
import tensorstore as ts

from ckpt._errors import LimitExceeded, StoreError
from ckpt._store import open_store
from tests.ckpt._cloud import Cloud
from tests.ckpt._stores import cloud_case, write


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_a_lost_answer_is_no_lost_race(kind: str, cloud: Cloud) -> None:
    case = cloud_case(kind, cloud)
    cloud.lose_answers = 1
    assert case.store.create("record", b"mine") is True
    cloud.lose_answers = 1
    assert case.store.replace("record", b"mine too", expected=b"mine") is True
    cloud.lose_answers = 1
    write(case.store, "data", b"0123456789")
    assert case.get("record") == b"mine too"
    assert case.get("data") == b"0123456789"
    # Somebody else's object is not taken for ours.
    cloud.lose_answers = 1
    assert case.store.create("record", b"again") is False


@pytest.mark.parametrize("kind", ["s3", "gs"])
@pytest.mark.parametrize("size", [0, 1, 2, 65_535, 65_536, 65_537, 1_500_000])
def test_a_size_that_no_answer_tells_is_found(
    kind: str, size: int, cloud: Cloud
) -> None:
    case = cloud_case(kind, cloud)
    case.put("a/0", bytes(size))
    cloud.hide_sizes = True
    assert case.store.size("a/0") == size
    with case.store.open("a/0", size=size) as reader:
        assert reader.size == size


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_an_expected_size_costs_one_request(kind: str, cloud: Cloud) -> None:
    case = cloud_case(kind, cloud)
    case.put("a/0", bytes(1000))
    cloud.hide_sizes = True
    cloud.requests.clear()
    with case.store.open("a/0", size=1000) as reader:
        assert reader.size == 1000
    assert len(cloud.requests) == 1


def test_an_object_as_large_as_the_limit_says_is_not_fetched(cloud: Cloud) -> None:
    case = cloud_case("s3", cloud)
    case.put("a/0", bytes(5_000_000))
    cloud.requests.clear()
    with pytest.raises(LimitExceeded):
        case.store.read("a/0", limit=100)
    assert len(cloud.requests) == 1


def test_a_store_s_error_is_one_line_without_secrets(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
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
