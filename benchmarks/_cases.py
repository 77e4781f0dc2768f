"""What is saved and restored: trees, meshes and target meshes."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from benchmarks._pool import Job
from benchmarks._trees import FULL, QUICK, Placement, logical_bytes, shape_tree

GRID = Placement((("data", 4), ("model", 2)), ("data", "model"))
REPLICATED = Placement((("x", 8),), ())
FSDP = {
    processes: Placement((("fsdp", 2 * processes),), ("fsdp",), processes)
    for processes in (1, 2, 4)
}


@dataclass(frozen=True, slots=True)
class Case:
    """One tree, the mesh it is saved from and the meshes it is restored onto."""

    name: str
    title: str
    tree: str
    draw: str
    saved: Placement
    targets: dict[str, Placement]
    devices: int = 8
    remesh: bool = False
    trains: bool = False

    @property
    def processes(self) -> int:
        """The most processes that hold a tree of the case together."""
        placements = (self.saved, *self.targets.values())
        return max(placement.processes for placement in placements)

    def job(self, contender: str, placement: Placement) -> Job:
        """The processes that hold a tree under `placement`."""
        return Job(contender, self.devices, placement.processes)

    def jobs(self, contender: str) -> list[Job]:
        """Every job that the case needs, the one that saves first."""
        placements = (self.saved, *self.targets.values())
        return list(dict.fromkeys(self.job(contender, x) for x in placements))


CASES = (
    Case(
        name="a",
        title="f32 matrices on 4x2",
        tree="matrices",
        draw="bits",
        saved=GRID,
        targets={"same": GRID},
    ),
    Case(
        name="r",
        title="(a) restored fully replicated on 8 devices",
        tree="matrices",
        draw="bits",
        saved=GRID,
        targets={"replicated": REPLICATED},
        remesh=True,
    ),
    Case(
        name="b",
        title="leaves of 1 KiB, replicated on 8 devices",
        tree="small",
        draw="bits",
        saved=REPLICATED,
        targets={"same": REPLICATED},
    ),
    Case(
        name="c",
        title="transformer train state: bf16 params, f32 adamw moments, on 4x2",
        tree="train",
        draw="weights",
        saved=GRID,
        targets={"same": GRID},
    ),
    Case(
        name="d",
        title="remeshes of (a) among 8 devices",
        tree="matrices",
        draw="bits",
        saved=GRID,
        targets={
            "same": GRID,
            "2x4": Placement((("data", 2), ("model", 4)), ("data", "model")),
            "8x1": Placement((("data", 8), ("model", 1)), ("data", "model")),
            "1x8": Placement((("data", 1), ("model", 8)), ("data", "model")),
            "transposed": Placement(GRID.axes, ("model", "data")),
            "one device": Placement((("x", 1),), ()),
            "columns": Placement((("x", 8),), (None, "x")),
        },
        remesh=True,
    ),
    Case(
        name="e",
        title="remeshes of (a) onto 64 devices",
        tree="matrices",
        draw="bits",
        saved=GRID,
        targets={
            "same": GRID,
            "64x1": Placement((("data", 64), ("model", 1)), ("data", "model")),
            "1x64": Placement((("data", 1), ("model", 64)), ("data", "model")),
            "8x8": Placement((("data", 8), ("model", 8)), ("data", "model")),
        },
        devices=64,
        remesh=True,
    ),
    Case(
        name="j4",
        title="FSDP and replicated leaves, saved by 4 processes x 2 devices",
        tree="job",
        draw="bits",
        saved=FSDP[4],
        targets={"same": FSDP[4], "4->2": FSDP[2], "4->1": FSDP[1]},
        devices=2,
        remesh=True,
    ),
    Case(
        name="j2",
        title="(j4) saved by 2 processes x 2 devices",
        tree="job",
        draw="bits",
        saved=FSDP[2],
        targets={"2->4": FSDP[4]},
        devices=2,
        remesh=True,
    ),
    Case(
        name="j1",
        title="(j4) saved by one process x 2 devices",
        tree="job",
        draw="bits",
        saved=FSDP[1],
        targets={"1->4": FSDP[4]},
        devices=2,
        remesh=True,
    ),
    Case(
        name="s1",
        title="training beside a save, one process x 8 devices",
        tree="step",
        draw="weights",
        saved=Placement((("model", 8),), (None, "model")),
        targets={},
        trains=True,
    ),
    Case(
        name="s2",
        title="training beside a save, 2 processes x 2 devices",
        tree="step",
        draw="weights",
        saved=Placement((("model", 4),), (None, "model"), processes=2),
        targets={},
        devices=2,
        trains=True,
    ),
)


def find_case(name: str) -> Case:
    """The case of that name."""
    for case in CASES:
        if case.name == name:
            return case
    names = ", ".join(case.name for case in CASES)
    raise ValueError(f"Expected a case among {names}, found {name!r}.")


def select_cases(name: str) -> list[Case]:
    """The case of that name, or all those of a letter."""
    found = [case for case in CASES if case.name.startswith(name)]
    return found or [find_case(name)]


def describe_case(case: Case, *, quick: bool) -> str:
    """The case's title with the size of its tree."""
    shapes = shape_tree(case.tree, scale=QUICK if quick else FULL)
    leaves = len(jax.tree.leaves(shapes))
    size = logical_bytes(shapes) / (1 << 20)
    return f"({case.name}) {case.title}; {leaves:,} leaves, {size:.4g} MiB"
