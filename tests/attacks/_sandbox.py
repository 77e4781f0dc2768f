"""Runs a victim in its sandbox and judges how it ended."""

import ctypes
import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests._harness.forkserver import ForkServer, Job
from tests.attacks._forge import Forgery

MIB = 200
"""What a hostile checkpoint may take of memory, in MiB, and in `SECONDS` of the CPU."""
SECONDS = 1.0

_IN_ALL_EVENTS = 0xFFF
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A warm process, and an honest run to warm its children up with."""

    server: ForkServer
    honest: Path

    def expose(self, forgery: Forgery, *, network: bool = False) -> dict[str, Any]:
        """Let a victim read the checkpoint; whatever happens it stays in its limits."""
        before = _tree(forgery.run)
        with watched(forgery.outside) as touched:
            [outcome] = self.server.run(
                Job(
                    "tests.attacks._child:attack",
                    [str(forgery.run), str(self.honest), network],
                )
            )
            assert outcome.status == "returned", outcome.stderr[-2000:]
            assert not touched(), "something outside was touched"
        assert _tree(forgery.run) == before
        for name, end in outcome.value["ends"].items():
            assert end["ours"], (name, end)
            assert not end["controls"], (name, end)
            assert end["mib"] < MIB, (name, end)
            assert end["seconds"] < SECONDS, (name, end)
        return outcome.value

    def refuse(self, forgery: Forgery, expected: str, *named: str) -> None:
        """Expect restore and verify to refuse it, with an error that names these."""
        ends = self.refuse_to_restore(forgery, expected, *named)
        assert ends["verify"]["error"], ends["verify"]

    def refuse_to_restore(
        self, forgery: Forgery, expected: str, *named: str
    ) -> dict[str, Any]:
        """Expect restore to refuse what verify may pass: it looks at bytes alone."""
        ends = self.expose(forgery)["ends"]
        for name in ("restore", "restore on a mesh"):
            assert ends[name]["error"] == expected, (name, ends[name])
            for text in named:
                assert text in ends[name]["text"], (name, ends[name])
        return ends


@contextmanager
def watched(folder: Path) -> Iterator[Any]:
    """Watch a folder: the value tells whether anything in it was opened or changed."""
    descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert descriptor >= 0
    try:
        added = _libc.inotify_add_watch(descriptor, bytes(folder), _IN_ALL_EVENTS)
        assert added >= 0, os.strerror(ctypes.get_errno())
        yield lambda: bool(select.select([descriptor], [], [], 0)[0])
    finally:
        os.close(descriptor)


@contextmanager
def listening() -> Iterator[tuple[str, Any]]:
    """Listen on the loopback: the address, and whether anybody called."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        yield address, lambda: bool(select.select([server], [], [], 0)[0])


def _tree(folder: Path) -> dict[str, tuple[int, ...]]:
    found = [(p, p.lstat()) for p in sorted(folder.rglob("*"))]
    return {str(p): (s.st_mode, s.st_size, s.st_mtime_ns, s.st_ino) for p, s in found}
