"""Writes a set of safetensors files of a tree that the processes of a job share.

Each file is written by one process. What of it others hold they hand over, in steps
that all of them plan alike; process 0 puts the index when every file is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np

from layouts import Handover

from .._copy import Progress
from .._errors import CommitUnknown, NotFound, Unsupported
from .._exchange import give_up, move_agreed, refuse_lost, trade_bytes
from .._job import Job, Post, joined
from .._snapshot import differing_leaves
from .._source import Source, Transfer
from .._store import Store
from .._together import refuse_memory, withdrawing
from ._entry import Array
from ._safetensors_items import Content, Request, take_content
from ._safetensors_outs import Outs
from ._safetensors_parts import Plan, plan_parts
from ._safetensors_plan import INDEX, choose_infix, plan_files, split_items
from ._safetensors_write import (
    begin_set,
    commit_set,
    limit_files,
    list_free,
    make_infix,
    read_old,
    refuse_ties,
)


def write_set_together(request: Request, barrier_timeout: float) -> tuple[str, ...]:
    """Do what `ckpt.save_safetensors` says of a tree that processes share."""
    with joined(barrier_timeout, in_turn=True) as job, withdrawing(job, ["begin"]):
        with job.refusing("begin"):
            store, told = begin_set(request)
            refuse_memory(store, job)
            content = take_content(request, job)
            refuse_ties(told, content)
            begun = _Begun(store, content, request.max_shard_bytes)
            if job.process == 0:
                begun.look(overwrite=request.overwrite)
        call = (
            f"save_safetensors(max_shard_bytes={request.max_shard_bytes}, "
            f"overwrite={request.overwrite}) to {store.url}"
        )
        post = {
            "call": call,
            "budget": request.max_host_bytes,
            "leaves": _digest(content.marks),
            "names": _digest([[x.name for x in content.items], content.ties, told]),
        }
        answer = job.begin(lambda: post, decide=begun.decide)
        if answer is None:
            return job.agree("leaves", lambda: content.marks, decide=_refuse_differing)
        with job.refusing("write-0"):
            budget = answer["budget"]
            most = limit_files(store, content, request.max_shard_bytes, budget)
            groups = split_items(content.items, most=most)
            files, index = plan_files(
                groups, ties=content.ties, metadata=told, infix=answer["infix"]
            )
            plan = plan_parts(files, job.count, budget)
        made = [file.name for file in files]

        def commit() -> None:
            _check_there(store, plan)
            commit_set(store, index, made, begun.names, begun.old)

        _write_files(job, store, plan, request.progress, commit)
    return (*made, INDEX) if index else tuple(made)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _refuse_differing(posts: list[Post]) -> Any:
    lines = "\n  ".join(differing_leaves(posts))
    raise Unsupported(
        "expected the same tree on every process, found leaves that differ:\n  "
        f"{lines}\nmake what is on the host equal (broadcast it from one process)"
    )


@dataclass(slots=True)
class _Begun:
    """What process 0 finds in the folder, and decides for all."""

    store: Store
    content: Content
    max_shard_bytes: int
    names: list[str] = field(default_factory=list[str])
    old: frozenset[str] = frozenset()

    def look(self, *, overwrite: bool) -> None:
        """See what is there, and refuse a folder where no set may be written."""
        self.names = list_free(self.store, overwrite=overwrite)
        self.old = read_old(self.store, self.names)

    def decide(self, posts: list[Post]) -> Post | None:
        """Return what all must plan alike with; None where their leaves differ."""
        for process, post in enumerate(posts):
            if post["leaves"] != posts[0]["leaves"]:
                return None
            if post["names"] != posts[0]["names"]:
                raise Unsupported(
                    "expected all processes to give the same select=, rename= and "
                    f"metadata=, found others on process {process} than on process 0"
                )
        budgets = [post["budget"] for post in posts if post["budget"] is not None]
        budget = min(budgets, default=None)
        most = limit_files(self.store, self.content, self.max_shard_bytes, budget)
        count = len(split_items(self.content.items, most=most))
        infix = choose_infix(count, taken=self.names, old=self.old, spare=make_infix())
        self.store.make_folders([""])
        return {"budget": budget, "infix": infix}


def _write_files(
    job: Job,
    store: Store,
    plan: Plan,
    progress: Progress | None,
    commit: Callable[[], None],
) -> None:
    """Write the files of this process, step by step with the others; then commit."""
    arrived: Array | str = np.empty((job.count, 0), np.uint8)
    before = Handover((), (), 0)
    with ExitStack() as stack:
        outs = Outs(job.process, store, plan, progress, stack)
        for number, step in enumerate(plan.steps):
            name = f"write-{number}"
            with withdrawing(job, [name, f"write-{number + 1}", "commit"]):
                if isinstance(arrived, str):
                    give_up(job, name, arrived)
                # All meet before each exchange: none waits in it for one that failed.
                with job.refusing(name):
                    outs.put(before, arrived)
                    sent = _pack(step, plan, job)
                if step.length:
                    move = partial(trade_bytes, sent)
                    arrived = move_agreed(job, name, move, post={}, decide=refuse_lost)
                else:
                    job.agree(name, dict[str, Any], decide=refuse_lost)
            before = step
        with withdrawing(job, ["commit"]):
            if isinstance(arrived, str):
                give_up(job, "commit", arrived)
            with job.refusing("commit"):
                outs.put(before, arrived)
                outs.finish()
                store.sync_folders([""])

            def decide(posts: list[Post]) -> None:
                refuse_lost(posts)
                outs.publish()
                commit()

            try:
                job.agree("commit", dict[str, Any], decide=decide, unanswered=_Silence)
            except _Silence:
                raise CommitUnknown(
                    "expected to learn whether the set was completed, found that "
                    f"process 0 does not say - in {store.url}: look at what is there"
                ) from None


class _Silence(Exception):
    """Process 0 may have completed the set, and does not say so."""


def _check_there(store: Store, plan: Plan) -> None:
    """Refuse to name files that other processes wrote to some other folder."""
    for file, owner in zip(plan.files, plan.owners, strict=True):
        size = store.size(file.name)
        if size != file.size:
            found = "none" if size is None else f"one of {size:,}"
            raise NotFound(
                f"expected a file of {file.size:,} bytes from process {owner}, found "
                f"{found} - at {store.url}/{file.name}: give all processes the same "
                "folder"
            )


def _pack(step: Handover, plan: Plan, job: Job) -> Array:
    """Return what this process hands over in a step: a row for each process."""
    sent = np.zeros((job.count, step.length), np.uint8)
    mine = [parcel for parcel in step.parcels if parcel.sender == job.process]
    # All transfers from devices begin before the first is waited for.
    transfers: list[Transfer] = []
    for parcel in mine:
        share = plan.needs[parcel.need].shares[parcel.share]
        source = cast("Source", plan.places[parcel.need].item.source)
        transfers.append(source.start(share.box))
    for parcel, transfer in zip(mine, transfers, strict=True):
        to = plan.needs[parcel.need].receiver
        data = np.ascontiguousarray(transfer()).reshape(-1).view(np.uint8)
        sent[to, parcel.offset : parcel.offset + parcel.nbytes] = data
    return sent
