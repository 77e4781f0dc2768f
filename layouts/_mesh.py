"""Meshes and partition specs as plain values, and laying a spec on another mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._box import Box, Grid, Shape
from ._errors import InvalidLayout

Axes = tuple[str, ...]
Spec = tuple[Axes, ...]
"""One tuple of mesh axis names for each dimension, major axis first."""

_AXIS_TYPES = ("Auto", "Explicit", "Manual")


@dataclass(frozen=True, slots=True)
class MeshLayout:
    """The names, sizes and types of a mesh's axes; it says nothing about devices."""

    axes: tuple[tuple[str, int], ...]
    types: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """Axis sizes by name, in order."""
        return dict(self.axes)

    @property
    def size(self) -> int:
        """The number of positions."""
        return math.prod(n for _, n in self.axes)

    def __str__(self) -> str:
        return "(" + ", ".join(f"{name}={size}" for name, size in self.axes) + ")"


def mesh_layout(mesh: Any) -> MeshLayout:
    """Return the layout of a jax Mesh, an AbstractMesh or a {axis: size} mapping.

    >>> str(mesh_layout({"data": 4, "model": 2}))
    '(data=4, model=2)'
    """
    if isinstance(mesh, MeshLayout):
        return mesh
    if isinstance(mesh, Mapping):
        axes = tuple((str(k), int(v)) for k, v in mesh.items())  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return MeshLayout(axes, ("Auto",) * len(axes))
    axes = tuple((str(k), int(v)) for k, v in mesh.shape.items())
    types = tuple(t.name for t in mesh.axis_types)
    return MeshLayout(axes, types)


def spec_of(partition_spec: Any, rank: int) -> Spec:
    """Return a jax PartitionSpec as a Spec of `rank` dimensions."""
    entries = [_axes(entry) for entry in tuple(partition_spec)[:rank]]
    return tuple(entries + [()] * (rank - len(entries)))


def _axes(entry: Any) -> Axes:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def format_spec(spec: Spec) -> str:
    """Return a spec as one writes it.

    >>> format_spec((("data",), (), ("a", "b")))
    "P('data', None, ('a', 'b'))"
    """
    shown = [repr(a) if len(a) > 1 else repr(a[0]) if a else "None" for a in spec]
    while shown and shown[-1] == "None":
        shown.pop()
    return f"P({', '.join(shown)})"


def split_counts(spec: Spec, mesh: MeshLayout) -> Shape:
    """Return into how many parts the spec cuts each dimension."""
    sizes = mesh.sizes
    return tuple(math.prod(sizes[a] for a in axes) for axes in spec)


def piece_grid(shape: Shape, spec: Spec, mesh: MeshLayout) -> Grid:
    """Return the grid of the pieces into which the spec cuts an array."""
    counts = split_counts(spec, mesh)
    return Grid(
        shape, tuple(-(-n // c) if n else 1 for n, c in zip(shape, counts, strict=True))
    )


def piece_boxes(shape: Shape, spec: Spec, mesh: MeshLayout) -> list[Box]:
    """Return the box held at each mesh position, positions in C order."""
    counts = split_counts(spec, mesh)
    names = [name for name, _ in mesh.axes]
    sizes = [size for _, size in mesh.axes]
    places = np.indices(sizes).reshape(len(sizes), -1) if sizes else None
    columns: list[list[tuple[int, int]]] = []
    for n, axes, count in zip(shape, spec, counts, strict=True):
        part = -(-n // count) if count else 0
        number = np.zeros(mesh.size, np.int64)
        for axis in axes:
            at = names.index(axis)
            if places is not None:
                number = number * sizes[at] + places[at]
        starts = [min(int(i) * part, n) for i in number]
        columns.append([(a, min(part, n - a)) for a in starts])
    if not columns:
        return [Box((), ())] * mesh.size
    return [
        Box(tuple(a for a, _ in dims), tuple(n for _, n in dims))
        for dims in zip(*columns, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Relaid:
    """A spec re-laid on another mesh, and what had to be dropped on the way."""

    spec: Spec
    dropped: tuple[str, ...]


def relay_spec(spec: Spec, shape: Shape, mesh: MeshLayout) -> Relaid:
    """Lay a saved spec on another mesh, dropping what does not fit there.

    An axis the mesh lacks, or that would not divide its dimension, is dropped for
    that dimension; `dropped` says so in words.

    >>> relay_spec((("data",), ("model",)), (6, 8), mesh_layout({"data": 4}))
    Relaid(spec=((), ()), dropped=("axis 'data' of size 4 does not divide \
dimension 0 of size 6", "no axis 'model' for dimension 1"))
    """
    sizes = mesh.sizes
    dropped: list[str] = []
    laid: list[Axes] = []
    for d, (n, axes) in enumerate(zip(shape, spec, strict=True)):
        kept: list[str] = []
        for axis in axes:
            if axis not in sizes:
                dropped.append(f"no axis {axis!r} for dimension {d}")
            elif n % math.prod([sizes[a] for a in kept] + [sizes[axis]]):
                dropped.append(
                    f"axis {axis!r} of size {sizes[axis]} does not divide "
                    f"dimension {d} of size {n}"
                )
            else:
                kept.append(axis)
        laid.append(tuple(kept))
    return Relaid(tuple(laid), tuple(dropped))


@dataclass(frozen=True, slots=True)
class Placement:
    """How an array was laid out: mesh, spec (None: not a named one), memory kind."""

    mesh: MeshLayout | None
    spec: Spec | None
    memory: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the placement as JSON."""
        return {
            "mesh": None
            if self.mesh is None
            else {"axes": [list(a) for a in self.mesh.axes], "types": self.mesh.types},
            "spec": None if self.spec is None else [list(a) for a in self.spec],
            "memory": self.memory,
        }


def placement_from_json(value: Any) -> Placement:
    """Read a placement, refusing whatever is not one."""
    try:
        if value.keys() != {"mesh", "spec", "memory"}:
            raise ValueError(sorted(value))
        mesh, spec, memory = value["mesh"], value["spec"], value["memory"]
        laid = None if mesh is None else _mesh_from_json(mesh)
        axes = None if spec is None else tuple(tuple(a) for a in spec)
        if not isinstance(memory, (str, type(None))):
            raise ValueError(memory)
        if axes is not None:
            used = [a for group in axes for a in group]
            known = laid.sizes if laid else {}
            if len(set(used)) != len(used) or not all(a in known for a in used):
                raise ValueError(spec)
        return Placement(laid, axes, memory)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidLayout(
            f"expected a placement of mesh, spec and memory, found {error!r:.120}"
        ) from None


def _mesh_from_json(value: Any) -> MeshLayout:
    if value.keys() != {"axes", "types"}:
        raise ValueError(sorted(value))
    axes = tuple((name, size) for name, size in value["axes"])
    types = tuple(value["types"])
    for name, size in axes:
        if not isinstance(name, str) or type(size) is not int or not 0 < size < 1 << 32:
            raise ValueError(axes)
    if len(dict(axes)) != len(axes) or len(types) != len(axes):
        raise ValueError(axes)
    if any(t not in _AXIS_TYPES for t in types) or math.prod(n for _, n in axes) >> 32:
        raise ValueError(types)
    return MeshLayout(axes, types)
