"""What it costs to read a saved matrix onto another mesh, one process a device.

A matrix of 4096 x 4096 float32 saved on 4 x 2 is cut into chunks of 256 x 512: 16 rows
and 8 columns of chunks. Targets cut at multiples of these read each byte once. Finer
ones read a chunk once for each of the devices that share it: that is the whole cost,
and it falls to one where devices of a process read together.
"""

import numpy as np
import pytest

import layouts
from layouts import Box, Leaf, Pieces, Spec
from tests.layouts._cases import (
    Layout,
    box_of,
    label_cells,
    naive_device_slices,
    naive_piece,
)

SHAPE = (4096, 4096)
X, Y, NONE = ("x",), ("y",), ()

ALIGNED: list[tuple[dict[str, int], Spec]] = [
    ({"x": 2, "y": 4}, (X, Y)),
    ({"x": 8, "y": 1}, (X, Y)),
    ({"x": 1, "y": 8}, (X, Y)),
    ({"x": 4, "y": 2}, (Y, X)),
    ({"x": 1}, (NONE, NONE)),
    ({"x": 8}, (NONE, X)),
    ({"x": 16}, (X, NONE)),
    ({"x": 4, "y": 2}, (("x", "y"), NONE)),
    ({"x": 4, "y": 2}, (NONE, ("y", "x"))),
    ({"x": 8, "y": 8}, (X, Y)),
    ({"x": 16, "y": 8}, (X, Y)),
]
FINER: list[tuple[dict[str, int], Spec, int]] = [
    ({"x": 32}, (X, NONE), 2),
    ({"x": 64, "y": 1}, (X, Y), 4),
    ({"x": 16}, (NONE, X), 2),
    ({"x": 64}, (NONE, X), 8),
    ({"x": 32, "y": 16}, (X, Y), 4),
]


def saved_matrix() -> Leaf:
    saved = Layout(SHAPE, layouts.mesh_layout({"x": 4, "y": 2}), (X, Y))
    leaf = Leaf("w", "jax", "float32", SHAPE)
    return layouts.lay_out(leaf, "w", Pieces(naive_piece(saved)))


def device_boxes(sizes: dict[str, int], spec: Spec) -> list[Box]:
    layout = Layout(SHAPE, layouts.mesh_layout(sizes), spec)
    return [box_of(index) for index in naive_device_slices(layout)]


def amplification(leaf: Leaf, groups: list[list[Box]]) -> float:
    """Return bytes read by processes that each fill some boxes, over those stored."""
    # 128 chunks of half a mebibyte, each with four bytes of checksum.
    stored = 128 * ((512 << 10) + 4)
    return sum(layouts.plan_leaf_read(0, leaf, g).read for g in groups) / stored


@pytest.mark.parametrize(("sizes", "spec"), ALIGNED, ids=str)
def test_targets_cut_where_chunks_end_read_each_byte_once(
    sizes: dict[str, int], spec: Spec
) -> None:
    boxes = device_boxes(sizes, spec)
    assert amplification(saved_matrix(), [[box] for box in boxes]) == 1


@pytest.mark.parametrize(("sizes", "spec", "cost"), FINER, ids=str)
def test_targets_finer_than_chunks_read_each_as_often_as_it_is_shared(
    sizes: dict[str, int], spec: Spec, cost: int
) -> None:
    boxes = device_boxes(sizes, spec)
    labels = label_cells((16 * 64, 8 * 64), (64, 64))
    shares = [
        len(
            np.unique(
                labels[row // 4 : row // 4 + h // 4, col // 8 : col // 8 + w // 8]
            )
        )
        for (row, col), (h, w) in boxes
    ]
    assert sum(shares) / 128 == cost
    assert amplification(saved_matrix(), [[box] for box in boxes]) == cost


@pytest.mark.parametrize(("sizes", "spec", "cost"), FINER, ids=str)
def test_devices_of_one_process_share_what_they_read(
    sizes: dict[str, int], spec: Spec, cost: int
) -> None:
    boxes = device_boxes(sizes, spec)
    assert amplification(saved_matrix(), [boxes]) == 1


def test_replicas_on_processes_of_their_own_each_plan_the_whole() -> None:
    boxes = device_boxes({"x": 8}, (NONE, NONE))
    assert amplification(saved_matrix(), [[box] for box in boxes]) == 8
    assert amplification(saved_matrix(), [[boxes[0]]]) == 1


@pytest.mark.parametrize("ways", [2, 4, 8])
@pytest.mark.parametrize(
    ("shape", "itemsize"),
    [
        ((32000, 4096), 2),
        ((50304, 768), 4),
        ((128256, 4096), 2),
        ((151936, 8192), 2),
        ((5120, 13824), 2),
        ((4096, 32, 128), 2),
        ((4096, 64, 128), 4),
        ((8, 4096, 14336), 2),
        ((32, 4096, 4096), 2),
        ((64, 1, 2048, 1408), 2),
    ],
    ids=str,
)
def test_tensors_of_known_models_are_read_once_on_2_4_and_8_devices(
    shape: tuple[int, ...], itemsize: int, ways: int
) -> None:
    """Cut in any dimension: vocabulary, width, heads, experts, stacked layers."""
    dtype = {2: "bfloat16", 4: "float32"}[itemsize]
    leaf = layouts.lay_out(Leaf("w", "jax", dtype, shape), "w", Pieces(shape))
    stored = layouts.plan_leaf_read(0, leaf, [layouts.whole(shape)]).read
    mesh = layouts.mesh_layout({"x": ways})
    for d, n in enumerate(shape):
        # A chunk keeps runs of 256 bytes: the last 128 bfloat16 are not cut.
        if n % ways or (d == len(shape) - 1 and n // ways * itemsize < 256):
            continue
        spec = tuple([X if i == d else NONE for i in range(len(shape))])
        boxes = [box_of(i) for i in naive_device_slices(Layout(shape, mesh, spec))]
        read = sum(layouts.plan_leaf_read(0, leaf, [box]).read for box in boxes)
        assert read == stored
