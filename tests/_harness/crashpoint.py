"""Run a command and make one of its calls that change files go wrong.

The work is done by `crashpoint.c`, preloaded into the command. Call number N of those
under a path prefix, over all threads, meets the fault of the mode:

* `kill`: the process is killed before the call.
* `stop`: the process is stopped before the call, until someone sends SIGCONT.
* `torn`: half of a write is done, then the process is killed.
* `short`: half of a write is done, and the call says so.
* `eio`, `enospc`: the call fails, once.
* `full`: this call and every later one that needs space fails with ENOSPC.
* `nosync`: every fsync says that it was done and does nothing.
* `count`: nothing goes wrong.

`torn` and `short` count only writes of two bytes or more, `enospc` and `full` leave out
removals, and `nosync` counts only fsync, so that N = 1, 2, 3 ... never strikes in vain.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SOURCE = Path(__file__).with_name("crashpoint.c")

Mode = Literal[
    "count", "kill", "stop", "torn", "short", "eio", "enospc", "full", "nosync"
]


@dataclass(frozen=True, slots=True)
class Call:
    """One counted call: its number, its name without variants, and the path."""

    number: int
    name: str
    path: str


def build_shim() -> Path:
    """Compile the shim unless this very source was compiled before."""
    source = SOURCE.read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    shim = cache / "ckpt-jax-tests" / f"{hashlib.sha256(source).hexdigest()[:16]}.so"
    if shim.exists():
        return shim
    shim.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=shim.parent) as folder:
        fresh = Path(folder) / shim.name
        flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wno-format-truncation"]
        subprocess.run(
            ["gcc", *flags, "-o", str(fresh), str(SOURCE)],
            check=True,
            stdin=subprocess.DEVNULL,
        )
        fresh.rename(shim)
    return shim


def preload(environ: dict[str, str]) -> dict[str, str]:
    """Return the environment with the shim preloaded but not armed."""
    return environ | {"LD_PRELOAD": str(build_shim())}


def run_with_fault(
    argv: Sequence[str | os.PathLike[str]],
    prefix: str | os.PathLike[str],
    *,
    at: int,
    mode: Mode,
    log: Path | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run a command whose call number `at` under `prefix` meets the fault of `mode`.

    The return code is -9 after `kill` and `torn`. With `log`, a line for every call is
    appended to that file, which must lie outside of `prefix`.
    """
    environ = preload(dict(os.environ)) | {
        "CRASHPOINT_PREFIX": os.path.realpath(prefix),
        "CRASHPOINT_MODE": mode,
        "CRASHPOINT_AT": str(at),
        "CRASHPOINT_LOG": str(log or ""),
    }
    return subprocess.run(
        [os.fspath(word) for word in argv],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def list_calls(
    argv: Sequence[str | os.PathLike[str]],
    prefix: str | os.PathLike[str],
    *,
    timeout: float = 60,
) -> tuple[Call, ...]:
    """Run a command to its end and return its calls under `prefix`, in order."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "calls"
        done = run_with_fault(
            argv, prefix, at=0, mode="count", log=log, timeout=timeout
        )
        sys.stderr.write(done.stderr)
        done.check_returncode()
        return read_calls(log)


def count_calls(
    argv: Sequence[str | os.PathLike[str]],
    prefix: str | os.PathLike[str],
    *,
    timeout: float = 60,
) -> int:
    """Run a command to its end and return how many calls it made under `prefix`."""
    return len(list_calls(argv, prefix, timeout=timeout))


def read_calls(log: Path) -> tuple[Call, ...]:
    """Read a log of calls, ordered by number."""
    lines = log.read_text().splitlines() if log.exists() else []
    calls = (line.split(" ", 2) for line in lines)
    return tuple(
        sorted(
            (Call(int(number), name, path) for number, name, path in calls),
            key=lambda call: call.number,
        )
    )
