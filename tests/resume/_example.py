"""Runs an example as a script, in a member of a job."""

import os
import runpy
import sys
from pathlib import Path


def run_example(file: str, arguments: list[str], log: str) -> int:
    """Run it with its output in a file; return the exit code."""
    sys.argv = [file, *arguments]
    out = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    sys.stdout.flush()
    os.dup2(out, 1)
    try:
        runpy.run_path(str(Path(file)), run_name="__main__")
    except SystemExit as error:
        return int(error.code or 0)
    return 0
