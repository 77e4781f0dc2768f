"""The files of a set that one process of a job writes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from layouts import Handover, Need, Parcel

from .._copy import Progress, count_up
from .._source import Source
from .._store import Store, Writer
from ._entry import Array
from ._safetensors_items import read_source
from ._safetensors_parts import Place, Plan
from ._safetensors_plan import SINGLE
from ._safetensors_write import lay


class Outs:
    """The files that a process writes: each is closed when all its boxes are there."""

    def __init__(
        self,
        process: int,
        store: Store,
        plan: Plan,
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
            if not left and number not in self._open:
                self._begin(number)
                self._close(number)

    def publish(self) -> None:
        """Put the one plain file, which is a set by itself, in its place."""
        for out in self._open.values():
            out.close()
        self._store.sync_folders([""])

    def _begin(self, number: int) -> Writer:
        file = self._plan.files[number]
        out = self._store.write(file.name, size=file.size, over=file.name == SINGLE)
        self._open[number] = self._stack.enter_context(out)
        out.write_at(0, [file.header])
        self._count(len(file.header))
        return out

    def _close(self, number: int) -> None:
        if self._plan.files[number].name == SINGLE:
            # It would take the old one's place while another process may yet fail.
            return
        self._open.pop(number).close()
        del self._left[number]


def _gather(
    place: Place, need: Need, parcels: Sequence[Parcel | None], arrived: Array
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
