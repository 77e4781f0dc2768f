"""What saving and restoring add to the memory of a process; CKPT_FULL=1: full size."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.campaign

FULL = bool(os.environ.get("CKPT_FULL"))
TOTAL = 1024 if FULL else 256
LEAF = 512
MIB = 1 << 20


def _run(job: str, *arguments: Any) -> dict[str, Any]:
    settings = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    found = subprocess.run(
        [sys.executable, "-m", "tests.ckpt._memory", job, json.dumps(arguments)],
        env=os.environ | settings,
        cwd=Path(__file__).parents[2],
        check=False,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.parametrize("budget", [None, 32 * MIB])
def test_matrices_are_saved_and_restored_in_little_memory(
    disk_run: Path, budget: int | None
) -> None:
    saved = _run("save_matrices", str(disk_run), TOTAL, budget)
    assert saved["added"] <= 64
    restored = _run("restore_matrices", str(disk_run), TOTAL, budget)
    assert restored["equal"]
    assert restored["added"] <= TOTAL + (256 if budget is None else 64)


def test_a_leaf_larger_than_the_budget_is_saved_and_restored(disk_run: Path) -> None:
    found = _run("one_leaf", str(disk_run), LEAF, 32 * MIB)
    assert found["equal"]
    assert found["save"] <= 64
    assert found["restore"] <= LEAF + 64


def test_memory_is_flat_over_fifty_saves(disk_run: Path) -> None:
    assert _run("many_saves", str(disk_run), 32, 50)["grown"] <= 20
