"""Loops that members of a job run, each in its own process."""

import os
import random
import signal
import threading
import time
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

from ckpt.resume import _sync
from ckpt.resume._sync import SyncPoints


def loop_until_agreed(
    points: int, asker: int, seed: int, together: bool
) -> list[tuple[int, str]]:
    """Step until so many steps were agreed upon, which one process asks for."""
    me = jax.process_index()
    chance = random.Random(seed * 64 + me)
    total = _make_sum() if together else None
    sync = SyncPoints(0)
    found: list[tuple[int, str]] = []
    step = 0
    threads: list[threading.Thread] = []
    while len(found) < points and step < 4000:
        step += 1
        time.sleep(chance.random() * 0.004)
        if total is not None:
            float(total())
        if me == asker and step % 40 == 11:
            why = f"why-{step}"
            threads.append(threading.Thread(target=sync.ask, args=(why,)))
            threads[-1].start()
        if (why := sync.reached(step)) is not None:
            found.append((step, why))
    for thread in threads:
        thread.join()
    sync.close()
    return found


def count_requests_after_failing(seconds: float) -> int:
    """Ask where the others never answer; count the requests that follow for a while."""
    if jax.process_index():
        time.sleep(seconds + 2)
        return 0
    asked = 0
    real = SyncPoints._try_get

    def count(self: SyncPoints, name: str) -> Any:
        nonlocal asked
        asked += 1
        return real(self, name)

    with (
        mock.patch.object(_sync, "_GATHER_SECONDS", 0.3),
        mock.patch.object(SyncPoints, "_try_get", count),
    ):
        sync = SyncPoints(0)
        sync.ask("why")
        time.sleep(1.5)
        before = asked
        time.sleep(seconds)
        after = asked
        sync.close()
    return after - before


def loop_with_points_in_the_past(points: int, asker: int) -> list[tuple[int, str]]:
    """Unsafe: the agreed step is one that some have passed."""
    most = max

    def choose(*values: Any) -> Any:
        return min(*values) - 1 if len(values) == 1 else most(*values)

    with mock.patch.object(_sync, "max", choose, create=True):
        return loop_until_agreed(points, asker, 7, together=False)


def loop_where_one_leaves(leaver: int) -> list[tuple[int, str]]:
    """Step where one process leaves early and another asks after that."""
    me = jax.process_index()
    sync = SyncPoints(0)
    found: list[tuple[int, str]] = []
    for step in range(1, 200):
        time.sleep(0.002)
        if me == leaver and step == 5:
            sync.close()
            return found
        if me == 1 and step == 60:
            sync.ask("late")
        if (why := sync.reached(step)) is not None:
            found.append((step, why))
            break
    sync.close()
    return found


def _make_sum() -> Any:
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    sharding = NamedSharding(mesh, P("data"))
    array = jax.make_array_from_callback(
        (jax.device_count(),), sharding, lambda _: jnp.ones((1,))
    )
    add = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, P()))
    return lambda: add(array)


def signal_myself(number: int) -> None:
    """Send this process a signal."""
    os.kill(os.getpid(), signal.Signals(number))
