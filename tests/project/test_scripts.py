"""The checks of the project can fail: each catches what is planted for it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("ckpt", "layouts", "pytree", "scripts"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_import_contracts_hold(copy: Path) -> None:
    done = lint_imports(copy)
    assert (done.returncode, "0 broken" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize(
    ("module", "planted"),
    [
        ("pytree", "import layouts"),
        ("layouts", "import ckpt"),
        ("pytree", "import os"),
        ("layouts", "from pathlib import Path"),
        ("layouts", "import tensorstore"),
        ("ckpt", "import pickle"),
        ("ckpt", "def later(): import torch"),
    ],
)
def test_import_contracts_catch_a_wrong_import(
    copy: Path, module: str, planted: str
) -> None:
    (copy / module / "_planted.py").write_text(f"{planted}\n")
    done = lint_imports(copy)
    assert done.returncode == 1
    assert f"{module}._planted" in done.stdout


@pytest.mark.parametrize(
    ("lengths", "status"),
    [
        ({"ckpt/a.py": 400, "layouts/b.py": 150, "pytree/c.py": 1}, 0),
        ({"ckpt/a.py": 401, "layouts/b.py": 1, "pytree/c.py": 1}, 1),
        ({"ckpt/a.py": 151, "layouts/b.py": 151, "pytree/c.py": 1}, 1),
        ({}, 1),
    ],
)
def test_size_fails_over_its_limits(
    tmp_path: Path, lengths: dict[str, int], status: int
) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("ckpt", "layouts", "pytree"):
        (tmp_path / name).mkdir()
    for path, lines in lengths.items():
        (tmp_path / path).write_text("x = 1\n" * lines)
    done = subprocess.run(
        [tmp_path / "scripts/size"], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert f"max {max(lengths.values(), default=0)}" in done.stdout
