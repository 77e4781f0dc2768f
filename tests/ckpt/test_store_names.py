"""Names that a checkpoint may hold, and paths that a caller may give."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from ckpt._errors import (
    CkptError,
    Damaged,
    LimitExceeded,
    NotFound,
    StoreError,
    Unsupported,
    Untrusted,
)
from ckpt._store import check_name, open_store
from tests.ckpt._stores import Case

HOSTILE = [
    "",
    "/",
    "/etc/passwd",
    "a/",
    "/a",
    "a//b",
    ".",
    "..",
    "a/..",
    "../a",
    "a/./b",
    "a/../../b",
    "a\\b",
    "C:\\x",
    "C:x",
    "a\0b",
    "a\n",
    "a b",
    "ä",
    "\ud800",
    "\u0661",
    "a?b",
    "a*",
    "s3://bucket/x",
    "a" * 1025,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_could_lead_elsewhere_are_untrusted(case: Case, name: str) -> None:
    store = case.store
    calls: list[Callable[[], object]] = [
        lambda: store.read(name, limit=10),
        lambda: store.open(name),
        lambda: store.write(name, size=None),
        lambda: store.create(name, b"x"),
        lambda: store.replace(name, b"x", expected=b"x"),
        lambda: store.remove(name),
        lambda: store.remove_tree(name),
        lambda: store.size(name),
        lambda: store.child(name),
    ]
    if name:
        calls += [
            lambda: store.list(name),
            lambda: store.make_folders([name]),
            lambda: store.sync_folders([name]),
        ]
    for call in calls:
        with pytest.raises(
            Untrusted, match="Expected a relative object name"
        ) as caught:
            call()
        assert str(caught.value).isascii()
        assert str(caught.value).isprintable()
    assert store.list("") == []


@given(st.text("abZ09._~%-/\\: \n\0é", max_size=12))
def test_a_name_is_checked_as_the_rule_reads(name: str) -> None:
    segments = name.split("/")
    allowed = set("abZ09._~%-")
    good = all(s not in ("", ".", "..") and set(s) <= allowed for s in segments)
    if good:
        assert check_name(name) == name
    else:
        with pytest.raises(Untrusted):
            check_name(name)


def test_the_longest_name_is_taken() -> None:
    assert len(check_name("/".join(["x" * 127] * 8))) == 1023
    assert len(check_name("/".join(["x" * 127] * 8) + "x")) == 1024


def test_relative_paths_become_absolute_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("runs/a")
    monkeypatch.chdir("/")
    assert store.url == str(tmp_path / "runs" / "a")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store("~/b").url == str(tmp_path / "b")
    assert open_store(Path("~") / "b").url == str(tmp_path / "b")
    assert open_store("/x/../y//z/").url == "/y/z"


def test_urls_name_the_same_places_as_paths(tmp_path: Path) -> None:
    spaced = tmp_path / "a b%20c"
    assert open_store(spaced.as_uri()).url == str(spaced)
    assert open_store("memory://x/y/").url == "memory://x/y"
    assert open_store("gs://bucket").url == "gs://bucket"
    assert open_store("s3://bucket/a/b").url == "s3://bucket/a/b"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "http://host/x",
        "https://host/x",
        "S3://bucket/x",
        "kvstack://x",
        "file://relative",
        "file://host/x",
        "file:///x?y",
        "s3://",
        "s3:///x",
        "s3://b",
        "s3://key:hush@bucket/x",
        "s3://bucket/x?X-Amz-Signature=hush",
        "gs://bucket/a//b",
        "gs://bucket/../x",
        "gs://bucket/x#hush",
        "memory://",
        "s3:/bucket/x",
        "gs:/bucket",
        "a\0b",
        "file:///a%00b",
    ],
)
def test_other_paths_are_refused_without_showing_secrets(path: str) -> None:
    with pytest.raises(ValueError, match="Expected") as caught:
        open_store(path)
    assert "hush" not in str(caught.value)


def test_a_url_that_went_through_pathlib_is_no_local_folder() -> None:
    with pytest.raises(ValueError, match="pass the URL as a str"):
        open_store(Path("gs://bucket/a"))


def test_memory_is_shared_in_the_process_and_stores_say_how_parallel_they_are() -> None:
    assert open_store("memory://shared").create("x", b"1") is True
    assert open_store("memory://shared").read("x", limit=9) == b"1"
    assert open_store("memory://other").size("x") is None
    assert open_store("memory://shared").parallel == 2
    assert open_store("s3://bucket").parallel == 64
    assert open_store("x").parallel >= 2


def test_every_error_is_of_one_tree_and_reads_as_public() -> None:
    errors = [NotFound, Damaged, LimitExceeded, StoreError, Unsupported, Untrusted]
    for error in errors:
        assert issubclass(error, CkptError)
        assert error.__module__ == "ckpt"
