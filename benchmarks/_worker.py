"""One contender in its own process: reads requests from stdin, answers on stdout.

A process of its own keeps one library's threads, caches and heap out of another's
time and memory. Only one contender is ever busy; a job's processes all get the same
requests.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, cast

import jax
from jax.experimental import multihost_utils

from benchmarks._cases import Case, find_case
from benchmarks._compare import list_differences
from benchmarks._measure import measure_call, measure_resident
from benchmarks._overlap import Trainer, measure_overlap
from benchmarks._pool import Job
from benchmarks._train import build_step, build_tokens
from benchmarks._trees import (
    FULL,
    QUICK,
    Placement,
    abstract_state,
    build_state,
    draw_bits,
    draw_values,
    draw_weights,
    shape_tree,
)
from benchmarks.contenders import (
    DescribingLibrary,
    OverlappingLibrary,
    find_contender,
    load_library,
)

_DRAWS = {"bits": draw_bits, "weights": draw_weights}


def serve_requests(job: Job, *, coordinator: str, number: int) -> None:
    # The libraries may print: only answers go to the real stdout.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", job.devices)
    if job.processes > 1:
        jax.distributed.initialize(coordinator, job.processes, number)
    session = _Session(job)
    for line in sys.stdin:
        try:
            answer = session.answer(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class _Session:
    def __init__(self, job: Job) -> None:
        self._library = load_library(find_contender(job.contender))
        self._job = job
        self._shapes: Any = None
        self._state: Any = None
        self._trainer: Trainer | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "warm":
                return self._warm(request)
            case "prepare":
                return self._prepare(request)
            case "save":
                folder = Path(request["folder"])
                sample, _ = measure_call(
                    lambda: self._library.save(self._state, folder), ready=self._ready
                )
                return dataclasses.asdict(sample)
            case "restore":
                return self._restore(request)
            case "metadata":
                folder = Path(request["folder"])
                library = cast("DescribingLibrary", self._library)
                sample, _ = measure_call(lambda: library.metadata(folder))
                return dataclasses.asdict(sample)
            case "train":
                return self._train(request)
            case "release":
                self._state = self._shapes = self._trainer = None
                return {"resident_bytes": measure_resident()}
            case unknown:
                raise ValueError(f"Expected a known request, found {unknown!r}.")

    def _ready(self) -> None:
        """Returns in all processes of the job at once."""
        if self._job.processes > 1:
            multihost_utils.sync_global_devices("benchmarks")

    def _warm(self, request: dict[str, Any]) -> dict[str, Any]:
        """A small save and restore, so that no timed part imports or compiles."""
        case = find_case(request["case"])
        shapes = shape_tree(case.tree, scale=QUICK)
        parent = Path(request["folder"])
        parent.mkdir(parents=True, exist_ok=True)
        folder = parent / "run"
        here = self._find_placements(case)
        state = _build(case, shapes, placement=here[0], seed=0)
        self._library.save(state, folder)
        for placement in here:
            abstract = abstract_state(shapes, placement=placement)
            jax.block_until_ready(self._library.restore(folder, abstract))
        return {}

    def _find_placements(self, case: Case) -> list[Placement]:
        """Those placements of the case that lie on the devices of this job."""
        return [
            placement
            for placement in (case.saved, *case.targets.values())
            if case.job(self._job.contender, placement) == self._job
        ]

    def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        case = find_case(request["case"])
        scale = QUICK if request["quick"] else FULL
        self._shapes = shape_tree(case.tree, scale=scale)
        if case.saved in self._find_placements(case):
            self._state = _build(
                case, self._shapes, placement=case.saved, seed=request["seed"]
            )
        return {}

    def _restore(self, request: dict[str, Any]) -> dict[str, Any]:
        folder = Path(request["folder"])
        case = find_case(request["case"])
        placement = case.targets[request["target"]]
        abstract = abstract_state(self._shapes, placement=placement)

        def restore() -> Any:
            return jax.block_until_ready(self._library.restore(folder, abstract))

        sample, restored = measure_call(restore, ready=self._ready)
        if request["check"]:
            saved = self._find_saved(case, seed=request["seed"])
            lines = list_differences(saved, restored, abstract=abstract)
            if lines:
                raise ValueError(
                    f"Restored values differ at {len(lines)} leaves, first {lines[0]}"
                )
        return dataclasses.asdict(sample)

    def _find_saved(self, case: Case, *, seed: int) -> Any:
        if self._job.processes == 1 and self._state is not None:
            return self._state
        # What other processes hold, or another job saved, is drawn once more.
        values = draw_values(self._shapes, draw=_DRAWS[case.draw], seed=seed)
        return jax.tree.unflatten(jax.tree.structure(self._shapes), list(values))

    def _train(self, request: dict[str, Any]) -> dict[str, Any]:
        case = find_case(request["case"])
        if self._trainer is None:
            abstract = abstract_state(self._shapes, placement=case.saved)
            self._trainer = Trainer(
                self._state,
                build_tokens(abstract, placement=case.saved),
                step=build_step(abstract, placement=case.saved),
            )
            # The first step donates it.
            self._state = None
        library = cast("OverlappingLibrary", self._library)
        return measure_overlap(
            self._trainer,
            Path(request["folder"]),
            begin=library.save_async,
            ready=self._ready,
        )


def _build(case: Case, shapes: Any, *, placement: Placement, seed: int) -> Any:
    abstract = abstract_state(shapes, placement=placement)
    return build_state(abstract, draw=_DRAWS[case.draw], seed=seed)


if __name__ == "__main__":
    serve_requests(
        Job(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])),
        coordinator=sys.argv[4],
        number=int(sys.argv[5]),
    )
