"""What a victim does with a checkpoint, in a process of its own that has limits."""

import ctypes
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

import ckpt

_SECONDS = 60
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SPACE = 8 << 30
"""So much address space on top: an attack that allocates more dies, not the machine."""


def attack(run: str, honest: str, network: bool) -> dict[str, Any]:
    """Do all that reads a checkpoint and say of each how it ended and what it cost."""
    if not network:
        _leave_network()
    warnings.simplefilter("ignore")
    mesh = jax.make_mesh((2,), ("data",))
    # The first use of JAX and of each library costs memory that is not the attack's.
    for name in ("restore on a mesh", "show"):
        _victims(honest, mesh)[name]()
    known = set(sys.modules)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    found = {name: _measure(do) for name, do in _victims(run, mesh).items()}
    return {"ends": found, "modules": sorted(set(sys.modules) - known)}


def read_twice(run: str, swap: str) -> dict[str, Any]:
    """Open a checkpoint, put `swap` in place of an object, and read that."""
    opened = ckpt.open(run)
    [target] = Path(run).glob("1-*/w/c/0/0")
    os.replace(swap, target)
    return _measure(lambda: opened["w"][...])


def touch(path: str) -> None:
    """Do what no attack may do: read a file outside of the checkpoint."""
    Path(path).read_bytes()


def _victims(run: str, mesh: Any) -> dict[str, Callable[[], Any]]:
    return {
        "restore": lambda: ckpt.restore(run),
        "restore on a mesh": lambda: ckpt.restore(run, mesh),
        "show": lambda: _show(run),
        "plan": lambda: str(ckpt.plan(run, {"data": 2})),
        "verify": lambda: _verify(run),
        "diff": lambda: str(ckpt.diff(run, run)),
        "steps": lambda: ckpt.steps(run),
    }


def _show(run: str) -> str:
    opened = ckpt.open(run)
    arrays = [opened[path] for path in opened]
    shown = (opened, opened.tree, opened.metrics, opened.manifest.structure, *arrays)
    return "\n".join([*map(_text, shown), opened._repr_html_()])


def _verify(run: str) -> str:
    """Raise what is wrong, so that a report counts as an error of its own kind."""
    report = ckpt.verify(run)
    if not report.ok:
        raise ckpt.Damaged(str(report))
    return str(report)


def _measure(victim: Callable[[], Any]) -> dict[str, Any]:
    Path("/proc/self/clear_refs").write_text("5")
    before, began = _memory("VmRSS"), time.process_time()
    end: dict[str, Any] = {"error": None, "text": "", "ours": True}
    try:
        with _deadline():
            value = victim()
            end["text"] = value if isinstance(value, str) else _text(value)
            del value
    except BaseException as error:
        end["error"] = type(error).__name__
        end["text"] = str(error)
        end["ours"] = isinstance(error, ckpt.CkptError)
    end["seconds"] = time.process_time() - began
    end["mib"] = _memory("VmHWM") - before
    end["controls"] = any(ord(c) < 32 and c != "\n" for c in end["text"])
    end["text"] = end["text"][:100_000]
    return end


def _text(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # Python refuses to print integers of many digits
        return ""


@contextmanager
def _deadline() -> Any:
    """Stop a victim that hangs: what it uses of the processor is measured apart."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"Expected an end, found none in {_SECONDS} s")

    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def _memory(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith(field)) / 1024


def _leave_network() -> None:
    """Move to a network that has no interface up, not even the loopback."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWNET | _CLONE_NEWUSER
    if libc.unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")
