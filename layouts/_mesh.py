"""Meshes and partition specs as plain values, and laying a spec on another mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, SupportsIndex

import numpy as np

from ._box import Box, Grid, Shape
from ._errors import InvalidLayout, TooLarge, show
from ._expect import expect_fields, expect_int, expect_list

Axes = tuple[str, ...]
Spec = tuple[Axes, ...]
"""One tuple of mesh axis names for each dimension, major axis first."""

_AXIS_TYPES = frozenset({"Auto", "Explicit", "Manual"})
_POSITIONS = 1 << 20


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
        sizes: dict[Any, Any] = dict(mesh)  # pyright: ignore[reportUnknownArgumentType]
        if not all(isinstance(size, SupportsIndex) for size in sizes.values()):
            raise TypeError(f"expected {{axis: size}} as mesh, found {sizes!r:.80}")
        axes = tuple((str(name), int(size)) for name, size in sizes.items())
        types = ("Auto",) * len(axes)
        if any(size < 1 for _, size in axes):
            raise ValueError(f"expected axes of at least 1 position, found {mesh!r}")
    elif not (hasattr(mesh, "axis_types") and hasattr(mesh, "shape")):
        raise TypeError(
            f"expected a Mesh, an AbstractMesh or {{axis: size}} as mesh, found "
            f"{type(mesh).__qualname__} {mesh!r:.80}"
        )
    else:
        axes = tuple((str(k), int(v)) for k, v in mesh.shape.items())
        types = tuple(t.name for t in mesh.axis_types)
    if not all(name.isprintable() for name, _ in axes):
        raise ValueError(f"expected printable names of axes, found {axes!r}")
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
    places = _numbers(spec, mesh)
    parts = [-(-n // c) for n, c in zip(shape, counts, strict=True)]
    made: dict[Shape, Box] = {}
    for place in set(places):
        start = tuple(
            [min(i * p, n) for i, p, n in zip(place, parts, shape, strict=True)]
        )
        stops = zip(start, parts, shape, strict=True)
        made[place] = Box(start, tuple([min(p, n - a) for a, p, n in stops]))
    return [made[place] for place in places]


@lru_cache(maxsize=256)
def _numbers(spec: Spec, mesh: MeshLayout) -> list[Shape]:
    """Return, for each mesh position, the number of its part in each dimension."""
    if not spec:
        return [()] * mesh.size
    sizes = mesh.sizes
    indices = np.indices(tuple(sizes.values()))
    places = {axis: indices[i].ravel() for i, axis in enumerate(sizes)}
    found: list[list[int]] = []
    for axes in spec:
        number = np.zeros(mesh.size, np.int64)
        for axis in axes:
            number = number * sizes[axis] + places[axis]
        found.append(number.tolist())
    return list(zip(*found, strict=True))


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
    fields = expect_fields(value, {"mesh", "spec", "memory"}, "a placement")
    memory = fields["memory"]
    if memory is not None and type(memory) is not str:
        raise InvalidLayout(f"expected a memory kind, found {show(memory)}")
    mesh = None if fields["mesh"] is None else _mesh_from_json(fields["mesh"])
    if fields["spec"] is None:
        return Placement(mesh, None, memory)
    spec = tuple([_names(group) for group in expect_list(fields["spec"], "axes")])
    used = [name for group in spec for name in group]
    known = mesh.sizes if mesh else {}
    if len(set(used)) != len(used) or not all(name in known for name in used):
        raise InvalidLayout(
            f"expected axes of {show(list(known))}, each once, found {show(used)}"
        )
    return Placement(mesh, spec, memory)


def _mesh_from_json(value: Any) -> MeshLayout:
    fields = expect_fields(value, {"axes", "types"}, "a mesh")
    axes = tuple([_axis(axis) for axis in expect_list(fields["axes"], "axes")])
    types = _names(fields["types"])
    if len(dict(axes)) != len(axes) or len(types) != len(axes):
        raise InvalidLayout(f"expected distinct axes with types, found {show(value)}")
    if not set(types) <= _AXIS_TYPES:
        raise InvalidLayout(f"expected types of axes, found {show(types)}")
    mesh = MeshLayout(axes, types)
    if mesh.size >= _POSITIONS:
        raise TooLarge(f"expected under {_POSITIONS} positions, found {show(axes)}")
    return mesh


def _axis(value: Any) -> tuple[str, int]:
    name, size = expect_list(value, "an axis's name and size", length=2)
    # JAX prints the names of axes as they are.
    if type(name) is not str or not name.isprintable():
        raise InvalidLayout(f"expected the name of an axis, found {show(name)}")
    return name, expect_int(size, "the size of an axis", least=1, below=_POSITIONS)


def _names(value: Any) -> Axes:
    names = expect_list(value, "names")
    if not set(map(type, names)) <= {str}:
        raise InvalidLayout(f"expected a list of names, found {show(value)}")
    return tuple(names)
