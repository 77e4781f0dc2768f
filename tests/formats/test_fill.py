"""Boxes of foreign tensors are read exactly, and little else is."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import ckpt
import layouts
from ckpt._store import Store, open_store
from ckpt.formats._entry import Blob, Block, Lazy, Tensor
from ckpt.formats._fill import Want, fill_wants
from layouts import Box


@dataclass
class Counting:
    """A store that counts what is read of it; all else is the real one's."""

    store: Store
    bytes: int = 0
    requests: int = 0
    sizes: list[int] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def open(self, name: str, **options: Any) -> Any:
        return _CountingReader(self, self.store.open(name, **options))


@dataclass
class _CountingReader:
    counting: Counting
    reader: Any

    def read_into(self, offset: int, buffer: Any) -> None:
        self.counting.bytes += buffer.nbytes
        self.counting.requests += 1
        self.reader.read_into(offset, buffer)

    def __enter__(self) -> "_CountingReader":
        return self

    def __exit__(self, *raised: object) -> None:
        self.reader.close()


def put(name: str, data: bytes) -> Counting:
    store = open_store("memory://test-fill")
    store.remove(name)
    with store.write(name, size=len(data)) as out:
        out.write([data])
        out.close()
    return Counting(store)


def read(store: Any, tensor: Tensor, boxes: list[Box], **options: Any) -> list[Any]:
    dtype = layouts.stored_dtype(tensor.dtype)
    buffers = [np.full(box.shape, 0, dtype) for box in boxes]
    goals = tuple(zip(boxes, buffers, strict=True))
    fill_wants(store, [Want("w", tensor, goals)], **options)
    return buffers


shapes = st.lists(st.integers(0, 6), max_size=4).map(tuple)


@st.composite
def boxes_within(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    found = []
    for _ in range(draw(st.integers(0, 4))):
        start = tuple(draw(st.integers(0, n)) for n in shape)
        size = tuple(
            draw(st.integers(0, n - a)) for n, a in zip(shape, start, strict=True)
        )
        found.append(Box(start, size))
    return found


@st.composite
def cuts(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Boxes that tile a shape: cut in two, again and again."""
    found = [layouts.whole(shape)]
    for _ in range(draw(st.integers(0, 4))):
        box = found.pop(draw(st.integers(0, len(found) - 1)))
        wide = [d for d, n in enumerate(box.shape) if n > 1]
        if not wide:
            found.append(box)
            continue
        d = draw(st.sampled_from(wide))
        at = draw(st.integers(1, box.shape[d] - 1))
        for low, size in ((0, at), (at, box.shape[d] - at)):
            start, sizes = list(box.start), list(box.shape)
            start[d] += low
            sizes[d] = size
            found.append(Box(tuple(start), tuple(sizes)))
    return found


@given(st.data())
def test_any_boxes_of_any_blocks_are_what_numpy_has(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    values = np.arange(1, 1 + int(np.prod(shape, dtype=int)), dtype=np.int32)
    values = values.reshape(shape)
    raw = b"head"
    blocks = []
    for box in data.draw(cuts(shape)):
        order = data.draw(st.permutations(range(len(shape))))
        part = values[box.slices]
        # Laid out with its dimensions in any order: strides that are not C order's.
        laid = np.ascontiguousarray(part.transpose(order))
        strides = [0] * len(shape)
        for at, d in enumerate(order):
            strides[d] = laid.strides[at]
        blob = Blob("w", len(raw), laid.nbytes)
        plain = order == list(range(len(shape)))
        blocks.append(Block(box, blob, 0, None if plain else tuple(strides)))
        raw += laid.tobytes() + b"gap"
    tensor = Tensor("int32", shape, tuple(blocks))
    boxes = data.draw(boxes_within(shape))
    store = put("w", raw)
    gap = data.draw(st.sampled_from([0, 8]))
    for box, found in zip(boxes, read(store, tensor, boxes, gap=gap), strict=True):
        np.testing.assert_array_equal(found, values[box.slices])


@given(st.data())
def test_a_reader_of_its_own_is_asked_for_each_chunk_once(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), max_size=3)))
    chunk = tuple(data.draw(st.integers(1, n)) for n in shape)
    values = np.arange(int(np.prod(shape, dtype=int)), dtype=np.float32).reshape(shape)
    grid = layouts.Grid(shape, chunk)
    asked: list[int] = []

    def give(box: Box) -> Any:
        asked.extend(grid.numbers(box))
        return values[box.slices]

    tensor = Tensor("float32", shape, Lazy(chunk, give))
    boxes = data.draw(boxes_within(shape))
    for box, found in zip(boxes, read(put("w", b""), tensor, boxes), strict=True):
        np.testing.assert_array_equal(found, values[box.slices])
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize("parts", [(4, 2), (1, 8), (8, 1)])
@pytest.mark.parametrize("mine", [slice(None), slice(0, 2)])
def test_little_more_is_read_than_is_wanted(parts: tuple[int, int], mine: Any) -> None:
    values = np.random.default_rng(0).standard_normal((512, 768), np.float32)
    store = put("w", values.tobytes())
    block = Block(Box((0, 0), values.shape), Blob("w", 0, values.nbytes))
    tensor = Tensor("float32", values.shape, (block,))
    rows, columns = (n // p for n, p in zip(values.shape, parts, strict=True))
    boxes = [
        Box((a * rows, b * columns), (rows, columns))
        for a in range(parts[0])
        for b in range(parts[1])
    ][mine]
    for box, found in zip(boxes, read(store, tensor, boxes), strict=True):
        np.testing.assert_array_equal(found, values[box.slices])
    wanted = sum(box.size for box in boxes) * 4
    assert wanted <= store.bytes <= 1.1 * wanted
    leaf = layouts.Leaf(
        *("w", "jax", "float32", values.shape),
        store=layouts.Loose((64, 768), (block.box,)),
    )
    planned = layouts.plan_leaf_read(0, leaf, boxes)
    assert planned.read == store.bytes
    assert planned.wanted == wanted


def test_a_gap_far_away_is_read_to_spare_requests() -> None:
    values = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    box = Box((0, 0), (64, 32))
    block = Block(Box((0, 0), (64, 64)), Blob("w", 0, values.nbytes))
    tensor = Tensor("float32", (64, 64), (block,))
    counts = []
    for gap in (0, 4 * 32):
        store = put("w", values.tobytes())
        (found,) = read(store, tensor, [box], gap=gap)
        np.testing.assert_array_equal(found, values[box.slices])
        counts.append((store.requests, store.bytes))
    assert counts == [(64, values.nbytes // 2), (1, values.nbytes)]


def test_a_file_that_is_too_short_is_damaged() -> None:
    block = Block(Box((0,), (8,)), Blob("w", 0, 32))
    tensor = Tensor("float32", (8,), (block,))
    with pytest.raises(ckpt.Damaged, match=r"at `w`, in memory://test-fill/w"):
        read(put("w", bytes(31)), tensor, [Box((0,), (8,))])


def test_booleans_other_than_0_and_1_are_damaged() -> None:
    block = Block(Box((0,), (4,)), Blob("w", 0, 4))
    tensor = Tensor("bool", (4,), (block,))
    boxes = [Box((0,), (4,))]
    (found,) = read(put("w", bytes([0, 1, 1, 0])), tensor, boxes)
    assert found.view(np.uint8).tolist() == [0, 1, 1, 0]
    with pytest.raises(ckpt.Damaged, match="booleans"):
        read(put("w", bytes([0, 1, 2, 0])), tensor, boxes)
