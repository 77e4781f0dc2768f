"""The library is silent, imports little, and has no way to run what a file says."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for name in ("ckpt", "layouts", "pytree")
    for path in ROOT.glob(f"{name}/**/*.py")
)
TESTING = ROOT / "ckpt/testing"
"""Runs the caller's own functions in a process of its own; no other module uses it."""
FOREIGN = {
    *("flax", "optax", "orbax", "rich", "matplotlib", "torch", "zarr", "safetensors"),
    *("yaml", "msgpack", "deepspeed", "hypothesis", "pandas", "etils", "absl", "grain"),
}
RUNS_CODE = {
    *("pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle"),
    *("joblib", "yaml", "importlib", "runpy", "imp", "code"),
}
CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
WORK = """
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
import logging, sys
logging.basicConfig(level=logging.WARNING)
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import ckpt

run = sys.argv[1]
mesh = jax.make_mesh((4, 2), ("data", "model"))
big = np.ones((1024, 1024), np.float32)
state = {
    "w": jax.device_put(big, NamedSharding(mesh, P("data", "model"))),
    "weak": jnp.asarray(0.5), "k": jax.random.key(0), "h": big[::2], "n": 1, "t": "x",
}
ckpt.save(state, mesh, run, metrics={"loss": jnp.float32(1)}, codec="zstd")
ckpt.save_async(state, mesh, run).result()
for like in (None, state):
    ckpt.restore(run, mesh, like=like)
ckpt.restore(run)
ckpt.restore(run, select="w", max_host_bytes=1 << 20)
ckpt.remesh(state, jax.make_mesh((2, 4), ("data", "model")))
str(ckpt.plan(run, mesh)), str(ckpt.verify(run)), str(ckpt.diff(run, run))
ckpt.open(run)["w"][0]
ckpt.prune(run, keep=ckpt.Keep(last=1), orphan_age=0)
assert ckpt.steps(run) == [1] and ckpt.latest(run) == 1
"""


def run_python(code: str, *arguments: str) -> tuple[str, int]:
    """Return what a Python of its own prints, warnings being errors, and its end."""
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    return done.stdout + done.stderr, done.returncode


@pytest.mark.parametrize("where", ["folder", "memory"])
def test_nothing_is_printed_and_nobody_is_warned(where: str, memory_run: Path) -> None:
    run = str(memory_run) if where == "folder" else "memory://quiet"
    assert run_python(WORK, run) == ("", 0)


@pytest.mark.parametrize("noise", ["print(1)", "logging.warning('1')", "1 / 0"])
def test_a_noise_would_be_heard(noise: str) -> None:
    output, _ = run_python(f"import logging\nlogging.basicConfig()\n{noise}")
    assert output


def test_importing_brings_nothing_that_is_not_needed() -> None:
    # jax and tensorstore have needs of their own, which are not ours.
    code = (
        "import sys, jax, tensorstore; before = set(sys.modules);"
        "import ckpt; print(*(set(sys.modules) - before))"
    )
    output, end = run_python(code)
    assert end == 0
    loaded = {name.partition(".")[0] for name in output.split()}
    assert {"ckpt", "layouts", "pytree"} <= loaded
    assert not loaded & FOREIGN


def test_importing_starts_no_backend_and_no_thread() -> None:
    code = (
        "import ckpt, threading, jax._src.xla_bridge as b;"
        "print(threading.active_count(), len(b._backends))"
    )
    assert run_python(code) == ("1 0\n", 0)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_module_can_run_what_a_file_says(path: Path) -> None:
    allowed = ["importlib", "importlib.util"] if path.parent == TESTING else []
    assert [d for d in find_dangers(path.read_text()) if d not in allowed] == []
    assert path.parent == TESTING or "testing" not in path.read_text()


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import os.path, yaml.x",
        "def f():\n    import marshal",
        "eval('1')",
        "f = exec",
        "__import__('os')",
        "import numpy as np\nnp.load(p)",
        "np.lib.format.read_array(f, allow_pickle=True)",
        "builtins.eval('1')",
    ],
)
def test_the_scan_finds_dangers(code: str) -> None:
    assert find_dangers(code)


def test_the_scan_passes_what_is_harmless() -> None:
    assert not find_dangers("import re\nre.compile('a').match(x)\nevaluate(1)")
    assert not find_dangers("from ._pickle import decode_pickle")


def find_dangers(code: str) -> list[str]:
    """Return the imports, names and arguments through which a file could run code."""
    found: list[str] = []
    for node in ast.walk(ast.parse(code)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # A relative one is of this package, whatever its name.
            names = [] if node.level else [node.module or ""]
        found += [n for n in names if n.partition(".")[0] in RUNS_CODE]
        if isinstance(node, ast.Name) and node.id in CALLS:
            found.append(node.id)
        if isinstance(node, ast.Attribute) and node.attr in {*CALLS, "load", "loads"}:
            owner = ast.unparse(node.value)
            if owner not in ("re", "json"):
                found.append(f"{owner}.{node.attr}")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.append("allow_pickle")
    return found
