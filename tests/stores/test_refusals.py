"""What a store refuses for good is one line that says what to do, at once."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import ckpt
from tests._harness.servers import Cloud, Kind, Rule
from tests.stores._places import FilePlace, new_place

S3 = {
    "NoSuchBucket": (404, "no such bucket", "Create the bucket, or correct its name."),
    "InvalidAccessKeyId": (403, "credentials that are wrong", "AWS_ACCESS_KEY_ID"),
    "SignatureDoesNotMatch": (403, "credentials that are wrong", "AWS_PROFILE"),
    "AccessDenied": (403, "credentials that are wrong", "may use this bucket"),
    "ExpiredToken": (400, "credentials that have expired", "AWS_PROFILE"),
    "AuthorizationHeaderMalformed": (400, "another region", "AWS_REGION"),
    "PermanentRedirect": (301, "another region", 'store_options={"region": ...}'),
}
GS = {
    401: ("credentials that are wrong", "gcloud auth application-default login"),
    403: ("credentials that are wrong", "GOOGLE_APPLICATION_CREDENTIALS"),
}
SAID = "the region 'us-east-1' is wrong; expecting 'eu-west-1'"


def check_lines(url: str, found: str, advice: str) -> None:
    """Let reading and writing fail, and look at what they say."""
    for call in (
        lambda: ckpt.steps(url),
        lambda: ckpt.restore(url),
        lambda: ckpt.save({"x": 1}, None, url),
    ):
        with pytest.raises(ckpt.StoreError) as caught:
            call()
        text = str(caught.value)
        assert found in text
        assert advice in text
        assert "\n" not in text
        assert url in text
        assert not any(secret in text for secret in ("hush", "AKIA", "Request"))


@pytest.mark.parametrize("code", S3)
def test_what_s3_refuses(code: str, clouds: Mapping[Kind, Cloud], folder: Path) -> None:
    status, found, advice = S3[code]
    place = new_place("s3", clouds, folder)
    message = f"<Message>{SAID}, AKIAHUSH hush</Message><RequestId>Request</RequestId>"
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code>{message}</Error>"
    if found in ("another region", "no such bucket"):
        body = body.replace(", AKIAHUSH hush", "")
    clouds["s3"].break_with(Rule("answer", status=status, body=body))
    try:
        check_lines(place.url, found, advice)
    finally:
        clouds["s3"].break_with()


def test_the_region_that_is_expected_is_told(
    clouds: Mapping[Kind, Cloud], folder: Path
) -> None:
    place = new_place("s3", clouds, folder)
    code = "<Code>AuthorizationHeaderMalformed</Code>"
    body = f"<Error>{code}<Message>{SAID}</Message></Error>"
    clouds["s3"].break_with(Rule("answer", status=400, body=body))
    try:
        with pytest.raises(ckpt.StoreError, match="expecting 'eu-west-1'"):
            ckpt.latest(place.url)
    finally:
        clouds["s3"].break_with()


@pytest.mark.parametrize("status", GS)
def test_what_gcs_refuses(
    status: int, clouds: Mapping[Kind, Cloud], folder: Path
) -> None:
    place = new_place("gs", clouds, folder)
    error = {"code": status, "message": "hush has no access"}
    clouds["gs"].break_with(
        Rule("answer", status=status, body=json.dumps({"error": error}))
    )
    try:
        check_lines(place.url, *GS[status])
    finally:
        clouds["gs"].break_with()


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_a_bucket_that_does_not_exist(
    kind: str, clouds: Mapping[Kind, Cloud], folder: Path
) -> None:
    url = f"{kind}://never-made/run"
    if kind == "s3":
        check_lines(url, "no such bucket", "Create the bucket, or correct its name.")
    else:
        # Only writes tell of it.
        with pytest.raises(ckpt.StoreError, match="Create the bucket, or correct its"):
            ckpt.save({"x": 1}, None, url)
        with pytest.raises(ckpt.NotFound, match="a bucket that does not exist looks"):
            ckpt.restore(url)
    near = FilePlace(folder / "near")
    ckpt.save({"x": 1}, None, near.root)
    with pytest.raises(ckpt.StoreError, match="no such bucket"):
        ckpt.copy(near.root, url)


def test_a_mirror_that_refuses_is_warned_of_and_the_step_is_saved(
    clouds: Mapping[Kind, Cloud], folder: Path
) -> None:
    near = FilePlace(folder / "near")
    ckpt.save({"x": 1}, None, near.root)
    far = "s3://never-made/run"
    with pytest.warns(UserWarning, match="no such bucket"):
        ckpt.save({"x": 2}, None, near.root, mirror=far)
    with pytest.raises(ckpt.StoreError, match="no such bucket"):
        ckpt.drain(near.root, far)
    assert ckpt.restore(near.root) == {"x": 2}
