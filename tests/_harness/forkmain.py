"""The warm process of `forkserver`: one line of jobs in, one line of outcomes out."""

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
import warnings
from dataclasses import dataclass
from typing import IO, Any


@dataclass(frozen=True, slots=True)
class Child:
    """A job in progress: its process, its answer and its standard error."""

    pid: int
    answer: IO[bytes]
    stderr: IO[bytes]


def start(job: dict[str, Any], shim: ctypes.CDLL) -> Child:
    """Fork a child that does the job."""
    reading, writing = os.pipe()
    stderr = os.fdopen(os.memfd_create("stderr"), "w+b")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid:
        os.close(writing)
        return Child(pid, os.fdopen(reading, "rb"), stderr)
    status = 1
    try:
        os.dup2(stderr.fileno(), 1)
        os.dup2(stderr.fileno(), 2)
        signal.alarm(job["timeout"])
        answer = json.dumps(work(job, shim)).encode()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Never back into the loop that serves, and no exit hook of the warm process.
        sys.stderr.flush()
        os._exit(status)


def work(job: dict[str, Any], shim: ctypes.CDLL) -> dict[str, Any]:
    """Call the target under its fault and say how it ended."""
    module, _, name = job["target"].partition(":")
    target = getattr(importlib.import_module(module), name)
    if fault := job["fault"]:
        prefix = os.path.realpath(fault["prefix"]).encode()
        mode, log = fault["mode"].encode(), fault["log"].encode()
        if shim.crashpoint_arm(prefix, mode, ctypes.c_long(fault["at"]), log):
            raise ValueError(f"Expected a mode of the shim, found {fault['mode']!r}")
    try:
        end: dict[str, Any] = {"status": "returned", "value": target(*job["args"])}
    except BaseException as error:
        shim.crashpoint_disarm()
        traceback.print_exc()
        end = {"status": "raised", "error": type(error).__name__, "message": str(error)}
    shim.crashpoint_disarm()
    counts = {"calls": shim.crashpoint_calls(), "faults": shim.crashpoint_faults()}
    return end | counts


def finish(child: Child) -> dict[str, Any]:
    """Wait for a child and say how it ended."""
    with child.answer, child.stderr:
        answer = child.answer.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        child.stderr.seek(0)
        stderr = child.stderr.read().decode(errors="replace")
    if answer and status == 0:
        return json.loads(answer) | {"stderr": stderr}
    ends = {-signal.SIGKILL: "killed", -signal.SIGALRM: "hung"}
    return {"status": ends.get(status, "died"), "stderr": f"{stderr}\nexit {status}"}


def main(modules: list[str]) -> None:
    """Import the modules, then serve until standard input ends."""
    shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        children = [start(job, shim) for job in json.loads(line)]
        print(json.dumps([finish(child) for child in children]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
