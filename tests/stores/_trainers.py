"""Trainers that save with a mirror until they are killed, some of them unsafely.

Each writes the step of every save that returned into a ledger: it must never be lost.
"""

from collections.abc import Callable
from pathlib import Path

import ckpt
from tests.faults._trees import make_tree

KEEP = 1


def train(near: str, far: str, ledger: str, first: int, last: int) -> None:
    """Save step after step with a mirror, then wait until the mirror has all."""
    for step in range(first, last + 1):
        tree = make_tree(step, "wide")
        ckpt.save(tree, None, near, step=step, mirror=far, keep_local=KEEP)
        note(ledger, step)
    ckpt.drain(near, far, keep_local=KEEP)


def copy_run(near: str, far: str, ledger: str, first: int, last: int) -> None:
    """Save steps here alone, then copy them all."""
    for step in range(first, last + 1):
        ckpt.save(make_tree(step, "wide"), None, near, step=step)
        note(ledger, step)
    ckpt.copy(near, far)


def train_without_notes(
    near: str, far: str, ledger: str, first: int, last: int
) -> None:
    """Unsafe: forgets what is to be copied before it is."""
    for step in range(first, last + 1):
        ckpt.save(make_tree(step, "wide"), None, near, step=step)
        note(ledger, step)
        ckpt.copy(near, far, step=step)


def train_and_move(near: str, far: str, ledger: str, first: int, last: int) -> None:
    """Unsafe: removes a step here before the mirror has it."""
    for step in range(first, last + 1):
        ckpt.save(make_tree(step, "wide"), None, near, step=step)
        note(ledger, step)
        ckpt.prune(near, drop=[step])
        ckpt.save(make_tree(step, "wide"), None, far, step=step)


def note(ledger: str, step: int) -> None:
    """Write down that a save has returned."""
    with Path(ledger).open("a") as file:
        file.write(f"{step}\n")


TRAINERS: dict[str, Callable[[str, str, str, int, int], None]] = {
    "train": train,
    "copy_run": copy_run,
    "train_without_notes": train_without_notes,
    "train_and_move": train_and_move,
}
