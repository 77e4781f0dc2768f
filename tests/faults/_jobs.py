"""What child processes do: the library's work, and unsafe ways to do the same."""

import contextlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import ckpt
from tests.faults._trees import Size, make_tree, place_tree, restore_seed, seed_of


def save(
    run: str,
    step: int,
    seed: int,
    overwrite: bool = False,
    size: Size = "small",
    codec: str | None = None,
) -> None:
    """Save the tree of a seed; a wide one is split over two devices."""
    state, mesh = place_tree(make_tree(seed, size), devices=1 + (size == "wide"))
    ckpt.save(state, mesh, run, step=step, overwrite=overwrite, codec=codec)


def save_and_ignore_errors(run: str, step: int, seed: int, *rest: Any) -> None:
    """Unsafe: says that it has saved whatever happened."""
    with contextlib.suppress(ckpt.CkptError):
        save(run, step, seed, *rest)


def save_record_first(run: str, step: int, seed: int, *rest: Any) -> None:
    """Unsafe: the step exists before its data does."""
    with _saved_beside(run, step, seed, *rest) as (record, data):
        os.makedirs(f"{run}/steps", exist_ok=True)
        Path(run, "steps", record.name).write_bytes(record.read_bytes())
        shutil.copytree(data, f"{run}/{data.name}")


def overwrite_by_removal(run: str, step: int, seed: int, *rest: Any) -> None:
    """Unsafe: for a while there is neither the old one nor the new one."""
    ckpt.prune(run, drop=[step])
    save(run, step, seed, *rest)


def save_if_absent(run: str, step: int, seed: int) -> None:
    """Unsafe: another writer may come between the look and the rename."""
    if step in ckpt.steps(run):
        raise ckpt.StepExists(f"{step}")
    with _saved_beside(run, step, seed) as (record, data):
        os.makedirs(f"{run}/steps", exist_ok=True)
        data.rename(f"{run}/{data.name}")
        record.rename(f"{run}/steps/{record.name}")


@contextlib.contextmanager
def _saved_beside(run: str, step: int, seed: int, *rest: Any) -> Any:
    beside = Path(f"{run}-beside-{os.getpid()}")
    save(str(beside), step, seed, *rest)
    record = beside / "steps" / f"{step}.json"
    yield record, beside / json.loads(record.read_text().splitlines()[1])["directory"]
    shutil.rmtree(beside)


def prune(run: str, last: int) -> None:
    """Remove all but the newest steps."""
    ckpt.prune(run, keep=ckpt.Keep(last=last))


def prune_data_first(run: str, last: int, pause: float = 0) -> None:
    """Unsafe: a step is still listed while its data goes."""
    for step in ckpt.steps(run)[:-last]:
        record = Path(run, "steps", f"{step}.json")
        shutil.rmtree(
            Path(run, json.loads(record.read_text().splitlines()[1])["directory"])
        )
        time.sleep(pause)
        record.unlink()


def save_when_all_are_ready(
    saver: str, run: str, step: int, seed: int, meeting: str, count: int
) -> None:
    """Wait until `count` processes are here, then save."""
    Path(meeting, str(seed)).touch()
    while len(os.listdir(meeting)) < count:
        time.sleep(0.0005)
    globals()[saver](run, step, seed)


def save_many(run: str, first: int, count: int, stop: str) -> None:
    """Save step after step, each with its number as seed."""
    try:
        for step in range(first, first + count):
            save(run, step, step)
    finally:
        Path(stop).touch()


def prune_until(run: str, stop: str, last: int, orphan_age: float) -> int:
    """Prune over and over again; return how many steps that removed."""
    removed = 0
    while not os.path.exists(stop):
        keep = ckpt.Keep(last=last)
        removed += len(ckpt.prune(run, keep=keep, orphan_age=orphan_age))
    return removed


def prune_data_first_until(run: str, stop: str, last: int) -> None:
    """Unsafe: as `prune_data_first`, over and over again."""
    while not os.path.exists(stop):
        prune_data_first(run, last, pause=0.05)


def read_until(run: str, stop: str) -> dict[str, int]:
    """Restore the oldest step over and over again; return how often which came."""
    seen = {"whole": 0, "gone": 0}
    while not os.path.exists(stop):
        for step in ckpt.steps(run)[:1]:
            try:
                if restore_seed(run, step) != step:
                    raise ValueError(f"expected the tree of step {step}")
                seen["whole"] += 1
            except ckpt.NotFound:
                seen["gone"] += 1
    return seen


def follow_until(run: str, stop: str) -> dict[str, int]:
    """Restore each step as it comes; return how often it was whole, and how often gone.

    Every other one is read lazily, after a while in which it may be pruned.
    """
    seen = {"followed": 0, "gone": 0}
    last, ended = 0, False
    while not ended:
        ended = os.path.exists(stop)
        for ck in ckpt.follow(run, after=last, poll=0.001, timeout=0.05):
            if ck.step <= last:
                raise ValueError(f"expected a step after {last}, found {ck.step}")
            last = ck.step
            try:
                if last % 2:
                    seed = restore_seed(run, last)
                else:
                    time.sleep(0.15)
                    seed = seed_of({path: ck[path][...] for path in ck})
            except ckpt.NotFound:
                seen["gone"] += 1
                continue
            if seed != last:
                raise ValueError(f"expected the tree of step {last}, found {seed}")
            seen["followed"] += 1
    return seen


def save_as_nobody(run: str, step: int, seed: int) -> None:
    """Save as a user who may write nothing here."""
    os.setgid(65534)
    # Packages that are imported on demand may lie where only root can read.
    save("memory://before", step, seed)
    os.setuid(65534)
    save(run, step, seed)
