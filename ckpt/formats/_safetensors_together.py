"""Writes a set of safetensors files of a tree that the processes of a job share.

Each file is written by one process. What of it others hold they hand over, in steps
that all of them plan alike; process 0 puts the index when every file is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

import layouts
from layouts import Box, Handover, Need, Parcel, Share

from .._catalog import PathLike
from .._copy import Progress, count_up
from .._errors import Unsupported
from .._exchange import EXCHANGE_BYTES, trade_bytes
from .._job import Job, Post, joined
from .._snapshot import differing_leaves
from .._source import Source, Transfer
from .._store import Store, Writer
from .._store_options import GivenOptions
from .._together import refuse_memory, withdrawing
from .._written import check_budget
from ._entry import Array
from ._safetensors_items import Content, Item, read_source, take_content
from ._safetensors_plan import (
    INDEX,
    SINGLE,
    File,
    assign_files,
    choose_infix,
    cut_item,
    plan_files,
    split_items,
)
from ._safetensors_write import (
    PIECE_BYTES,
    check_metadata,
    check_shard,
    commit_set,
    lay,
    limit_files,
    list_free,
    locate_set,
    make_infix,
    read_old,
    refuse_ties,
)

_COPIES = 4
"""How often what is handed over in a step is held: here and on a device, out and in."""

_LEAST_BYTES = 4096
"""What a process hands another in a step, or more, however many there are."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the set a box of an array goes."""

    file: int
    offset: int
    item: Item
    box: Box


@dataclass(frozen=True, slots=True)
class _Plan:
    """The files and who writes each; the boxes of all of them, and how they are met."""

    files: list[File]
    owners: list[int]
    places: list[_Place]
    needs: list[Need]
    steps: list[Handover]


def write_set_together(
    tree: Any,
    out: PathLike,
    *,
    step: int | None,
    select: str | Iterable[str] | None,
    rename: Mapping[str, str] | None,
    metadata: Mapping[str, str] | None,
    max_shard_bytes: int,
    max_host_bytes: int | None,
    overwrite: bool,
    progress: Progress | None,
    barrier_timeout: float,
    options: GivenOptions | None,
) -> tuple[str, ...]:
    """Do what `ckpt.save_safetensors` says of a tree that processes share."""
    with joined(barrier_timeout, in_turn=True) as job, withdrawing(job, ["begin"]):
        with job.refusing("begin"):
            check_budget(max_host_bytes)
            check_shard(max_shard_bytes)
            told = check_metadata(metadata)
            store = locate_set(out, options)
            refuse_memory(store, job)
            content = take_content(
                tree,
                step=step,
                select=select,
                rename=rename,
                max_host_bytes=max_host_bytes,
                options=options,
                job=job,
            )
            refuse_ties(told, content)
            begun = _Begun(store, content, max_shard_bytes)
            if job.process == 0:
                begun.look(overwrite=overwrite)
        call = (
            f"save_safetensors(max_shard_bytes={max_shard_bytes}, "
            f"overwrite={overwrite}) to {store.url}"
        )
        post = {
            "call": call,
            "budget": max_host_bytes,
            "leaves": _digest(content.marks),
            "names": _digest([[x.name for x in content.items], content.ties, told]),
        }
        answer = job.begin(lambda: post, decide=begun.decide)
        if answer is None:
            return job.agree("leaves", lambda: content.marks, decide=_refuse_differing)
        with job.refusing("write-0"):
            budget = answer["budget"]
            most = limit_files(store, content, max_shard_bytes, budget)
            groups = split_items(content.items, most=most)
            files, index = plan_files(
                groups, ties=content.ties, metadata=told, infix=answer["infix"]
            )
            plan = _plan(files, job.count, budget)
        _write_files(job, store, plan, progress)
        made = [file.name for file in files]

        def commit(_: list[Post]) -> None:
            commit_set(store, index, made, begun.names, begun.old)

        with withdrawing(job, ["commit"]):
            job.agree("commit", dict[str, Any], decide=commit)
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


def _plan(files: list[File], processes: int, budget: int | None) -> _Plan:
    owners = assign_files(files, processes)
    held = min(budget or EXCHANGE_BYTES, EXCHANGE_BYTES) // _COPIES
    most = max(_LEAST_BYTES, held // processes)
    places: list[_Place] = []
    needs: list[Need] = []
    for number, (file, owner) in enumerate(zip(files, owners, strict=True)):
        at = len(file.header)
        for item in file.items:
            size = min(held, PIECE_BYTES) if _has_whole(item, owner) else most
            # A float4 is a whole byte in memory.
            for box in cut_item(item, most=size * min(item.bits, 8) // 8):
                if box.size:
                    shares = _share(item, box, owner)
                    itemsize = max(item.bits, 8) // 8
                    needs.append(Need(owner, shares, itemsize, number))
                    places.append(_Place(number, at, item, box))
                at += box.size * item.bits // 8
    return _Plan(files, owners, places, needs, layouts.plan_handovers(needs, most=most))


def _holders(item: Item) -> layouts.Holders | None:
    """Return who holds each piece of an array; None where all have all of it."""
    if not isinstance(item.source, Source) or item.source.is_on_host:
        return None
    pieces = item.source.pieces
    assert pieces is not None
    count = layouts.Grid(item.shape, pieces.piece).length
    return pieces.holders or ((0,),) * count


def _has_whole(item: Item, process: int) -> bool:
    return all(process in found for found in _holders(item) or ())


def _share(item: Item, box: Box, owner: int) -> tuple[Share, ...]:
    holders = _holders(item)
    if holders is None or not isinstance(item.source, Source):
        return (Share(box, (owner,)),)
    pieces = item.source.pieces
    assert pieces is not None
    return layouts.share_box(box, item.shape, pieces.piece, holders)


def _write_files(
    job: Job, store: Store, plan: _Plan, progress: Progress | None
) -> None:
    """Write the files of this process, step by step with the others."""
    arrived = np.empty((job.count, 0), np.uint8)
    before = Handover((), (), 0)
    with ExitStack() as stack:
        outs = _Outs(job.process, store, plan, progress, stack)
        for number, step in enumerate(plan.steps):
            name = f"write-{number}"
            with withdrawing(job, [name, f"write-{number + 1}", "commit"]):
                # All meet before each exchange: none waits in it for one that failed.
                with job.refusing(name):
                    outs.put(before, arrived)
                    sent = _pack(step, plan, job)
                job.agree(name, dict[str, Any], decide=_go_on)
                if step.length:
                    arrived = trade_bytes(sent)
            before = step
        with withdrawing(job, ["commit"]), job.refusing("commit"):
            outs.put(before, arrived)
            outs.finish()
            store.sync_folders([""])


def _go_on(_: list[Post]) -> None:
    """Decide nothing."""


def _pack(step: Handover, plan: _Plan, job: Job) -> Array:
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


class _Outs:
    """The files that a process writes: each is closed when all its boxes are there."""

    def __init__(
        self,
        process: int,
        store: Store,
        plan: _Plan,
        progress: Progress | None,
        stack: ExitStack,
    ) -> None:
        mine = [n for n, owner in enumerate(plan.owners) if owner == process]
        self._left = dict.fromkeys(mine, 0)
        for place, need in zip(plan.places, plan.needs, strict=True):
            if need.receiver == process:
                self._left[place.file] += 1
        self._count = count_up(progress, sum(plan.files[n].size for n in mine))
        self._process, self._store, self._plan = process, store, plan
        self._stack = stack
        self._open: dict[int, Writer] = {}

    def put(self, step: Handover, arrived: Array) -> None:
        """Write the boxes of a step, of what has arrived and of what is here."""
        sent = {(p.need, p.share): p for p in step.parcels}
        for number in step.needs:
            need, place = self._plan.needs[number], self._plan.places[number]
            if need.receiver != self._process:
                continue
            out = self._open.get(place.file) or self._begin(place.file)
            parcels = [sent.get((number, n)) for n in range(len(need.shares))]
            values = _gather(place, need, parcels, arrived)
            data = lay(place.item, values)
            out.write_at(place.offset, [data])
            self._count(data.nbytes)
            self._left[place.file] -= 1
            if not self._left[place.file]:
                self._close(place.file)

    def finish(self) -> None:
        """Write the files without any values."""
        for number, left in list(self._left.items()):
            if not left:
                self._begin(number)
                self._close(number)

    def _begin(self, number: int) -> Writer:
        file = self._plan.files[number]
        out = self._store.write(file.name, size=file.size, over=file.name == SINGLE)
        self._open[number] = self._stack.enter_context(out)
        out.write_at(0, [file.header])
        self._count(len(file.header))
        return out

    def _close(self, number: int) -> None:
        self._open.pop(number).close()
        del self._left[number]


def _gather(
    place: _Place, need: Need, parcels: Sequence[Parcel | None], arrived: Array
) -> Array:
    """Return the values of a box: its shares that came in parcels, and those here."""
    source = place.item.source
    if not any(parcels) or not isinstance(source, Source):
        return read_source(source, place.box)
    dtype = source.leaf.numpy_dtype
    values = np.empty(place.box.shape, dtype)
    for share, parcel in zip(need.shares, parcels, strict=True):
        if parcel is None:
            part = source.fetch(share.box)
        else:
            data = arrived[parcel.sender, parcel.offset :][: parcel.nbytes]
            part = data.view(dtype).reshape(share.box.shape)
        values[share.box.within(place.box.start)] = part
    return values
