"""What the packages say of themselves is there, and holds."""

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = ("ckpt", "layouts", "pytree")


def run_examples(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests._harness.examples", name],
        cwd=folder,
        env=dict(os.environ) | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", PACKAGES)
def test_examples_hold(name: str, tmp_path: Path) -> None:
    done = run_examples(name, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("example", "status"), [(">>> 1 + 1\n2", 0), (">>> 1 + 1\n3", 1), ("no example", 1)]
)
def test_an_example_that_does_not_hold_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: str, status: int
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}:{tmp_path}")
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "__init__.py").touch()
    (tmp_path / "planted" / "_module.py").write_text(f'"""{example}\n"""\n')
    assert run_examples("planted", tmp_path).returncode == status


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_are_listed_once_and_documented(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__doc__
    assert len(package.__all__) == len(set(package.__all__)) > 0
    for public in package.__all__:
        value = getattr(package, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            # A dataclass without a docstring is given its signature as one.
            doc = value.__doc__ or ""
            assert doc, f"{name}.{public} has no docstring"
            assert not doc.startswith(f"{public}("), f"{name}.{public} has no docstring"


@pytest.mark.parametrize("name", PACKAGES)
def test_types_are_shipped(name: str) -> None:
    folder = importlib.import_module(name).__path__[0]
    assert (Path(folder) / "py.typed").is_file()
