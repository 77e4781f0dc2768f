"""Jobs of several processes that take one case after another, killed at any moment.

A warm process has imported jax and forks the members of each job, which costs
milliseconds instead of seconds. Members join one `jax.distributed` job on localhost
and call what they are told, all at the same time, until the job ends.
"""

import json
import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tests._harness.forkserver import Fault
from tests._harness.warm import WarmProcess

START_SECONDS = 60.0


Status = Literal["returned", "raised", "killed", "aborted", "hung", "died"]
_ENDS: dict[int, Status] = {-signal.SIGKILL: "killed", -signal.SIGABRT: "aborted"}


@dataclass(frozen=True, slots=True)
class Setup:
    """How the members of a job are: `config` is of jax, `heartbeat` in seconds.

    `private` is a folder that exists; each member sees an empty one of its own in its
    place (needs root).
    """

    processes: int
    devices: int = 1
    heartbeat: int = 100
    private: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended in one member, and what the shim counted in it.

    It `returned` or `raised`; or the member ended in it: `killed` by SIGKILL, `aborted`
    as JAX does when it loses the job, `hung` past the deadline, `died` otherwise.
    """

    member: int
    status: Status
    value: Any = None
    error: str = ""
    message: str = ""
    calls: int = 0
    faults: int = 0
    output: str = field(default="", repr=False)


class JobServer:
    """A warm process that has imported `modules`; use it as a context manager."""

    def __init__(self, *modules: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="jobs-")
        self._jobs = 0
        self._warm = WarmProcess("tests._harness.jobmain", *modules)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Members die with the process that forked them.
        self._warm.kill()
        self._warm.close()
        self._folder.cleanup()

    def start(self, setup: Setup) -> "Job":
        """Start a job and return it when all members have joined."""
        self._jobs += 1
        folder = Path(self._folder.name, str(self._jobs))
        folder.mkdir()
        address = str(folder / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(setup.processes)
            settings = asdict(setup) | {
                "coordinator": f"127.0.0.1:{_free_port()}",
                "folder": str(folder),
                "address": address,
            }
            job = Job(self, folder, self.ask({"start": settings}))
            try:
                job.meet(listener)
            except BaseException:
                job.close()
                raise
        return job

    def ask(self, request: Mapping[str, Any]) -> Any:
        """Send the warm process one request and return its answer."""
        return self._warm.ask(request)


class Job:
    """A job that runs; leaving its `with` kills all members that are left."""

    def __init__(self, server: JobServer, folder: Path, pids: Sequence[int]) -> None:
        self._server = server
        self._logs = [folder / f"{member}.log" for member in range(len(pids))]
        self._read = [0] * len(pids)
        self._pids: list[int | None] = list(pids)
        self._links: list[socket.socket | None] = [None] * len(pids)
        self._pending: set[int] = set()
        self._codes: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill all members that are left, and wait until they are gone."""
        for member in self.alive:
            self.kill(member)
        for member in self.alive:
            self._reap(member)
        for link in self._links:
            if link is not None:
                link.close()

    @property
    def alive(self) -> tuple[int, ...]:
        """The members whose end was not seen yet."""
        return tuple(n for n, pid in enumerate(self._pids) if pid is not None)

    def meet(self, listener: socket.socket) -> None:
        """Take the members' connections, and wait until all have joined."""
        listener.settimeout(START_SECONDS)
        for _ in self._pids:
            link, _ = listener.accept()
            link.settimeout(START_SECONDS)
            self._links[int(_receive(link) or -1)] = link
        self._pending = set(self.alive)
        failed = [a for a in self.collect(timeout=START_SECONDS) if a.value != "joined"]
        if failed:
            outputs = "\n".join(answer.output for answer in failed)
            raise RuntimeError(f"Expected all to join, found {failed}\n{outputs}")

    def run(
        self,
        target: str,
        *args: Any,
        each: Sequence[Sequence[Any]] | None = None,
        faults: Mapping[int, Fault] | None = None,
        timeout: float = 60.0,
    ) -> tuple[Answer, ...]:
        """Call `module:function` in all members and return how that ended in each."""
        self.begin(target, *args, each=each, faults=faults)
        return self.collect(timeout=timeout)

    def begin(
        self,
        target: str,
        *args: Any,
        each: Sequence[Sequence[Any]] | None = None,
        faults: Mapping[int, Fault] | None = None,
    ) -> None:
        """Begin a call in all members that are alive; `each` adds arguments of one."""
        if self._pending:
            raise RuntimeError(f"Expected no call, found one in {self._pending}")
        for member in self.alive:
            fault = (faults or {}).get(member)
            request = {
                "target": target,
                "args": [*args, *(each[member] if each else ())],
                "fault": asdict(fault) if fault else None,
            }
            link = self._links[member]
            # A member that ended between two calls is met when it is collected.
            with suppress(BrokenPipeError, ConnectionResetError):
                if link is not None:
                    link.sendall(json.dumps(request).encode() + b"\n")
            self._pending.add(member)

    def collect(
        self, members: Sequence[int] | None = None, *, timeout: float = 60.0
    ) -> tuple[Answer, ...]:
        """Wait for the call to end in these members, or in all that it began in."""
        wanted = sorted(self._pending if members is None else members)
        end = time.monotonic() + timeout
        return tuple(self._collect_one(member, end) for member in wanted)

    def _collect_one(self, member: int, end: float) -> Answer:
        link = self._links[member]
        if link is None:
            raise RuntimeError(f"Expected a member {member}, found that it never came")
        self._pending.discard(member)
        ready, _, _ = select.select([link], [], [], max(end - time.monotonic(), 0))
        if not ready:
            return self._end_hung(member)
        link.settimeout(START_SECONDS)
        with suppress(ConnectionResetError):
            if line := _receive(link):
                return Answer(member, **json.loads(line), output=self._output(member))
        code = self._reap(member)
        status = _ENDS.get(code, "died")
        return Answer(member, status, message=f"exit {code}", output=self._log(member))

    def _end_hung(self, member: int) -> Answer:
        """Kill a member that is late, once it has written where it hangs."""
        self._signal(member, signal.SIGUSR1)
        self.resume(member)
        time.sleep(0.3)
        self.kill(member)
        self._reap(member)
        return Answer(member, "hung", output=self._log(member))

    def _reap(self, member: int) -> int:
        pid = self._pids[member]
        if pid is not None:
            self._codes[member] = self._server.ask({"reap": pid})
            self._pids[member] = None
        return self._codes[member]

    def end(self, *, timeout: float = 30.0) -> tuple[int, ...]:
        """Let all members leave the job in order, and return their exit codes."""
        self.begin("")
        self.collect(timeout=timeout)
        return tuple(self._codes[member] for member in range(len(self._pids)))

    def kill(self, member: int) -> None:
        """Kill a member, whatever it does."""
        self._signal(member, signal.SIGKILL)

    def stop(self, member: int) -> None:
        """Stop a member until it is resumed."""
        self._signal(member, signal.SIGSTOP)

    def resume(self, member: int) -> None:
        """Let a stopped member go on."""
        self._signal(member, signal.SIGCONT)

    def tell(self, member: int, number: int) -> None:
        """Send a member a signal that it may heed."""
        self._signal(member, number)

    def is_stopped(self, member: int) -> bool:
        """Tell whether a member is stopped, by us or by the shim."""
        pid = self._pids[member]
        if pid is None:
            return False
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in (
            "T",
            "t",
        )

    def _signal(self, member: int, number: int) -> None:
        # Nobody else has the number while the member is not reaped.
        if (pid := self._pids[member]) is not None:
            os.kill(pid, number)

    def _output(self, member: int) -> str:
        """Return what a member wrote since this was asked last."""
        data = self._logs[member].read_bytes()[self._read[member] :]
        self._read[member] += len(data)
        return data.decode(errors="replace")

    def _log(self, member: int) -> str:
        return self._logs[member].read_text(errors="replace")


def wait_until(condition: Callable[[], bool], *, timeout: float = 30.0) -> None:
    """Return when the condition holds; TimeoutError when it did not in time."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"Expected the condition within {timeout} s")
        time.sleep(0.0005)


def _receive(link: socket.socket) -> bytes:
    """Return one line, b"" at the end."""
    parts: list[bytes] = []
    while not parts or not parts[-1].endswith(b"\n"):
        # The next line may have come, too.
        part = link.recv(1 << 16, socket.MSG_PEEK)
        if not part:
            return b""
        parts.append(link.recv(len(part.partition(b"\n")[0]) + 1))
    return b"".join(parts)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
