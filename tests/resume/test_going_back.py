"""What a Run does where the newest step is damaged, or not the one to go on from."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckpt
from ckpt.resume import every
from tests.resume._counter import train


def damage(path: Path, step: int) -> None:
    """Flip a bit of the state's bytes in a step."""
    (pack,) = path.glob(f"{step}-*/~packs/*/c/0")
    data = bytearray(pack.read_bytes())
    data[0] ^= 1
    pack.write_bytes(data)


def test_a_damaged_step_is_skipped_and_said_so(memory_run: Path) -> None:
    train(memory_run, 6)
    damage(memory_run, 6)
    told = r"expected to resume from step 6, found it unusable \(Damaged: .*older step"
    with pytest.warns(UserWarning, match=told):
        state, seen = train(memory_run, 8)
    assert seen == [1004, 1005, 1006, 1007]
    assert state["sum"] == sum(range(1000, 1008))
    # What was damaged is there again.
    assert all(ckpt.verify(memory_run, step=s).ok for s in ckpt.steps(memory_run))


def test_nothing_begins_anew_when_no_step_is_whole(memory_run: Path) -> None:
    train(memory_run, 4)
    for step in (2, 4):
        damage(memory_run, step)
    told = r"(?s)none of steps 4, 2 whole .* step 4: Damaged"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ckpt.Damaged, match=told):
            train(memory_run, 6)
    assert ckpt.steps(memory_run) == [2, 4]


def test_an_older_step_is_gone_back_to_and_later_ones_are_replaced(
    memory_run: Path,
) -> None:
    train(memory_run, 6)
    state, seen = train(memory_run, 8, resume={"step": 2})
    assert seen == [1002, 1003, 1004, 1005, 1006, 1007]
    assert state["sum"] == sum(range(1000, 1008))
    assert ckpt.steps(memory_run) == [2, 4, 6, 8]
    with pytest.raises(ckpt.NotFound, match=r"expected step 3, found steps 2, 4, 6, 8"):
        train(memory_run, 8, resume={"step": 3})


def test_a_damaged_step_pushes_none_out_that_is_whole(memory_run: Path) -> None:
    train(memory_run, 6)
    damage(memory_run, 6)
    with pytest.warns(UserWarning, match="expected to resume from step 6"):
        train(memory_run, 5, save=None, keep=ckpt.Keep(last=1))
    assert ckpt.steps(memory_run) == [5, 6]
    with pytest.warns(UserWarning, match="expected to resume from step 6"):
        assert train(memory_run, 8, keep=ckpt.Keep(last=1))[1] == [1005, 1006, 1007]
    assert ckpt.steps(memory_run) == [8]


def test_what_is_damaged_is_written_again_and_not_named(memory_run: Path) -> None:
    """Training comes to the same values, whose hashes a skipped step has."""

    def train_weights(until: int) -> int:
        with ckpt.Run(memory_run, save=every(steps=2), reuse=True, signals=()) as run:
            state, _ = run.resume({"w": np.zeros(1 << 18)})
            begun = run.step
            for step in run.steps(until=until):
                state = {"w": state["w"] + 1}
                run.saved(step, state)
        return begun

    train_weights(6)
    (file,) = memory_run.glob("6-*/state/w/c/0")
    data = bytearray(file.read_bytes())
    data[5000] ^= 1
    file.write_bytes(data)
    with pytest.warns(UserWarning, match="expected to resume from step 6"):
        assert train_weights(6) == 4
    assert ckpt.verify(memory_run, step=6).ok
    assert train_weights(8) == 6


@pytest.mark.parametrize("keep", [None, ckpt.Keep(last=2)])
def test_what_was_gone_back_behind_is_not_resumed(
    memory_run: Path, disk_run: Path, keep: ckpt.Keep | None
) -> None:
    options: dict[str, Any] = {"mirror": disk_run, "keep_local": 9, "keep": keep}
    train(memory_run, 6, **options)
    train(memory_run, 3, resume={"step": 2}, save=None, **options)
    # `keep` may have removed step 2 here before, as the mirror has it.
    assert ckpt.steps(memory_run) in ([2, 3], [2, 3] if keep is None else [3])
    assert ckpt.steps(disk_run) == [2, 3]
    assert train(memory_run, 4, **options)[1] == [1003]
