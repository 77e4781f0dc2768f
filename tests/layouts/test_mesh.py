"""Pieces of meshes and specs, against jax's own shardings and a naive model."""

import ast
import math
from itertools import product

import jax
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import layouts
from layouts import Box, MeshLayout, Spec
from tests.layouts._cases import (
    Layout,
    all_layouts,
    box_of,
    meshes,
    naive_cells,
    naive_device_slices,
    naive_piece,
    placed,
    shapes,
    specs,
)

MESHES = [{"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2}, {"x": 1, "y": 8}]


def jax_mesh(sizes: dict[str, int], kind: AxisType) -> jax.sharding.Mesh:
    devices = np.array(jax.devices()[: math.prod(sizes.values())])
    shape = tuple(sizes.values())
    return jax.sharding.Mesh(
        devices.reshape(shape), tuple(sizes), axis_types=(kind,) * len(sizes)
    )


def jax_spec(spec: Spec) -> P:
    """Return the spec as people write it: None and bare names where they do."""
    bare = {0: lambda axes: None, 1: lambda axes: axes[0]}
    return P(*[bare.get(len(axes), tuple)(axes) for axes in spec])


def jax_boxes(mesh: jax.sharding.Mesh, spec: P, shape: tuple[int, ...]) -> list[Box]:
    indices = NamedSharding(mesh, spec).devices_indices_map(shape)
    return [
        layouts.box_of_index(tuple(indices[device] or ()), shape)
        for device in mesh.devices.ravel()
    ]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("shape", [(), (8,), (16, 24), (8, 3, 16), (0, 8), (7, 4)])
def test_pieces_are_those_of_jax_for_every_spec(
    sizes: dict[str, int], kind: AxisType, shape: tuple[int, ...]
) -> None:
    mesh = jax_mesh(sizes, kind)
    laid = layouts.mesh_layout(mesh)
    for layout in all_layouts(shape, sizes):
        spec = jax_spec(layout.spec)
        assert layouts.spec_of(spec, len(shape)) == layout.spec
        boxes = layouts.piece_boxes(shape, layout.spec, laid)
        assert boxes == jax_boxes(mesh, spec, shape)
        grid = layouts.piece_grid(shape, layout.spec, laid)
        shard = NamedSharding(mesh, spec).shard_shape(shape)
        if 0 not in shape:
            assert grid.cell == shard
            assert {grid.box(grid.coordinates(n)) for n in range(grid.length)} == set(
                boxes
            )


@given(placed())
def test_pieces_are_those_of_splitting_one_axis_at_a_time(layout: Layout) -> None:
    shape, mesh, spec = layout
    expected = [box_of(index) for index in naive_device_slices(layout)]
    assert layouts.piece_boxes(shape, spec, mesh) == expected
    grid = layouts.piece_grid(shape, spec, mesh)
    if 0 not in shape:
        cells = [box_of(index) for index in naive_cells(shape, naive_piece(layout))]
        assert [grid.box(grid.coordinates(n)) for n in range(grid.length)] == cells
    counts = layouts.split_counts(spec, mesh)
    assert counts == tuple(math.prod([mesh.sizes[a] for a in axes]) for axes in spec)


@given(st.data())
def test_pieces_of_an_uneven_spec_tile_the_array_too(data: st.DataObject) -> None:
    shape, mesh = data.draw(shapes()), data.draw(meshes())
    spec = data.draw(specs(shape, mesh, even=False))
    count = np.zeros(shape, np.int32)
    for box in set(layouts.piece_boxes(shape, spec, mesh)):
        count[box.slices] += 1
    assert (count == 1).all()


@pytest.mark.parametrize(
    ("mesh", "kind"),
    [
        ({"data": 4, "model": 2}, "Auto"),
        (
            AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2),
            "Auto",
        ),
        (
            AbstractMesh(
                (4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2
            ),
            "Explicit",
        ),
        (MeshLayout((("data", 4), ("model", 2)), ("Manual", "Manual")), "Manual"),
    ],
)
def test_a_mesh_layout_comes_from_meshes_and_from_mappings(
    mesh: object, kind: str
) -> None:
    laid = layouts.mesh_layout(mesh)
    assert laid.axes == (("data", 4), ("model", 2))
    assert laid.types == (kind, kind)
    assert laid.sizes == {"data": 4, "model": 2}
    assert laid.size == 8


def test_a_short_spec_leaves_the_last_dimensions_whole() -> None:
    assert layouts.spec_of(P("x"), 3) == (("x",), (), ())
    assert layouts.spec_of(P(("x", "y"), None, "z"), 3) == (("x", "y"), (), ("z",))
    assert layouts.spec_of(P(), 0) == ()


@given(placed())
def test_a_formatted_spec_reads_as_the_partition_spec_it_is(layout: Layout) -> None:
    call = ast.parse(layouts.format_spec(layout.spec), mode="eval").body
    assert isinstance(call, ast.Call)
    spec = P(*map(ast.literal_eval, call.args))
    assert layouts.spec_of(spec, len(layout.shape)) == layout.spec


@given(st.data())
def test_a_relaid_spec_fits_its_mesh_and_keeps_all_that_fits(
    data: st.DataObject,
) -> None:
    saved = data.draw(placed())
    sizes = data.draw(
        st.dictionaries(st.sampled_from("xyz"), st.integers(1, 6), max_size=3)
    )
    mesh = layouts.mesh_layout(sizes)
    relaid = layouts.relay_spec(saved.spec, saved.shape, mesh)
    kept: list[tuple[str, ...]] = []
    dropped: list[tuple[int, str]] = []
    for d, (n, axes) in enumerate(zip(saved.shape, saved.spec, strict=True)):
        left, parts = [], 1
        for axis in axes:
            if axis in sizes and n % (parts * sizes[axis]) == 0:
                left.append(axis)
                parts *= sizes[axis]
            else:
                dropped.append((d, axis))
        kept.append(tuple(left))
    assert relaid.spec == tuple(kept)
    assert len(relaid.dropped) == len(dropped)
    for (d, axis), text in zip(dropped, relaid.dropped, strict=True):
        assert repr(axis) in text
        assert f"dimension {d}" in text
    parts = layouts.split_counts(relaid.spec, mesh)
    assert all(n % k == 0 for n, k in zip(saved.shape, parts, strict=True))


def test_two_axes_of_one_dimension_are_kept_where_their_product_divides_it() -> None:
    for n, a, b in product(range(25), range(1, 7), range(1, 7)):
        mesh = layouts.mesh_layout({"a": a, "b": b})
        (kept,) = layouts.relay_spec((("a", "b"),), (n,), mesh).spec
        if n % (a * b) == 0:
            assert kept == ("a", "b")
        elif n % a == 0:
            assert kept == ("a",)
        else:
            assert kept == (("b",) if n % b == 0 else ())


@given(placed())
def test_a_spec_relaid_on_its_own_mesh_is_itself(layout: Layout) -> None:
    relaid = layouts.relay_spec(layout.spec, layout.shape, layout.mesh)
    assert relaid == layouts.Relaid(layout.spec, ())


@given(placed(largest=8))
def test_jax_accepts_every_relaid_spec(layout: Layout) -> None:
    for sizes in MESHES:
        mesh = jax_mesh(sizes, AxisType.Auto)
        spec = layouts.relay_spec(
            layout.spec, layout.shape, layouts.mesh_layout(mesh)
        ).spec
        NamedSharding(mesh, jax_spec(spec)).shard_shape(layout.shape)


def test_the_order_of_a_tuple_of_axes_is_major_first() -> None:
    mesh = layouts.mesh_layout({"a": 2, "b": 3})
    starts = {
        axes: [box.start[0] for box in layouts.piece_boxes((12,), (axes,), mesh)]
        for axes in [("a", "b"), ("b", "a")]
    }
    expected: dict[tuple[str, str], list[int]] = {("a", "b"): [], ("b", "a"): []}
    for a, b in product(range(2), range(3)):
        expected["a", "b"].append(2 * (3 * a + b))
        expected["b", "a"].append(2 * (2 * b + a))
    assert starts == expected


def test_a_picture_names_every_position_once_a_part() -> None:
    mesh = layouts.mesh_layout({"x": 2, "y": 2})
    assert layouts.draw_layout((4, 4), (("y",), ()), mesh).splitlines() == [
        "P('y') on (x=2, y=2)",
        "+-----+",
        "| 0,2 |",
        "+-----+",
        "| 1,3 |",
        "+-----+",
    ]
    assert layouts.draw_layout((), (), mesh).splitlines()[2] == "| 0-3 |"


def test_a_picture_of_many_parts_says_how_many_it_leaves_out() -> None:
    mesh = layouts.mesh_layout({"x": 16, "y": 16})
    text = layouts.draw_layout((16, 16), (("x",), ("y",)), mesh)
    assert text.endswith("(+192 more parts)")
