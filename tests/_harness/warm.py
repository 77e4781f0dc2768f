"""A process that has imported what is needed, and is asked over its pipes.

Importing jax takes over a second, forking a process that has done so a millisecond. The
warm process has imported it but has not started its backend, whose threads would not
live on in a child.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests._harness.crashpoint import preload

ROOT = Path(__file__).parents[2]


class WarmProcess:
    """Runs a module that takes a line of JSON and answers with one, again and again."""

    def __init__(
        self, module: str, *arguments: str, settings: Mapping[str, str] | None = None
    ) -> None:
        fixed = {"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=preload(dict(os.environ)) | fixed | dict(settings or {}),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, request: Any) -> Any:
        """Send one request and return its answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("Expected pipes to the warm process, found none")
        with suppress(BrokenPipeError):
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise RuntimeError(f"The warm process ended: {self._process.wait()}")
        return json.loads(answer)

    def terminate(self) -> None:
        """Tell it to end now, in the middle of a request."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill it; its children die with it if they asked for that."""
        self._process.kill()

    def close(self) -> None:
        """Close its pipes, at which it ends, and wait for it."""
        self._process.communicate()
