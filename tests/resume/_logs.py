"""Runs with logs in them, written through the library and past it."""

import json
import os
from itertools import count
from pathlib import Path
from typing import Any

from ckpt._store import Store, open_store
from ckpt.resume import EventLog
from tests.resume._trainers import Clock

_names = count()


def new_run(folder: Path | None = None) -> Store:
    """Return a run that nothing is in: in memory, or in a folder."""
    name = f"goodput-{os.getpid()}-{next(_names)}"
    return open_store(f"memory://{name}" if folder is None else folder / name)


def train(clock: Clock, log: EventLog, first: int, last: int, *, each: float) -> None:
    for step in range(first, last + 1):
        clock.now += each
        log.step(step)


def save(log: EventLog, step: int) -> None:
    log.add("save", step=step, stall=0.0, reason="due")
    log.add("saved", step=step, seconds=0.0, bytes=1)


def write_log(run: Store, began: int, lines: list[Any], process: int = 0) -> None:
    """Write a log past our own code: texts as they are, all else as JSON."""
    shown = [x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines]
    run.make_folders(["events"])
    name = f"events/{began}-{process}.jsonl"
    with run.write(name, size=None) as writer:
        writer.write([line + b"\n" for line in shown])


def event(at: float, name: str, *, wall: float = 1e9, **fields: Any) -> dict[str, Any]:
    return {"t": wall + at, "m": at, "event": name, **fields}
