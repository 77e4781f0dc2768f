"""Agreement between the processes of a job, by JAX's coordination service.

No device takes part, so it works from any thread while others train. A collective
call (`join`) is a few rounds of `agree`: everybody posts what it has, process 0 decides
on all posts, everybody gets the decision. In the service's key-value store a round is

    ckpt/<call>/<round>/<process>    what a process has to say; also that it failed
    ckpt/<call>/<round>/verdict      created once: "go", or why not
    ckpt/<call>/<round>/answer       what process 0 made of the posts

The verdict can be created only once: by process 0 when all have posted, by a process
that fails, or by one that has waited too long. So all see the same. Whoever raises
posts nothing in later rounds: process 0 does nothing that it was not asked to do.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Condition
from typing import Any, TypeVar, cast

import jax
from jax._src import distributed

from ._errors import BarrierTimeout, Unsupported
from ._failure import Post as Post, rebuild_failure, report_failure
from ._service import RpcError, SilentError, call as call_service, polls, request

T = TypeVar("T")

BARRIER_SECONDS = 600.0
_REQUEST_SECONDS = 30.0
_NAMED = 16
"""How many absent processes a message names."""

_GO = {"go": True}


@dataclass(slots=True)
class _Numbers:
    """Which collective calls this process has begun, and which it is still in.

    Those `in_turn` use devices: they run one after another, as their numbers are.
    """

    client: Any = None
    next: int = 0
    unfinished: set[int] = field(default_factory=set[int])
    in_turn: set[int] = field(default_factory=set[int])
    cleared: int = 0
    lock: Condition = field(default_factory=Condition)


_numbers = _Numbers()


@dataclass(frozen=True, slots=True)
class Job:
    """One collective call, as one of `count` processes sees it."""

    process: int
    count: int
    timeout: float
    call: int = 0
    client: Any = None
    attempt: int = 0

    def agree(
        self,
        name: str,
        work: Callable[[], Post],
        *,
        decide: Callable[[list[Post]], T],
        unanswered: type[Exception] = BarrierTimeout,
    ) -> T:
        """Do this process's `work`, wait for everybody's, and return the decision.

        `decide` runs on process 0 alone, on all posts in order of process; what it
        returns must be JSON in a job of several. When any of them raises, so do all:
        itself there, elsewhere a CkptError of the same kind. BarrierTimeout names the
        processes that did not come in time; `unanswered` is raised instead where
        process 0 may have decided, and fell silent.
        """
        with self.refusing(name):
            post = work()
        if self.count == 1:
            return decide([post])
        try:
            self._set(f"{name}/{self.process}", {"post": post})
            if self.process == 0:
                return self._lead(name, decide)
            return self._follow(name)
        except (SilentError, RpcError) as error:
            raise unanswered(self._absence([0], f" ({error!s:.200})")) from None

    def begin(
        self, work: Callable[[], Post], *, decide: Callable[[list[Post]], T]
    ) -> T:
        """Agree for the first time in a call; all must say the same of "call".

        Keys of calls that every process has left are removed.
        """

        def post() -> Post:
            return work() | {"ended": _first_unfinished()}

        def check(posts: list[Post]) -> T:
            for process, found in enumerate(posts):
                if found["call"] != posts[0]["call"]:
                    raise ValueError(
                        "expected all processes to make the same call, found "
                        f"{posts[0]['call']} on process 0 and {found['call']} on "
                        f"process {process}"
                    )
            if self.count > 1:
                self._clear_calls(min(found["ended"] for found in posts))
            return decide(posts)

        return self.agree("begin", post, decide=check)

    @contextlib.contextmanager
    def refusing(self, name: str) -> Generator[None]:
        """Do what comes before a round's post; when that raises, the others know.

        Where they have given up already, what they say explains this failure too: a
        process that was stopped finds its files removed, say.
        """
        try:
            yield
        except BaseException as error:
            verdict = self._refuse(name, error)
            if verdict and "kind" in verdict and isinstance(error, Exception):
                raise rebuild_failure(verdict) from error
            raise

    def _refuse(self, name: str, error: BaseException) -> Post | None:
        """Say that this process cannot take part; return an earlier refusal."""
        if self.count == 1:
            return None
        failed = report_failure(self.process, error)
        with contextlib.suppress(SilentError, RpcError):
            made = self._create(f"{name}/verdict", failed)
            self._set(f"{name}/{self.process}", failed)
            if not made:
                return self._get(f"{name}/verdict", self.timeout)
        return None

    def withdraw(self, names: Iterable[str], error: BaseException) -> None:
        """Keep rounds that nobody has decided yet from being decided without us."""
        if self.count > 1:
            with contextlib.suppress(SilentError, RpcError):
                for name in names:
                    self._create(f"{name}/verdict", report_failure(self.process, error))

    def has_ended(self, name: str, *, within: float) -> bool:
        """Tell whether all others have posted or failed in a round, or do so soon."""
        if self.count == 1:
            return True
        deadline = time.monotonic() + within
        with contextlib.suppress(SilentError):
            for _ in polls(deadline):
                if len(self._posts(name).keys() - {self.process}) == self.count - 1:
                    return True
        return False

    def _lead(self, name: str, decide: Callable[[list[Post]], T]) -> T:
        verdict = self._gather(name)
        if verdict is None and not self._create(f"{name}/verdict", _GO):
            verdict = self._get_verdict(name)
        if verdict is not None and verdict != _GO:
            raise rebuild_failure(verdict)
        posts = self._posts(name)
        try:
            answer = decide([posts[p]["post"] for p in range(self.count)])
        except BaseException as error:
            with contextlib.suppress(SilentError):
                self._set(f"{name}/answer", report_failure(0, error))
            raise
        self._set(f"{name}/answer", {"answer": answer})
        return answer

    def _gather(self, name: str) -> Post | None:
        """Wait for all posts; return the verdict if it is one without us."""
        for _ in polls(time.monotonic() + self.timeout):
            found = self._list(name)
            if verdict := found.get("verdict"):
                return json.loads(verdict)
            if len(found) == self.count:
                return None
        here = self._posts(name)
        failed = self._absent([p for p in range(self.count) if p not in here])
        if self._create(f"{name}/verdict", failed):
            return failed
        return self._get_verdict(name)

    def _get_verdict(self, name: str) -> Post:
        """Return the verdict that somebody has created."""
        verdict = self._get(f"{name}/verdict", self.timeout)
        if verdict is None:
            raise SilentError("it does not return what it has")
        return verdict

    def _follow(self, name: str) -> Any:
        verdict = self._get(f"{name}/verdict", self.timeout)
        if verdict is None:
            here = self._posts(name)
            failed = self._absent([p for p in range(self.count) if p not in here])
            made = self._create(f"{name}/verdict", failed)
            verdict = failed if made else self._get_verdict(name)
        if verdict != _GO:
            raise rebuild_failure(verdict)
        answer = self._get(f"{name}/answer", self.timeout)
        if answer is None:
            raise SilentError("it has not answered")
        if "answer" not in answer:
            if not answer["kind"]:
                # An interrupt, say: process 0 may have done it all the same.
                raise SilentError(answer["message"])
            raise rebuild_failure(answer)
        return answer["answer"]

    def _absent(self, processes: list[int]) -> Post:
        text = self._absence(processes or [0])
        return report_failure(self.process, BarrierTimeout(text))

    def _absence(self, processes: list[int], why: str = "") -> str:
        shown = ", ".join(map(str, processes[:_NAMED]))
        if len(processes) > _NAMED:
            shown += f" and {len(processes) - _NAMED} more"
        found = "is" if len(processes) == 1 else "are"
        return (
            f"expected all {self.count} processes within {self.timeout:g} s, found "
            f"that process {shown} {found} missing{why}: nothing was committed; see "
            "what those are doing (all must make the same calls in the same order), or "
            "raise barrier_timeout="
        )

    def _posts(self, name: str) -> dict[int, Post]:
        found = self._list(name).items()
        return {int(k): json.loads(v) for k, v in found if k.isdecimal()}

    def _list(self, name: str) -> dict[str, bytes]:
        """Return what a round has so far, by the last part of the keys."""
        rpc = self.client.key_value_dir_get_bytes
        found = request(lambda: rpc(self._key(f"{name}/")), self._patience)
        return {key.rpartition("/")[2]: value for key, value in found}

    def _set(self, name: str, value: Post) -> None:
        data = json.dumps(value).encode()
        rpc = self.client.key_value_set_bytes
        request(lambda: rpc(self._key(name), data, True), self._patience)

    def _create(self, name: str, value: Post) -> bool:
        """Set a key that nobody has set; False when somebody has."""
        data = json.dumps(value).encode()
        rpc = self.client.key_value_set_bytes
        try:
            call_service(lambda: rpc(self._key(name), data), self._patience)
        except RpcError as error:
            if "ALREADY_EXISTS" in str(error):
                return False
            raise SilentError(f"{error!s:.200}") from None
        return True

    def _get(self, name: str, seconds: float) -> Post | None:
        """Wait for a key; None when it does not come."""
        rpc = self.client.blocking_key_value_get_bytes
        wait = max(1, math.ceil(seconds * 1000))
        try:
            # The service keeps time itself; without it we do.
            data = call_service(lambda: rpc(self._key(name), wait), seconds + 1)
        except RpcError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise SilentError(f"{error!s:.200}") from None
        return json.loads(data)

    @property
    def _patience(self) -> float:
        """How long a request may take that waits for nobody."""
        return min(self.timeout, _REQUEST_SECONDS)

    def _clear_calls(self, ended: int) -> None:
        """Remove what no process reads any more from the service."""
        with _numbers.lock:
            first, _numbers.cleared = _numbers.cleared, max(ended, _numbers.cleared)
            last = _numbers.cleared
        delete = self.client.key_value_delete
        with contextlib.suppress(SilentError):
            for call in range(first, last):
                request(partial(delete, f"ckpt/{call}/"), self._patience)

    def _key(self, name: str) -> str:
        again = f"again-{self.attempt}/" if self.attempt else ""
        return f"ckpt/{self.call}/{again}{name}"


ALONE = Job(0, 1, BARRIER_SECONDS)
"""A call that is nobody else's."""


def join(timeout: float = BARRIER_SECONDS, *, in_turn: bool = False) -> Job:
    """Begin a collective call: every process of the job must make the same one.

    Must be called on the caller's thread: calls find each other by their order.
    `in_turn` is for those that use devices: XLA's collectives must meet in one order.
    """
    count = jax.process_count()
    if count == 1:
        check_timeout(timeout)
        return Job(0, 1, timeout)
    client = cast(Any, distributed.global_state.client)
    if client is None:
        raise Unsupported(
            f"expected jax.distributed in a job of {count} processes, found it not "
            "initialised: call jax.distributed.initialize() first"
        )
    with _numbers.lock:
        if _numbers.client is not client:
            _numbers.client, _numbers.next, _numbers.cleared = client, 0, 0
            _numbers.unfinished, _numbers.in_turn = set(), set()
        call = _numbers.next
        _numbers.next += 1
        _numbers.unfinished.add(call)
        if in_turn:
            _numbers.in_turn.add(call)
    job = Job(jax.process_index(), count, BARRIER_SECONDS, call, client)
    # The call is counted already: the others must know, and count it too.
    try:
        with job.refusing("begin"):
            check_timeout(timeout)
    except BaseException:
        leave(job)
        raise
    return replace(job, timeout=timeout)


def check_timeout(timeout: float) -> None:
    """Refuse a time that nobody could wait for."""
    if not 0 < timeout < 1e6:
        raise ValueError(f"expected 0 < barrier_timeout < 1e6 seconds, found {timeout}")


def leave(job: Job) -> None:
    """End a collective call, whatever became of it."""
    with _numbers.lock:
        _numbers.unfinished.discard(job.call)
        _numbers.in_turn.discard(job.call)
        _numbers.lock.notify_all()


def _first_unfinished() -> int:
    """Return the number of the first call that this process may still be in."""
    with _numbers.lock:
        return min(_numbers.unfinished, default=_numbers.next)


@contextlib.contextmanager
def joined(
    timeout: float = BARRIER_SECONDS, *, in_turn: bool = False
) -> Generator[Job]:
    """Be in a collective call for as long as the block lasts."""
    job = join(timeout, in_turn=in_turn)
    try:
        if in_turn:
            with _numbers.lock:
                while _numbers.in_turn and min(_numbers.in_turn) < job.call:
                    # A timeout lets an interrupt in.
                    _numbers.lock.wait(1.0)
        yield job
    finally:
        leave(job)
