"""Steps at which all processes of a job do the same, agreed upon while they train.

Any process may ask for one, at any time: it was told to stop, or the clock says that it
is time to save. A thread of each process answers with the step that it is in; its
training need not get anywhere for that. The agreed step is one that none has passed:
the greatest of them, plus one. Until it is known nobody begins another step, so it is
never missed; and the threads wait for nothing but each other.
In the coordination service's key-value store:

    ckpt-sync/<run>/<round>/call      created once: what for
    ckpt-sync/<run>/<round>/<process> the last step that a process has done
    ckpt-sync/<run>/<round>/verdict   created once: the step, or why there is none
    ckpt-sync/<run>/left/<process>    the last step of one that has left

It can be repeated, needs no signal and none of JAX's preemption service.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any

import jax
from jax._src import distributed

from .._service import RpcError, SilentError, call as call_service, polls
from ._warn import warn_caller

_LISTEN_SECONDS = 0.2
_LISTENERS_A_SECOND = 4000
"""How many requests process 0 is to answer: of more processes, each asks less often."""

_GATHER_SECONDS = 60.0
_QUIET_SECONDS = 600.0
_REQUEST_SECONDS = 30.0
_NAMED = 16


@dataclass(slots=True)
class _Made:
    """How many of these a client has had: all processes make them in the same order."""

    client: Any = None
    count: int = 0


_made = _Made()


class SyncPoints:
    """The agreed steps of one training loop; several processes make it in one order.

    `ask` from any thread; `reached` after each step, on the thread that trains.
    """

    def __init__(self, step: int) -> None:
        """Begin behind `step`, the last one that is done."""
        self.count = jax.process_count()
        self._done = step
        self._asked: dict[str, None] = {}
        self._changed = Condition()
        self._round = 0
        self._point: tuple[int, str] | None = None
        self._frozen = False
        self._quiet_until = 0.0
        self._closed = False
        self._thread: Thread | None = None
        if self.count > 1:
            self._process = jax.process_index()
            self._client: Any = distributed.global_state.client
            if _made.client is not self._client:
                _made.client, _made.count = self._client, 0
            self._prefix = f"ckpt-sync/{_made.count}"
            _made.count += 1
            self._thread = Thread(target=self._listen, name="ckpt-sync", daemon=True)
            self._thread.start()

    def ask(self, why: str) -> None:
        """Ask for an agreed step, for a reason: a word that all understand."""
        with self._changed:
            if self._closed or why in self._asked:
                return
            self._asked[why] = None
            number = self._round
            waits = self._point is not None or self._frozen
        # What is asked while another round is on is asked again after it.
        if self.count > 1 and not waits and not self._is_quiet:
            self._call(number, why)

    @property
    def _is_quiet(self) -> bool:
        """Whether an agreement has failed, and another would hold training up again."""
        return time.monotonic() < self._quiet_until

    @property
    def is_asked(self) -> bool:
        """Whether this process knows of a step that was asked for."""
        return bool(self._asked) or self._point is not None or self._frozen

    def reached(self, step: int) -> str | None:
        """Say that a step is done; return what for it is an agreed one, or None."""
        with self._changed:
            while self._frozen:
                # A timeout lets an interrupt in.
                self._changed.wait(1.0)
            self._done = step
            if self.count == 1:
                why = next(iter(self._asked), None)
                if why is not None:
                    del self._asked[why]
                return why
            if self._point is None or step < self._point[0]:
                return None
            why = self._point[1]
            self._asked.pop(why, None)
            self._point = None
            self._round += 1
            self._changed.notify_all()
            return why

    def close(self) -> None:
        """Leave: agreements go on without this process."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            with contextlib.suppress(SilentError, RpcError):
                self._set(f"left/{self._process}", {"step": self._done})
            # A thread that is in the client when the interpreter ends, aborts it.
            self._thread.join()

    def _listen(self) -> None:
        # Not a request that waits at the service: it could not be broken off at exit.
        pause = max(_LISTEN_SECONDS, self.count / _LISTENERS_A_SECOND)
        try:
            while self._await_turn(pause):
                if self._try_get(f"{self._round}/call") is not None:
                    self._agree()
        except (SilentError, RpcError) as error:
            if not self._closed:
                warn_caller(
                    f"expected the coordination service to answer, found {error!s:.200}"
                    ": this process will not hear of notices to the others"
                )

    def _await_turn(self, pause: float) -> bool:
        """Wait until the last agreed step is behind; then ask what was not answered."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, pause)
            self._changed.wait_for(lambda: self._closed or self._point is None)
            if self._closed:
                return False
            why = next(iter(self._asked), None)
            number = self._round
        if why is not None and not self._is_quiet:
            self._call(number, why)
        return True

    def _agree(self) -> None:
        """Hold the training between two steps until the next agreed one is known."""
        with self._changed:
            if self._closed:
                return
            self._frozen = True
            done, number = self._done, self._round
        point: tuple[int, str] | None = None
        verdict: dict[str, Any] | None = None
        try:
            self._set(f"{number}/{self._process}", {"step": done})
            verdict = self._gather(number) if self._process == 0 else None
            verdict = verdict or self._get(f"{number}/verdict", 2 * _GATHER_SECONDS)
            if verdict and "step" in verdict:
                point = verdict["step"], verdict["why"]
        finally:
            with self._changed:
                self._frozen = False
                self._point = point
                if point is None:
                    self._round += 1
                    self._quiet_until = time.monotonic() + _QUIET_SECONDS
                self._changed.notify_all()
        if point is None:
            warn_caller(
                f"expected all {self.count} processes to agree on a step within "
                f"{_GATHER_SECONDS:g} s, found no answer of "
                f"{(verdict or {}).get('absent', 'process 0')}: see what those are "
                f"doing; it is asked again in {_QUIET_SECONDS:g} s"
            )

    def _gather(self, number: int) -> dict[str, Any] | None:
        """Wait for the steps of all processes, and create the verdict."""
        call = self._get(f"{number}/call", _REQUEST_SECONDS) or {"why": ""}
        found: dict[str, bytes] = {}
        for _ in polls(time.monotonic() + _GATHER_SECONDS):
            found = self._list("left/") | self._list(f"{number}/")
            steps = [json.loads(v)["step"] for k, v in found.items() if k.isdecimal()]
            if len(steps) == self.count:
                verdict = {"step": max(steps) + 1, "why": call["why"]}
                break
        else:
            here = [int(key) for key in found if key.isdecimal()]
            absent = [n for n in range(self.count) if n not in here]
            verdict = {"absent": absent[:_NAMED]}
        return verdict if self._create(f"{number}/verdict", verdict) else None

    def _call(self, number: int, why: str) -> None:
        with contextlib.suppress(SilentError):
            self._create(f"{number}/call", {"why": why, "by": self._process})

    def _list(self, name: str) -> dict[str, bytes]:
        rpc = self._client.key_value_dir_get_bytes
        found = call_service(lambda: rpc(f"{self._prefix}/{name}"), _REQUEST_SECONDS)
        return {key.rpartition("/")[2]: value for key, value in found}

    def _set(self, name: str, value: dict[str, Any]) -> None:
        rpc = self._client.key_value_set_bytes
        data = json.dumps(value).encode()
        call_service(
            lambda: rpc(f"{self._prefix}/{name}", data, True), _REQUEST_SECONDS
        )

    def _create(self, name: str, value: dict[str, Any]) -> bool:
        """Set a key that nobody has set; False when somebody has."""
        rpc = self._client.key_value_set_bytes
        data = json.dumps(value).encode()
        try:
            call_service(lambda: rpc(f"{self._prefix}/{name}", data), _REQUEST_SECONDS)
        except RpcError as error:
            if "ALREADY_EXISTS" in str(error):
                return False
            raise SilentError(f"{error!s:.200}") from None
        return True

    def _try_get(self, name: str) -> dict[str, Any] | None:
        rpc = self._client.key_value_try_get_bytes
        try:
            data = call_service(lambda: rpc(f"{self._prefix}/{name}"), _REQUEST_SECONDS)
        except RpcError as error:
            if "NOT_FOUND" in str(error):
                return None
            raise
        return json.loads(data)

    def _get(self, name: str, seconds: float) -> dict[str, Any] | None:
        """Wait for a key; None when it does not come."""
        rpc = self._client.blocking_key_value_get_bytes
        wait = max(1, int(seconds * 1000))
        try:
            data = call_service(
                lambda: rpc(f"{self._prefix}/{name}", wait), seconds + _REQUEST_SECONDS
            )
        except RpcError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise
        return json.loads(data)
