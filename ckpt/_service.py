"""Requests to JAX's coordination service that end, whatever becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from threading import Thread
from typing import TypeVar, cast

import jax

T = TypeVar("T")

RpcError = cast("type[Exception]", jax.errors.JaxRuntimeError)
"""What the service raises."""

_POLL_SECONDS = (0.001, 0.1)


class SilentError(Exception):
    """The coordination service, which process 0 holds, does not answer."""


def call(rpc: Callable[[], T], seconds: float) -> T:
    """Return what a request returns, but wait no longer than that.

    Most requests have no deadline of their own, and while the main thread waits in one
    of them no signal is handled.
    """
    done: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            done.append(rpc())
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=run, name="ckpt-coordination", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # The interpreter is exiting and starts no more threads.
        return rpc()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not done:
        raise SilentError("the coordination service, in process 0, does not answer")
    return done[0]


def request(rpc: Callable[[], T], seconds: float) -> T:
    """Return what a request returns that cannot fail but for want of an answer."""
    try:
        return call(rpc, seconds)
    except RpcError as error:
        raise SilentError(f"{error!s:.200}") from None


def polls(deadline: float) -> Generator[None]:
    """Yield at growing intervals until the deadline, and once more then."""
    pause, most = _POLL_SECONDS
    while True:
        late = time.monotonic() >= deadline
        yield
        if late:
            return
        time.sleep(pause)
        pause = min(pause * 1.5, most)
