"""The demo's claims hold, and it fails when one does not."""

import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

import ckpt

CLAIMS = (
    "equal the uninterrupted run's, bit for bit",
    "not the torn step",
    "verify names what was left",
    "(data=2, model=2) is bit-equal",
    "(data=1, model=1) is bit-equal",
    "restore refuses it and names the object",
    "still verifies",
)


@pytest.mark.campaign
def test_every_claim_of_the_demo_holds(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ckpt", "demo", "--dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    held = [line for line in done.stdout.splitlines() if line.startswith("   ok: ")]
    missing = [c for c in CLAIMS if not any(c in line for line in held)]
    assert not missing, done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("broken", [False, True])
def test_the_demo_fails_when_a_claim_does_not_hold(
    tmp_path: Path, broken: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    from ckpt.cli._demo import flip_a_bit, run_demo

    def play(run: Path) -> None:
        for step in (1, 2):
            ckpt.save({"w": jnp.zeros((512, 512))}, None, run, step=step)
        if broken:
            part = Path(ckpt.open(run, step=1).url) / "parts" / "0.json"
            part.write_bytes(part.read_bytes()[:-2])
        flip_a_bit(run)

    (tmp_path / "mine").touch()
    assert run_demo(str(tmp_path), play=play) == int(broken)
    assert ("FAILED: step 1 still verifies" in capsys.readouterr().out) == broken
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
