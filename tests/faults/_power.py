"""Power cuts during saves, an overwrite and a prune, and a look after each."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import ckpt
from ckpt._attempt import save_snapshot
from ckpt._job import join
from ckpt._local_store import LocalStore
from ckpt._snapshot import describe_tree
from ckpt._written import Options
from tests._harness.powercut import Report, record, replay
from tests.faults._oracle import find_complaint
from tests.faults._trees import make_tree

Operation = Callable[[Path], object]


def save(run: Path, step: int, seed: int, *, overwrite: bool = False) -> None:
    """Save as any caller would."""
    ckpt.save(make_tree(seed), None, run, step=step, overwrite=overwrite)


def save_without_sync(run: Path, step: int, seed: int) -> None:
    """Save to a store that leaves out every fsync."""
    store = LocalStore(str(run), durable=False)
    job = join()
    options = Options(step, {}, overwrite=False, codec=None, max_host_bytes=None)
    save_snapshot(job, store, describe_tree(make_tree(seed), None, job), options)


STATES = ({}, {1: 1}, {1: 1, 2: 2}, {1: 1, 2: 22}, {2: 22})
"""What is committed before and after each operation."""

OPERATIONS: Sequence[Operation] = (
    partial(save, step=1, seed=1),
    partial(save, step=2, seed=2),
    partial(save, step=2, seed=22, overwrite=True),
    lambda run: ckpt.prune(run, drop=[1]),
)
UNSAFE: Sequence[Operation] = (
    partial(save_without_sync, step=1, seed=1),
    partial(save_without_sync, step=2, seed=2),
)


def cut_power(
    operations: Sequence[Operation],
    folder: Path,
    *,
    filesystem: str = "ext4",
    subsets: int = 1,
    seed: int = 0,
    thorough: bool = False,
) -> Report:
    """Cut the power at every flush of the operations; the run's folder is new too.

    What was acknowledged is there, and at most the next operation besides.
    """

    def work(mountpoint: Path, acknowledge: Callable[[str], None]) -> None:
        for number, operation in enumerate(operations):
            operation(mountpoint / "deep" / "run")
            acknowledge(str(number + 1))

    def check(mountpoint: Path, acknowledged: tuple[str, ...]) -> str | None:
        done = int(acknowledged[-1]) if acknowledged else 0
        legal = STATES[done : done + 2]
        run = mountpoint / "deep" / "run"
        return find_complaint(run, legal, thorough=thorough) or None

    recording = record(work, folder, filesystem=filesystem)
    return replay(recording, check, subsets=subsets, seed=seed)
