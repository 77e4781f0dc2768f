"""What is saved and restored: trees, meshes and target meshes."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from benchmarks._trees import FULL, QUICK, Placement, logical_bytes, shape_tree

GRID = Placement((("data", 4), ("model", 2)), ("data", "model"))
REPLICATED = Placement((("x", 8),), ())


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
)


def find_case(name: str) -> Case:
    """The case of that name."""
    for case in CASES:
        if case.name == name:
            return case
    names = ", ".join(case.name for case in CASES)
    raise ValueError(f"Expected a case among {names}, found {name!r}.")


def describe_case(case: Case, *, quick: bool) -> str:
    """The case's title with the size of its tree."""
    shapes = shape_tree(case.tree, scale=QUICK if quick else FULL)
    leaves = len(jax.tree.leaves(shapes))
    size = logical_bytes(shapes) / (1 << 20)
    return f"({case.name}) {case.title}; {leaves:,} leaves, {size:.4g} MiB"
