"""Saves that are under way when the script ends."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ckpt

SCRIPT = """
import sys
import numpy as np
import ckpt
tree = {f"w{n}": np.full((1200, 1024), n, np.float32) for n in range(4)}
ckpt.save_async(tree, None, sys.argv[1], step=3)
if sys.argv[2] == "raise":
    raise SystemExit(0)
"""


@pytest.mark.parametrize("end", ["return", "raise"])
def test_a_script_that_ends_waits_for_its_last_save(end: str, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), end],
        check=True,
        timeout=120,
    )
    assert ckpt.steps(tmp_path / "run") == [3]
    assert ckpt.verify(tmp_path / "run").ok
    found = ckpt.restore(tmp_path / "run")
    for n in range(4):
        np.testing.assert_array_equal(
            found[f"w{n}"], np.full((1200, 1024), n, np.float32)
        )
