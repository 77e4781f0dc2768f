"""A bucket for the session, and a store of every kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt import _place
from tests.ckpt._cloud import Cloud, serve_cloud
from tests.ckpt._stores import KINDS, Case, cloud_case, folder_case, memory_case


@pytest.fixture(scope="session")
def cloud() -> Iterator[Cloud]:
    with pytest.MonkeyPatch.context() as patch, serve_cloud() as served:
        # TensorStore reads the address of GCS once: one server serves the session.
        patch.setenv("TENSORSTORE_GCS_HTTP_URL", served.url)
        patch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "token")
        patch.setenv("AWS_ENDPOINT_URL", served.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
        yield served


@pytest.fixture(params=KINDS)
def case(
    request: pytest.FixtureRequest,
    memory_run: Path,
    cloud: Cloud,
    monkeypatch: pytest.MonkeyPatch,
) -> Case:
    match request.param:
        case "folder":
            return folder_case("folder", memory_run)
        case "path":
            monkeypatch.setattr(_place, "_HAS_PLACES", False)
            monkeypatch.setattr(_place, "_NOFOLLOW", 0)
            return folder_case("path", memory_run)
        case "memory":
            return memory_case(f"memory://{memory_run.parent.name}")
        case kind:
            return cloud_case(kind, cloud)
