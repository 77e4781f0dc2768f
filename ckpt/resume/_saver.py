"""The saves of a run: begun, waited for, told to its log, pruned after."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax

from .._catalog import steps
from .._checkpoint import Checkpoint
from .._drain import drain
from .._errors import CkptError, NotFound
from .._pending import wait_until_idle
from .._prune import Keep, prune
from .._save import save, save_async
from ._auto import Auto
from ._choose import Place
from ._events import EventLog

_log = logging.getLogger("ckpt")


@dataclass(slots=True)
class Saver:
    """Saves the trees of one run, in order.

    `options` are `ckpt.save`'s; steps `later` than the one resumed are overwritten,
    and where the caller `went_back` removed once another is committed: else the next
    start would go on from them.
    """

    place: Place
    mesh: Any
    keep: Keep | None
    keep_local: int
    options: Mapping[str, Any]
    log: EventLog
    auto: Auto | None
    later: frozenset[int] = frozenset()
    went_back: bool = False
    pending: Future[Checkpoint] | None = field(default=None, init=False)
    ahead: frozenset[int] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        self.ahead = self.later

    def save(
        self, step: int, tree: Any, metrics: Mapping[str, Any] | None, *, why: str
    ) -> None:
        """Save a step in the background; at once if it is the last one or a stop's."""
        began = time.monotonic()
        options: dict[str, Any] = {
            **self.options,
            "step": step,
            "metrics": metrics,
            "overwrite": step in self.later,
        }
        try:
            if why in ("stop", "last"):
                self._commit(
                    step, began, save(tree, self.mesh, self.place.path, **options)
                )
            else:
                self.pending = save_async(tree, self.mesh, self.place.path, **options)
                self.pending.add_done_callback(partial(self._see, step, began))
        except CkptError as error:
            self.log.add("failed_save", step=step, error=str(error))
            raise
        stall = time.monotonic() - began
        if self.auto is not None:
            self.auto.see_stall(stall)
        self.log.add("save", step=step, stall=stall, reason=why)
        self.log.flush()

    def finish(self) -> None:
        """Wait for what is pending, and bring to the mirror what it is owed."""
        if self.pending is not None:
            self.pending.result()
        # What follows a commit is done by the thread that made it.
        wait_until_idle(self.place.url, what="save")
        if self.place.mirror is not None:
            # NotFound: nothing was ever saved.
            with contextlib.suppress(NotFound):
                drain(
                    self.place.url,
                    self.place.mirror,
                    keep_local=self.keep_local,
                    store_options=self.place.store_options,
                )

    def _see(self, step: int, began: float, done: Future[Checkpoint]) -> None:
        # Not done.exception(): that counts as looked at, and the next save raises it.
        error = Future[Checkpoint].exception(done)
        if error is not None:
            self.log.add("failed_save", step=step, error=str(error))
        else:
            self._commit(step, began, Future[Checkpoint].result(done))

    def _commit(self, step: int, began: float, done: Checkpoint) -> None:
        """Do what follows a commit, on the thread that made it."""
        seconds = time.monotonic() - began
        if self.auto is not None:
            self.auto.see_write(seconds)
        self.log.add("saved", step=step, seconds=seconds, bytes=done.nbytes)
        if jax.process_index() == 0:
            try:
                self._remove(step)
            except CkptError as error:
                # The step is saved; the next one prunes again.
                _log.warning("expected to prune %s, found %s", self.place.url, error)

    def _remove(self, step: int) -> None:
        """Remove what is not kept now that a step is committed."""
        options = self.place.store_options
        if self.went_back:
            places = [self.place.path]
            if self.place.mirror is not None:
                places.append(self.place.mirror)
            for place in places:
                there = steps(place, store_options=options)
                doomed = self.later.intersection(s for s in there if s > step)
                prune(place, drop=doomed, store_options=options)
            self.went_back, self.ahead = False, frozenset()
        # A later one that could not be read is the newest for a rule: it would keep
        # that, and remove what is whole.
        if self.keep is not None and all(step >= later for later in self.ahead):
            prune(self.place.path, keep=self.keep, store_options=options)
