"""How process 0 begins a save: it chooses the step, notes the attempt, finds a base."""

from __future__ import annotations

import contextlib
import secrets
import warnings
from dataclasses import dataclass, field

import layouts
from layouts import CommitRecord, Part

from ._catalog import Opened, check_step, committed_steps, is_checkpoint, read_record
from ._errors import CkptError, NotFound, StepExists, StoreError
from ._notes import Attempt, note_attempt
from ._reuse import Base, choose_base
from ._store import Store
from ._uses import note_use
from ._written import Options, Written


@dataclass(slots=True)
class Begun:
    """What a process knows of the attempt while it is made; most of it process 0."""

    attempt: Attempt | None = None
    replaced: tuple[CommitRecord, bytes] | None = None
    replaces: tuple[str, ...] = ()
    base: Base | None = None
    opened: Opened | None = None
    share: Written = field(init=False)
    part: Part = field(init=False)
    data: bytes = b""


def begin_attempt(run: Store, options: Options, begun: Begun, began: float) -> Attempt:
    """Choose the step, unless it is given, and note an attempt at it."""
    if is_checkpoint(run):
        raise ValueError(
            f"expected the path of a run, found a checkpoint - at {run.url}: "
            "save takes the run's path (the folder that holds steps/)"
        )
    step = options.step
    beside = options.beside
    if beside is None:
        known: list[int] = []
    else:
        known = _steps_beside(beside.hurried(), run, needed=step is None)
    if step is None:
        step = check_step(max([*committed_steps(run), *known], default=-1) + 1)
    elif step in known and not options.overwrite:
        raise StepExists(
            f"expected step {step} to be free, found it committed in the run's other "
            f"place ({beside.url if beside else ''}): save another step, or pass "
            "overwrite=True"
        )
    elif step in known and beside is not None:
        with contextlib.suppress(CkptError):
            begun.replaces = (read_record(beside.hurried(), step)[0].commit,)
    begun.replaced = _replaced(run, step, overwrite=options.overwrite)
    attempt = Attempt(step, secrets.token_hex(8), began)
    run.make_folders(["", "steps"])
    note_attempt(run, attempt)
    begun.attempt = attempt
    if options.reuse:
        base = choose_base(run, besides=step if options.overwrite else None)
        note_use(run, attempt, base.directories if base else ())
        if base and base.is_there(run):
            begun.base = base
    return attempt


def _steps_beside(beside: Store, run: Store, *, needed: bool) -> list[int]:
    """Return the steps that the other place of a run has; none if it is silent.

    To choose a step they are `needed` where this place has none: it may be a new disk.
    """
    try:
        return committed_steps(beside)
    except StoreError as error:
        if needed and not committed_steps(run):
            raise
        warnings.warn(
            f"expected to see the steps of {beside.url}, found {error} - saved without",
            stacklevel=2,
        )
        return []


def _replaced(
    run: Store, step: int, *, overwrite: bool
) -> tuple[CommitRecord, bytes] | None:
    """Return the record an overwrite replaces; refuse to replace without it."""
    if not run.has(layouts.record_name(step)):
        return None
    if not overwrite:
        raise StepExists(
            f"expected step {step} to be free, found it committed - in {run.url}: "
            "save another step, or pass overwrite=True"
        )
    with contextlib.suppress(NotFound):
        return read_record(run, step)
    return None
