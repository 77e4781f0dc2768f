"""Settings that every test shares: eight CPU devices, profiles and run folders."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import pytest

from tests._harness.servers import Cloud, Kind, environment, serve_clouds

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

ROOT = Path(__file__).parents[1]

# Tests start Python processes of their own, which must find the same packages.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# A shared machine makes single examples slow at random, so no profile has a deadline.
for name, examples in {"quick": 5, "default": 25, "ci": 60, "full": 2000}.items():
    hypothesis.settings.register_profile(
        name,
        deadline=None,
        max_examples=examples,
        derandomize=name == "ci",
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


# A run that is told to end unmounts what it mounted, as it does at Ctrl-C.
signal.signal(signal.SIGTERM, signal.default_int_handler)

# A plain `su` keeps the path of who became root, on which mkfs and losetup are not.
os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out tests that need root, for others; CI fails if one was left out."""
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root"))


@pytest.fixture(scope="session")
def clouds() -> Iterator[dict[Kind, Cloud]]:
    """S3 and GCS for the session, which its environment names.

    TensorStore reads the address of GCS once in a process, so there is one of each.
    """
    with pytest.MonkeyPatch.context() as patch, serve_clouds() as served:
        for name, value in environment(served).items():
            patch.setenv(name, value)
        yield served


@pytest.fixture
def disk_run(tmp_path: Path) -> Path:
    """The path of a run that does not exist yet, on the disk of temporary files."""
    return tmp_path / "run"


@pytest.fixture
def memory_run() -> Iterator[Path]:
    """The path of a run that does not exist yet, in memory where the system can."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="ckpt-", dir=shm if shm.is_dir() else None))
    yield folder / "run"
    shutil.rmtree(folder)
