"""One contender in its own process: reads requests from stdin, answers on stdout.

A process of its own keeps one library's threads, caches and heap out of another's
time and memory. Only one worker is ever busy.
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

from benchmarks._cases import find_case
from benchmarks._compare import list_differences
from benchmarks._measure import measure_call, measure_resident
from benchmarks._trees import (
    FULL,
    QUICK,
    abstract_state,
    build_state,
    draw_bits,
    draw_weights,
    shape_tree,
)
from benchmarks.contenders import DescribingLibrary, find_contender, load_library

_DRAWS = {"bits": draw_bits, "weights": draw_weights}


def serve_requests(contender: str, *, devices: int) -> None:
    # The libraries may print: only answers go to the real stdout.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    session = _Session(contender)
    for line in sys.stdin:
        try:
            answer = session.answer(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class _Session:
    def __init__(self, contender: str) -> None:
        self._library = load_library(find_contender(contender))
        self._shapes: Any = None
        self._state: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "warm":
                return self._warm(request)
            case "prepare":
                return self._prepare(request)
            case "save":
                folder = Path(request["folder"])
                sample, _ = measure_call(
                    lambda: self._library.save(self._state, folder)
                )
                return dataclasses.asdict(sample)
            case "restore":
                return self._restore(request)
            case "metadata":
                folder = Path(request["folder"])
                library = cast("DescribingLibrary", self._library)
                sample, _ = measure_call(lambda: library.metadata(folder))
                return dataclasses.asdict(sample)
            case "release":
                self._state = self._shapes = None
                return {"resident_bytes": measure_resident()}
            case unknown:
                raise ValueError(f"Expected a known request, found {unknown!r}.")

    def _warm(self, request: dict[str, Any]) -> dict[str, Any]:
        """A small save and restore, so that no timed part imports or compiles."""
        self._prepare({**request, "quick": True, "seed": 0})
        folder = Path(request["folder"])
        self._library.save(self._state, folder)
        for placement in find_case(request["case"]).targets.values():
            abstract = abstract_state(self._shapes, placement=placement)
            jax.block_until_ready(self._library.restore(folder, abstract))
        self._state = self._shapes = None
        return {}

    def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        case = find_case(request["case"])
        scale = QUICK if request["quick"] else FULL
        self._shapes = shape_tree(case.tree, scale=scale)
        abstract = abstract_state(self._shapes, placement=case.saved)
        draw = _DRAWS[case.draw]
        self._state = build_state(abstract, draw=draw, seed=request["seed"])
        return {}

    def _restore(self, request: dict[str, Any]) -> dict[str, Any]:
        folder = Path(request["folder"])
        placement = find_case(request["case"]).targets[request["target"]]
        abstract = abstract_state(self._shapes, placement=placement)

        def restore() -> Any:
            return jax.block_until_ready(self._library.restore(folder, abstract))

        sample, restored = measure_call(restore)
        if request["check"]:
            lines = list_differences(self._state, restored, abstract=abstract)
            if lines:
                raise ValueError(
                    f"Restored values differ at {len(lines)} leaves, first {lines[0]}"
                )
        return dataclasses.asdict(sample)


if __name__ == "__main__":
    serve_requests(sys.argv[1], devices=int(sys.argv[2]))
