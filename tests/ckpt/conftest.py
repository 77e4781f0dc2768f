"""A store of every kind."""

from pathlib import Path

import pytest

from ckpt import _place
from tests._harness.servers import Cloud, Kind
from tests.ckpt._stores import KINDS, Case, cloud_case, folder_case, memory_case


@pytest.fixture(params=KINDS)
def case(
    request: pytest.FixtureRequest,
    memory_run: Path,
    clouds: dict[Kind, Cloud],
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
        case "s3":
            return cloud_case(clouds["s3"])
        case _:
            return cloud_case(clouds["gs"])
