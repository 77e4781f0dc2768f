"""Commit records, and the names under which they stand."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

import layouts
from layouts import CommitRecord, CorruptLayout, InvalidLayout, UnknownFeature
from tests.layouts._documents import COMMIT, change, example_record, seal, unseal

KIND = "ckpt-commit"
BODY = unseal(example_record().encode())
STEPS = st.integers(0, (1 << 63) - 1)
COMMITS = st.text("0123456789abcdef", min_size=8, max_size=64)


@given(STEPS, COMMITS, st.integers(1, 64 << 20), st.binary(min_size=32, max_size=32))
def test_a_record_is_parsed_as_it_was_encoded(
    step: int, commit: str, size: int, sha256: bytes
) -> None:
    record = CommitRecord(step, commit, size, sha256.hex())
    assert layouts.parse_record(record.encode(), step) == record


def test_the_body_is_plain_json_that_others_can_read() -> None:
    body = unseal(example_record().encode())
    assert body == {
        "step": 7,
        "commit": COMMIT,
        "directory": f"7-{COMMIT}",
        "manifest": [1234, "ab" * 32],
    }


@pytest.mark.parametrize(
    ("at", "new", "message"),
    [
        ((), [], "a commit record with the fields"),
        ((), "x", "a commit record with the fields"),
        (("more",), 1, "a commit record with the fields"),
        (("commit",), ..., "a commit record with the fields"),
        (("step",), 8, "the record of step 7, found that of 8"),
        (("step",), 7.0, r"the record of step 7, found that of 7\.0"),
        (("step",), "7", "the record of step 7, found that of '7'"),
        (("step",), [[[[7]]]], "the record of step 7"),
        (("commit",), 12345678, "a commit id, found 12345678"),
        (("commit",), "..", "a commit id"),
        (("commit",), "", "a commit id"),
        (("commit",), "0123456789ABCDEF", "a commit id"),
        (("commit",), "a" * 65, "a commit id"),
        (("commit",), COMMIT + "/..", "a commit id"),
        (("commit",), "fedcba9876543210", "the directory 7-fedcba9876543210"),
        (("directory",), "../7-" + COMMIT, f"the directory 7-{COMMIT}, found"),
        (("directory",), "/7-" + COMMIT, f"the directory 7-{COMMIT}, found"),
        (("directory",), "7-" + COMMIT + "/", f"the directory 7-{COMMIT}, found"),
        (("directory",), None, f"the directory 7-{COMMIT}, found None"),
        (("manifest",), {}, "the bytes and SHA-256 of the manifest"),
        (("manifest",), "ab", "the bytes and SHA-256 of the manifest"),
        (("manifest",), [1234], "the bytes and SHA-256 of the manifest"),
        (("manifest", 0), 0, "the bytes of the manifest from 1"),
        (("manifest", 0), -1, "the bytes of the manifest from 1"),
        (("manifest", 0), True, "the bytes of the manifest from 1"),
        (("manifest", 0), 1 << 40, "the bytes of the manifest from 1"),
        (("manifest", 1), "ab" * 31, "the SHA-256 of the manifest"),
        (("manifest", 1), "AB" * 32, "the SHA-256 of the manifest"),
        (("manifest", 1), 5, "the SHA-256 of the manifest"),
    ],
    ids=str,
)
def test_a_tampered_record_is_refused(
    at: tuple[Any, ...], new: Any, message: str
) -> None:
    with pytest.raises(InvalidLayout, match=message) as caught:
        layouts.parse_record(seal(KIND, change(BODY, at, new)), 7)
    assert caught.type is InvalidLayout


def test_a_bool_is_not_the_step_1() -> None:
    record = CommitRecord(1, COMMIT, 1, "ab" * 32)
    body = change(unseal(record.encode()), ("step",), True)
    with pytest.raises(InvalidLayout, match="the record of step 1, found that of True"):
        layouts.parse_record(seal(KIND, body), 1)


def test_the_record_of_another_step_or_kind_or_version_is_refused() -> None:
    data = example_record().encode()
    with pytest.raises(InvalidLayout, match="the record of step 8, found that of 7"):
        layouts.parse_record(data, 8)
    with pytest.raises(InvalidLayout, match="expected ckpt-commit, found 'ckpt-part'"):
        layouts.parse_record(seal("ckpt-part", BODY), 7)
    with pytest.raises(UnknownFeature, match="install a newer ckpt-jax"):
        layouts.parse_record(seal(KIND, BODY, version=9), 7)


def test_every_byte_of_a_record_counts() -> None:
    data = example_record().encode()
    for at in range(len(data)):
        for changed in (data[:at], data[:at] + b" " + data[at:]):
            with pytest.raises(CorruptLayout):
                layouts.parse_record(changed, 7)
        flipped = bytes([data[at] ^ 1])
        with pytest.raises(CorruptLayout):
            layouts.parse_record(data[:at] + flipped + data[at + 1 :], 7)


@given(STEPS, COMMITS)
def test_names_are_read_back_as_the_steps_they_were_made_of(
    step: int, commit: str
) -> None:
    name = layouts.record_name(step)
    assert name == f"steps/{step}.json"
    assert layouts.step_of_record(name) == step
    note = layouts.attempt_name(step, commit)
    assert note == f"steps/{layouts.attempt_directory(step, commit)}.attempt"
    assert layouts.attempt_of_name(note) == (step, commit)
    assert layouts.step_of_record(note) is None
    assert layouts.attempt_of_name(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "steps/",
        "steps/.json",
        "steps/-1.json",
        "steps/+1.json",
        "steps/1",
        "steps/1.json.tmp",
        "steps/01.json",
        "steps/1_0.json",
        "steps/1.json\n",
        "steps/ 1.json",
        "steps/\u0661.json",
        "steps/a/1.json",
        "steps/1e3.json",
        "steps/" + "9" * 20 + ".json",
        "steps/01-abcdef01.attempt",
        "steps/1-ABCDEF01.attempt",
        "steps/1-abcdef0.attempt",
        "steps/1-abcdef01.attempt\n",
    ],
)
def test_other_names_below_steps_are_nothing(name: str) -> None:
    assert layouts.step_of_record(name) is None
    assert layouts.attempt_of_name(name) is None
