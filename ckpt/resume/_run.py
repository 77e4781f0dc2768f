"""A training loop's run: resume, save when it is due, stop when it is told to."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import jax

from .._catalog import PathLike
from .._drain import KEEP_LOCAL
from .._errors import CkptError
from .._job import BARRIER_SECONDS
from .._prune import Keep
from .._store_options import GivenOptions
from .._target import Specs
from .._warn import warn_caller
from ._auto import Auto
from ._choose import Place, go_on, load_newest
from ._events import EventLog
from ._history import read_history
from ._notice import SIGNALS, Notices, Source
from ._policy import Every, Last, Policy, check_when
from ._saver import Saver
from ._stream import Stream, open_stream
from ._sync import SyncPoints
from ._told import check_config, compare_told, tell
from ._tree import Saved, in_state, is_function, lay_out, make_like, make_tree

REQUEUE = 85
"""The exit code that says: saved, start me again."""

_log = logging.getLogger("ckpt")


class Run:
    """A run of a training loop: what it resumes, when it saves, why it stops.

    A context manager. `path` is the run's folder or URL ($CKPT_PATH or ./checkpoints
    by default).
    `save` is a policy (`ckpt.every(steps=500, minutes=15)`, or any function of step,
    time and last save),
    "auto" (an interval from measured stalls and failures), or None: then only the last
    step and preemptions are saved. `keep` prunes after each commit. `config` is what
    the caller wants compared on resume: seeds, the optimizer, its learning rate.
    `mirror`, `keep_local`, `codec`, `max_host_bytes`, `reuse`, `barrier_timeout` and
    `store_options` are `ckpt.save`'s.

    Signals (SIGTERM, SIGUSR1) and `notice` (a file whose existence is a notice, or a
    function that returns whether there is one) stop the run: all processes save the
    same step, and with `on_notice="exit"` the block ends with SystemExit(85), which
    says: saved, start me again. With "continue" it goes on after the save. A second
    signal of the same kind ends the process at once; handlers that were there before
    are put back at the end, and not called before. A process that raises saves nothing.
    A Run touches no device before `resume`, so it may be entered before
    jax.distributed.initialize().

    In a job of several processes all make the same calls. Steps are counted as done:
    step 1 is saved when one step has been trained.

    >>> import jax.numpy as jnp, ckpt
    >>> with ckpt.Run("memory://doc-train", save=ckpt.every(steps=2)) as run:
    ...     state, _ = run.resume({"w": jnp.zeros(2)})
    ...     for step in run.steps(until=5):
    ...         state = {"w": state["w"] + 1.0}
    ...         saved = run.saved(step, state)
    >>> ckpt.steps("memory://doc-train")
    [2, 4, 5]
    """

    __module__ = "ckpt"

    def __init__(
        self,
        path: PathLike | None = None,
        mesh: Any = None,
        *,
        save: Policy | Literal["auto"] | None = "auto",
        keep: Keep | None = None,
        config: Mapping[str, Any] | None = None,
        signals: Sequence[int] = SIGNALS,
        notice: Source | None = None,
        on_notice: Literal["exit", "continue"] = "exit",
        mirror: PathLike | None = None,
        keep_local: int = KEEP_LOCAL,
        codec: str | None = None,
        max_host_bytes: int | None = None,
        reuse: bool = False,
        barrier_timeout: float = BARRIER_SECONDS,
        store_options: GivenOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Describe the run; nothing happens before the block is entered."""
        check_when(save, keep, on_notice)
        self.path, self.mesh, self.keep, self.mirror = path, mesh, keep, mirror
        self.config = check_config(config)
        self.step = 0
        """The last step that is done."""
        self.stopped = False
        """Whether the run was told to stop, and has saved."""
        self._place = Place(path, mirror, barrier_timeout, store_options)
        self._policy: Policy | None = Auto() if save == "auto" else save
        self._signals, self._notice, self._on_notice = signals, notice, on_notice
        self._options = {
            "codec": codec,
            "max_host_bytes": max_host_bytes,
            "reuse": reuse,
            "barrier_timeout": barrier_timeout,
            "store_options": store_options,
            "mirror": mirror,
            "keep_local": keep_local,
        }
        self._keep_local = keep_local
        self._clock = clock
        self._notices: Notices | None = None
        self._sync: SyncPoints | None = None
        self._early: list[str] = []
        self._log: EventLog | None = None
        self._stream: Stream | None = None
        self._last = Last(0, 0.0)
        self._due: str | None = None
        self._until: int | None = None
        self._saver: Saver | None = None

    def __enter__(self) -> Self:
        self._notices = Notices(self._hear, signals=self._signals, source=self._notice)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        why = "preempted" if self.stopped else "finished"
        try:
            # One that failed does not try to save, nor to wait for the others.
            if error is None and self._saver is not None:
                self._saver.finish(stopped=self.stopped)
                self._warn_of_unsaved()
        except BaseException:
            why = "failed"
            raise
        finally:
            if self._sync is not None:
                self._sync.close()
            if self._notices is not None:
                self._notices.close()
            self._note("stop", step=self.step, reason="failed" if error else why)
            if self._log is not None:
                self._log.close()
        if self.stopped and error is None:
            raise SystemExit(REQUEUE)

    @property
    def notified(self) -> bool:
        """Whether a notice has come that the run has not answered yet.

        So that a long evaluation can be left early.
        """
        return bool(self._early) or (self._sync is not None and self._sync.is_asked)

    def resume(
        self,
        init: Any,
        data: Any = None,
        *,
        step: int | None = None,
        check_data: bool = True,
        specs: Specs | None = None,
        rename: Mapping[str, str] | None = None,
        cast: bool | str = False,
        missing: str = "error",
        extra: str = "error",
    ) -> tuple[Any, Any]:
        """Return the state and data to go on with: the newest step's that verifies.

        `init` is the state to begin with where nothing is committed, or a function
        that makes it (called only then if jax.eval_shape takes it, so that memory never
        holds two states). It says what is restored: structure,
        dtypes, shardings. `data` is a `Stream`, a loader, dataset or iterator whose
        position can be saved; a Stream comes back. What is damaged is skipped with a
        warning; when steps are committed and none loads, Damaged is raised. `step`
        goes back to an older one: those later than it are removed, in the mirror too,
        once a save has taken another way.

        DataMismatch when the data is not what was saved (`check_data=False` takes its
        position all the same); StructureMismatch when the model or the optimizer is
        not, unless `rename`, `missing`, `extra`, `cast` (see `ckpt.restore`) allow it.
        Warns where JAX's settings, versions, the device or `config` differ.
        """
        began = time.monotonic()
        if self._notices is None:
            raise RuntimeError(
                "expected a run that was entered, found one outside of its block: "
                "with ckpt.Run(..) as run: .."
            )
        self._notices.renew_if_taken()
        log = self._open_log()
        if self._saver is not None:
            # Going back within a block.
            self._saver.finish(stopped=False)
        stream = None if data is None else open_stream(data)
        told = tell(self.config, stream, self.mesh, jax.process_count())

        def check(saved: Saved) -> None:
            where = f"step {saved.step} in {self._place.url}"
            compare_told(saved, told, where=where, check_data=check_data)

        options = in_state(specs=specs, rename=rename)
        options |= {"cast": cast, "missing": missing, "extra": extra}
        like = make_like(init, self.mesh)
        resumed = load_newest(
            self._place, self.mesh, like, step=step, check=check, options=options
        )
        number, skipped, later = 0, list[int](), frozenset[int]()
        if resumed is None:
            state = lay_out(init() if is_function(init) else init, self.mesh)
        else:
            state, number = resumed.state, resumed.saved.step
            skipped, later = sorted(resumed.skipped), resumed.later
            stream = go_on(self._place, resumed.saved, stream)
        self._stream, self.step = stream, number
        self._last = Last(number, self._clock())
        auto = self._policy if isinstance(self._policy, Auto) else None
        if auto is not None and not jax.process_index():
            # Without the log the prior stands.
            with contextlib.suppress(CkptError):
                auto.see_history(read_history(self._place.open()))
        self._saver = Saver(
            self._place,
            self.mesh,
            self.keep,
            self._keep_local,
            self._options,
            log,
            auto,
            later,
            later.difference(skipped),
        )
        if self._sync is not None:
            # Resumed once more: the thread of the last time must not outlive the block.
            self._sync.close()
        self._sync = SyncPoints(number)
        for why in self._early:
            self._sync.ask(why)
        self._note(
            "resume",
            step=number,
            seconds=time.monotonic() - began,
            skipped=skipped,
            fresh=resumed is None,
        )
        _log.info("%s goes on behind step %d", self._place.url, number)
        return state, stream

    def steps(self, *, until: int | None = None) -> Generator[int]:
        """Yield the steps to train, up to `until`, which is saved whatever the policy.

        Ends early when the run was told to stop and has saved: call `saved` in each.
        """
        self._require_resumed()
        self._until = until
        while not self.stopped and (until is None or self.step < until):
            step = self.step + 1
            yield step
            if self.step < step:
                self._pass(step)
            if self.step != step:
                raise ValueError(
                    f"expected saved({step}, ..) in step {step}, found {self.step}"
                )

    def saved(
        self,
        step: int,
        state: Any,
        data: Any = None,
        *,
        metrics: Mapping[str, Any] | None = None,
    ) -> bool:
        """Say that a step is done; save its state if that is due, and tell whether.

        `data` is what `resume` returned (the default); `metrics` are looked at only
        when the step is saved. Saves run in the background, but for the last one and
        those before a stop: when this returns from those, the step is durable.

        Raises what `ckpt.save` raises, and what an earlier save in the background did.
        """
        saver = self._require_resumed()
        if step < self.step:
            raise ValueError(f"expected a step after {self.step}, found {step}")
        if self.step < step:
            self._pass(step)
        why = self._why(step)
        if why is None:
            return False
        self._due = None
        if self._last.step != step:
            stream = self._choose_stream(data)
            tree = make_tree(
                state,
                position=None if stream is None else stream.position(),
                told=tell(self.config, stream, self.mesh, jax.process_count()),
            )
            saver.save(step, tree, metrics, why=why, last=self._last.step)
            self._last = Last(step, self._clock())
        if why == "stop":
            self.stopped = self._on_notice == "exit" and step != self._until
            self._early.clear()
            if self._notices is not None and not self.stopped:
                self._notices.forget()
        return True

    def _warn_of_unsaved(self) -> None:
        if self._last.step < self.step:
            warn_caller(
                f"expected the last step to be saved, found the block left after step "
                f"{self.step} - in {self._place.url}: what came after step "
                f"{self._last.step} is lost; call saved() in each step, up to until="
            )

    def _choose_stream(self, data: Any) -> Stream | None:
        """Return the stream whose position is saved: of its source it is unknown."""
        if data is None or (self._stream is not None and data is self._stream.source):
            return self._stream
        if not isinstance(data, Stream):
            raise TypeError(
                "expected data to be the stream that resume() returned, found "
                f"{type(data).__qualname__}: how far the training took it is not known"
            )
        return data

    def _pass(self, step: int) -> None:
        """Take note that a step is done; learn whether it is an agreed one."""
        self.step = step
        if self._log is not None:
            self._log.step(step)
        if self._notices is not None:
            self._notices.renew_if_taken()
        if self._asks(step) and self._sync is not None:
            self._sync.ask("save")
        found = self._sync.reached(step) if self._sync is not None else None
        if found is not None:
            self._due = "stop" if "stop" in (found, self._due) else found

    def _asks(self, step: int) -> bool:
        """Tell whether the policy wants a save that only one process knows of."""
        policy = self._policy
        if policy is None or jax.process_index() or self._is_multiple(step):
            return False
        return policy(step, self._clock(), self._last)

    def _is_multiple(self, step: int) -> bool:
        """Tell what all processes find alike, without a clock."""
        return isinstance(self._policy, Every) and self._policy.is_multiple(step)

    def _why(self, step: int) -> str | None:
        """Return why a step is to be saved, if it is: the same in all processes."""
        if self._due == "stop":
            return "stop"
        if step == self._until:
            return "last"
        return self._due or ("due" if self._is_multiple(step) else None)

    def _hear(self, source: str) -> None:
        """Take a notice, on the thread that heard it."""
        then = "stops" if self._on_notice == "exit" else "goes on"
        _log.warning("%s: the run saves as soon as it can, and %s", source, then)
        self._note("notice", source=source)
        self._early.append("stop")
        if self._sync is not None:
            self._sync.ask("stop")

    def _note(self, event: str, **fields: Any) -> None:
        if self._log is not None:
            self._log.add(event, **fields)

    def _open_log(self) -> EventLog:
        if self._log is None:
            run = self._place.open()
            self._log = EventLog.open(
                run,
                process=jax.process_index(),
                processes=jax.process_count(),
                devices=jax.device_count(),
            )
        return self._log

    def _require_resumed(self) -> Saver:
        if self._saver is None:
            raise RuntimeError(
                "expected resume() before this, found it not called: "
                "state, data = run.resume(init, data)"
            )
        return self._saver
