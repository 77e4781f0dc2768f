"""Two calls on one run at once, at the instant that matters; answers that get lost.

`Meeting` is a store that does something of ours before, or instead of, one request.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import ckpt
from ckpt._attempt import save_snapshot
from ckpt._catalog import open_path
from ckpt._commit import remove_step
from ckpt._errors import StoreError
from ckpt._job import join
from ckpt._snapshot import describe_tree
from ckpt._store import Store, open_store
from ckpt._verify import verify_opened
from ckpt._written import Options


@dataclass
class Meeting:
    """A store of which one method is another one; the rest is the store's own."""

    store: Store
    replaced: dict[str, Callable[..., Any]] = field(
        default_factory=dict[str, Callable[..., Any]]
    )

    def __getattr__(self, name: str) -> Any:
        return self.replaced.get(name) or getattr(self.store, name)


def overwrite(run: Path, value: int) -> None:
    ckpt.save({"w": np.full(3, value)}, None, run, step=1, overwrite=True)


def remove_after_overwrite(run: Path, *, checked: bool) -> None:
    """Remove step 1, which is overwritten between the reading and the removing."""
    store = open_store(run)

    def remove(name: str, *, expected: bytes | None = None) -> bool:
        if name == "steps/1.json":
            overwrite(run, 2)
        return store.remove(name, expected=expected if checked else None)

    remove_step(cast(Store, Meeting(store, {"remove": remove})), 1)


def test_prune_leaves_a_commit_that_replaced_the_one_it_read(tmp_path: Path) -> None:
    overwrite(tmp_path, 1)
    remove_after_overwrite(tmp_path, checked=True)
    assert ckpt.steps(tmp_path) == [1]
    np.testing.assert_array_equal(ckpt.restore(tmp_path)["w"], np.full(3, 2))
    ckpt.prune(tmp_path, orphan_age=0)
    assert len(list(tmp_path.glob("1-*"))) == 1
    assert ckpt.verify(tmp_path).orphans == ()


def test_without_the_check_that_commit_is_lost(tmp_path: Path) -> None:
    """Otherwise the test above cannot fail."""
    overwrite(tmp_path, 1)
    remove_after_overwrite(tmp_path, checked=False)
    assert ckpt.steps(tmp_path) == []


def save_with_lost_answer(run: Path, *, arrives: bool, sent: list[bytes]) -> None:
    """Save step 1 while the answer to its commit is lost; add its record to `sent`."""
    store = open_store(run)

    def create(name: str, data: bytes) -> bool:
        if name != "steps/1.json":
            return store.create(name, data)
        sent.append(data)
        if arrives:
            store.create(name, data)
        raise StoreError("Expected an answer, found none.", outcome="unknown")

    meeting = cast(Store, Meeting(store, {"create": create}))
    options = Options(1, {}, overwrite=False, codec=None, max_host_bytes=None)
    job = join()
    save_snapshot(job, meeting, describe_tree({"w": np.arange(3)}, None, job), options)


def test_a_commit_that_arrived_without_an_answer_is_one(tmp_path: Path) -> None:
    save_with_lost_answer(tmp_path, arrives=True, sent=[])
    np.testing.assert_array_equal(ckpt.restore(tmp_path)["w"], np.arange(3))
    assert ckpt.verify(tmp_path).orphans == ()


def test_a_commit_that_may_still_arrive_keeps_its_data(tmp_path: Path) -> None:
    sent: list[bytes] = []
    with pytest.raises(ckpt.CommitUnknown, match="found it not yet so"):
        save_with_lost_answer(tmp_path, arrives=False, sent=sent)
    assert ckpt.steps(tmp_path) == []
    (directory,) = tmp_path.glob("1-*")
    assert ckpt.verify(tmp_path).orphans == (directory.name,)
    # The record comes late: what it names is still there.
    assert open_store(tmp_path).create("steps/1.json", sent[0])
    np.testing.assert_array_equal(ckpt.restore(tmp_path)["w"], np.arange(3))


@pytest.mark.parametrize("how", ["overwrite", "drop"])
def test_verify_tells_a_step_that_went_from_a_damaged_one(
    how: str, tmp_path: Path
) -> None:
    overwrite(tmp_path, 1)
    opened = open_path(tmp_path, 1)
    if how == "overwrite":
        overwrite(tmp_path, 2)
    else:
        ckpt.prune(tmp_path, drop=[1])
    with pytest.raises(ckpt.NotFound, match="removed or replaced"):
        verify_opened(opened)


def test_verify_reports_a_file_that_is_gone_from_a_step_that_stays(
    tmp_path: Path,
) -> None:
    overwrite(tmp_path, 1)
    next(tmp_path.glob("1-*/zarr.json")).unlink()
    report = ckpt.verify(tmp_path)
    assert [p.object for p in report.missing] == ["zarr.json"]
