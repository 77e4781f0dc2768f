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
from .._warn import warn_from_thread

_LISTEN_SECONDS = 0.2
_LISTENERS_A_SECOND = 4000
"""How many requests process 0 is to answer: of more processes, each asks less often."""

_GATHER_SECONDS = 60.0
_QUIET_SECONDS = 600.0
_REQUEST_SECONDS = 30.0
_NAMED = 16
_SLICE_SECONDS = 1.0
_SILENT_SECONDS = 600.0
"""How long training is held while process 0 is silent; JAX ends the job before that."""


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
        self._warned = False
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
            # The thread calls the others: who is told by a signal must hear the next.
            self._changed.notify_all()

    @property
    def _may_ask(self) -> bool:
        """Whether there is something to ask; not soon after an agreement has failed.

        Another one would hold training up again.
        """
        return bool(self._asked) and time.monotonic() >= self._quiet_until

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
        while self._await_turn(pause):
            try:
                if self._try_get(f"{self._round}/call") is not None:
                    self._agree()
            except (SilentError, RpcError) as error:
                self._warn_of_silence(error)

    def _warn_of_silence(self, error: Exception) -> None:
        """Say once that the service does not answer; a process 0 that stood may."""
        if not (self._closed or self._warned):
            self._warned = True
            warn_from_thread(
                f"expected the coordination service to answer, found {error!s:.200}: "
                "until it does this process does not hear of notices to the others"
            )
        with self._changed:
            self._changed.wait_for(lambda: self._closed, 1.0)

    def _await_turn(self, pause: float) -> bool:
        """Wait until the last agreed step is behind; then ask what was not answered."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._may_ask, pause)
            self._changed.wait_for(lambda: self._closed or self._point is None)
            if self._closed:
                return False
            why = next(iter(self._asked)) if self._may_ask else None
            number = self._round
        if why is not None:
            self._call(number, why)
        return True

    def _agree(self) -> None:
        """Hold the training between two steps until the next agreed one is known."""
        with self._changed:
            if self._closed:
                return
            self._frozen = True
            done, number = self._done, self._round
        verdict: dict[str, Any] | None = None
        end = time.monotonic() + _SILENT_SECONDS
        try:
            while verdict is None and not self._closed and time.monotonic() < end:
                try:
                    self._set(f"{number}/{self._process}", {"step": done})
                    verdict = self._await_verdict(number)
                except (SilentError, RpcError) as error:
                    # Who went on now might pass a step that the others agree on.
                    self._warn_of_silence(error)
        finally:
            with self._changed:
                self._frozen = False
                if verdict and "step" in verdict:
                    self._point = verdict["step"], verdict["why"]
                else:
                    self._round += 1
                    self._quiet_until = time.monotonic() + _QUIET_SECONDS
                self._changed.notify_all()
        if not (verdict and "step" in verdict) and not self._closed:
            warn_from_thread(
                f"expected all {self.count} processes to agree on a step within "
                f"{_GATHER_SECONDS:g} s, found no answer of "
                f"{(verdict or {}).get('absent', 'process 0')}: see what those are "
                f"doing; it is asked again in {_QUIET_SECONDS:g} s"
            )

    def _await_verdict(self, number: int) -> dict[str, Any] | None:
        """Wait for the verdict; None when it does not come, or this process leaves."""
        verdict: dict[str, Any] | None = None
        end = time.monotonic() + 2 * _GATHER_SECONDS
        while verdict is None and not self._closed and time.monotonic() < end:
            # Process 0 leads; any other does when that has left.
            if self._process == 0 or self._try_get("left/0") is not None:
                verdict = self._gather(number)
            verdict = verdict or self._get(f"{number}/verdict", _SLICE_SECONDS)
        return verdict

    def _gather(self, number: int) -> dict[str, Any] | None:
        """Wait for the steps of all processes, and create the verdict."""
        call = self._get(f"{number}/call", _REQUEST_SECONDS) or {"why": ""}
        found: dict[str, bytes] = {}
        for _ in polls(time.monotonic() + _GATHER_SECONDS):
            found = self._list("left/") | self._list(f"{number}/")
            steps = [json.loads(v)["step"] for k, v in found.items() if k.isdecimal()]
            if self._closed:
                return None
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
