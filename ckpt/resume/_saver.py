"""The saves of a run: begun, waited for, told to its log, pruned after."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax

from .._catalog import committed_steps
from .._checkpoint import Checkpoint
from .._drain import drain
from .._errors import CkptError, NotFound
from .._pending import wait_until_idle
from .._prune import Keep, prune_run
from .._save import save, save_async
from .._warn import warn_caller
from ._auto import Auto
from ._choose import Place
from ._events import EventLog

_log = logging.getLogger("ckpt")


@dataclass(slots=True)
class Saver:
    """Saves the trees of one run, in order.

    `options` are `ckpt.save`'s. Steps `later` than the one resumed are overwritten;
    those `abandoned` of them are removed once a save has taken another way.
    """

    place: Place
    mesh: Any
    keep: Keep | None
    keep_local: int
    options: Mapping[str, Any]
    log: EventLog
    auto: Auto | None
    later: frozenset[int] = frozenset()
    abandoned: frozenset[int] = frozenset()
    pending: Future[Checkpoint] | None = field(default=None, init=False)
    failed: BaseException | None = field(default=None, init=False)

    def save(
        self,
        step: int,
        tree: Any,
        metrics: Mapping[str, Any] | None,
        *,
        why: str,
        last: int,
    ) -> None:
        """Save a step in the background; at once if it is the last one or a stop's.

        `last` is the step that was resumed or saved before it.
        """
        began = time.monotonic()
        options: dict[str, Any] = {
            **self.options,
            "step": step,
            "metrics": metrics,
            "overwrite": step in self.later,
            # The newest step, whose objects would be named, must be one of this way: of
            # a later one it is not known that they are whole.
            "reuse": self.options["reuse"] and max(self.later, default=0) <= last,
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
            if error is not self.failed:
                self.log.add("failed_save", step=step, error=str(error))
            raise
        self.later -= {step}
        stall = time.monotonic() - began
        if self.auto is not None and why not in ("stop", "last"):
            self.auto.see_stall(stall)
        self.log.add("save", step=step, stall=stall, reason=why)
        self.log.flush()

    def finish(self, *, stopped: bool) -> None:
        """Wait for what is pending, and bring to the mirror what it is owed.

        A run that was `stopped` goes on, and with it the mirror's copies: what it does
        not take now is only warned of.
        """
        if self.pending is not None:
            self.pending.result()
            # What is told and pruned after a commit is not in its future.
            wait_until_idle(self.place.url, what="save")
        if self.place.mirror is None:
            return
        try:
            drain(
                self.place.url,
                self.place.mirror,
                keep_local=self.keep_local,
                store_options=self.place.store_options,
            )
        except NotFound:
            pass  # nothing was ever saved
        except CkptError as error:
            if not stopped:
                raise
            warn_caller(
                f"expected the mirror {self.place.mirror} to take what it is owed, "
                f"found {error} - the next start goes on"
            )

    def _see(self, step: int, began: float, done: Future[Checkpoint]) -> None:
        # Not done.exception(): that counts as looked at, and the next save raises it.
        error = Future[Checkpoint].exception(done)
        if error is not None:
            self.failed = error
            self.log.add("failed_save", step=step, error=str(error))
        else:
            self._commit(step, began, Future[Checkpoint].result(done))

    def _commit(self, step: int, began: float, done: Checkpoint) -> None:
        """Do what follows a commit, on the thread that made it."""
        seconds = time.monotonic() - began
        if self.auto is not None:
            self.auto.see_write(seconds)
        self.log.add("saved", step=step, seconds=seconds, bytes=done.nbytes)
        if jax.process_index():
            return
        self.abandoned -= {step}
        try:
            self._prune(step)
        except CkptError as error:
            # The step is saved; the next one prunes again.
            _log.warning("expected to prune %s, found %s", self.place.url, error)

    def _prune(self, step: int) -> None:
        """Remove what training has gone back behind, then what `keep` does not keep.

        A newer step that could not be loaded must not push out those that can be.
        """
        if self.abandoned:
            for run in self.place.open_all():
                prune_run(run, drop=self.abandoned.intersection(committed_steps(run)))
            self.abandoned = frozenset()
        if self.keep is not None:
            aside = [number for number in self.later if number > step]
            prune_run(self.place.open(), keep=self.keep, aside=aside)
