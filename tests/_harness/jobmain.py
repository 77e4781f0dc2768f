"""The warm process of `jobs`, and the members of jobs that it forks."""

import ctypes
import faulthandler
import importlib
import json
import os
import signal
import socket
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
CLONE_NEWNS = 0x20000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


def main(modules: list[str]) -> None:
    """Import the modules, then fork and reap until standard input ends."""
    shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        if pid := request.get("reap"):
            answer: Any = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        else:
            setup = request["start"]
            answer = [fork(setup, n, shim) for n in range(setup["processes"])]
        print(json.dumps(answer), flush=True)


def fork(setup: dict[str, Any], member: int, shim: ctypes.CDLL) -> int:
    """Fork a member of a job and return its process number."""
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        log = os.open(f"{setup['folder']}/{member}.log", os.O_CREAT | os.O_WRONLY)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        serve(setup, member, shim)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Never back into the loop of the warm process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def serve(setup: dict[str, Any], member: int, shim: ctypes.CDLL) -> None:
    """Join the job, then do what is asked until the job ends."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(setup["address"])
        link.sendall(f"{member}\n".encode())
        if setup["private"]:
            make_private(setup["private"])
        join(setup, member)
        answer: dict[str, Any] = {"status": "returned", "value": "joined"}
        with link.makefile("rb") as requests:
            while True:
                link.sendall(json.dumps(answer).encode() + b"\n")
                request = json.loads(requests.readline() or '{"target": ""}')
                if not request["target"]:
                    break
                answer = work(request, shim)
    import jax

    jax.distributed.shutdown()


def join(setup: dict[str, Any], member: int) -> None:
    """Make this process one of the job."""
    import jax

    jax.config.update("jax_num_cpu_devices", setup["devices"])
    for name, value in setup["config"].items():
        jax.config.update(name, value)
    if setup["processes"] > 1:
        jax.distributed.initialize(
            setup["coordinator"],
            num_processes=setup["processes"],
            process_id=member,
            heartbeat_timeout_seconds=setup["heartbeat"],
        )
    jax.devices()


def make_private(folder: str) -> None:
    """Put an empty file system in place of a folder, for this process alone."""
    _call("unshare", CLONE_NEWNS)
    _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    _call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", 0, None)


def work(request: dict[str, Any], shim: ctypes.CDLL) -> dict[str, Any]:
    """Call the target under its fault and say how it ended."""
    module, _, name = request["target"].partition(":")
    if fault := request["fault"]:
        prefix = os.path.realpath(fault["prefix"]).encode()
        mode, log = fault["mode"].encode(), fault["log"].encode()
        if shim.crashpoint_arm(prefix, mode, ctypes.c_long(fault["at"]), log):
            raise ValueError(f"Expected a mode of the shim, found {fault['mode']!r}")
    try:
        target = getattr(importlib.import_module(module), name)
        value = target(*request["args"])
        json.dumps(value)
        end: dict[str, Any] = {"status": "returned", "value": value}
    except BaseException as error:
        shim.crashpoint_disarm()
        traceback.print_exc()
        end = {"status": "raised", "error": type(error).__name__, "message": str(error)}
    shim.crashpoint_disarm()
    sys.stdout.flush()
    sys.stderr.flush()
    counts: dict[str, int] = {}
    if fault:
        counts = {"calls": shim.crashpoint_calls(), "faults": shim.crashpoint_faults()}
    return end | counts


def count_file_bytes() -> tuple[int, int]:
    """Return how many bytes this process has read and written so far.

    What comes over sockets by recv and goes by send, as the coordination service's
    traffic does and what gloo receives, is not counted; what gloo sends is.
    """
    lines = Path("/proc/self/io").read_text().splitlines()
    found = dict(line.split(": ") for line in lines)
    return int(found["rchar"]), int(found["wchar"])


def _call(function: str, *arguments: Any) -> None:
    if getattr(_libc, function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{function}{arguments}: {os.strerror(number)}")


if __name__ == "__main__":
    main(sys.argv[1:])
