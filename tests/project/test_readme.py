"""The Python of the README runs as it is printed."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests._harness.servers import environment, serve_clouds

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "tests" / "data" / "peers"
JOB = """
import sys
import jax, jax.numpy as jnp
import ckpt
from jax.sharding import NamedSharding, PartitionSpec as P
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
"""


def read_blocks() -> list[str]:
    text = (ROOT / "README.md").read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def start(code: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        cwd=folder,
        env=dict(os.environ) | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_code_of_the_readme_runs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, together, job, stores, others = read_blocks()
    with serve_clouds() as clouds:
        for name, value in environment(clouds).items():
            monkeypatch.setenv(name, value)
        done = start(f"{alone}\n{stores}", tmp_path)
        output, errors = done.communicate(timeout=120)
        assert done.returncode == 0, errors
        near = tmp_path / "runs/near"
        assert f"[31] {near}" in output
        assert clouds["gs"].names("runs/a/steps/") == ["runs/a/steps/30.json"]
    shutil.rmtree(tmp_path / "runs")
    done = start(f"{alone}\n{together}", tmp_path)
    output, errors = done.communicate(timeout=120)
    assert done.returncode == 0, errors
    assert (tmp_path / "runs/a/steps/30.json").is_file()
    assert "(4, 8)" in output

    shutil.copytree(PEERS / "st_hub_sharded", tmp_path / "models/mini")
    done = start(f"import jax, ckpt\n{others}", tmp_path)
    output, errors = done.communicate(timeout=120)
    assert done.returncode == 0, errors
    assert output.startswith("safetensors [[")
    assert output.endswith("(16, 16)\n")
    mine = load_file(tmp_path / "models/mine/model.safetensors")
    assert mine["layer_5.kernel"].shape == (16, 16)

    for step in (0, 1):
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        pair = [start(JOB + job, tmp_path, address, str(n)) for n in (0, 1)]
        outputs = [process.communicate(timeout=120) for process in pair]
        assert [process.returncode for process in pair] == [0, 0], outputs
        assert all(f"step={step}" in text for text, _ in outputs)
        assert all(f"{step} (1024, 8)" in text for text, _ in outputs)
