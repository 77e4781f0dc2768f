"""Measures one call inside this process: time, memory and bytes read."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """What one call cost.

    `added_bytes` is the peak resident memory during the call over the resident
    memory before it. `read_bytes` counts what system calls read, from the page cache
    too; `device_read_bytes` what came from a block device. Pages touched through mmap
    show only in the latter.
    """

    seconds: float
    cpu_seconds: float
    added_bytes: int
    read_bytes: int
    device_read_bytes: int
    written_bytes: int


def measure_call(
    call: Callable[[], Any], *, ready: Callable[[], None] | None = None
) -> tuple[Sample, Any]:
    """The cost of `call()` and its result; `ready()` returns when it may begin."""
    _release_free_memory()
    if ready is not None:
        ready()
    before_io = _read_counters("/proc/self/io")
    # 5 resets the peak (VmHWM) to the present size: see man 5 proc_pid_clear_refs.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    resident = _read_status("VmRSS")
    cpu = time.process_time()
    start = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - start
    cpu = time.process_time() - cpu
    peak = _read_status("VmHWM")
    after_io = _read_counters("/proc/self/io")
    sample = Sample(
        seconds=seconds,
        cpu_seconds=cpu,
        added_bytes=max(0, peak - resident),
        read_bytes=after_io["rchar"] - before_io["rchar"],
        device_read_bytes=after_io["read_bytes"] - before_io["read_bytes"],
        written_bytes=after_io["wchar"] - before_io["wchar"],
    )
    return sample, result


def measure_resident() -> int:
    """The bytes this process holds once free heap is given back."""
    _release_free_memory()
    return _read_status("VmRSS")


def _release_free_memory() -> None:
    """Gives freed heap back, so that reusing it later shows as memory again."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _read_counters(path: str) -> dict[str, int]:
    lines = Path(path).read_text(encoding="ascii").splitlines()
    return {name: int(value) for name, value in (x.split(":") for x in lines)}


def _read_status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}.")
