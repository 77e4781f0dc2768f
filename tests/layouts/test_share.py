"""How evenly a tree is shared, and that one layout has one value."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

import layouts
import pytree
from layouts import Leaf, Packed, Pieces, Writers
from tests.layouts._cases import Layout, pieces_of, placed, stored
from tests.layouts._documents import example

Shape = tuple[int, ...]


def transformer(layers: int, width: int, vocabulary: int) -> list[tuple[str, Shape]]:
    """Return the paths and shapes of a decoder, its optimizer's moments included."""
    shapes: list[tuple[str, Shape]] = [("embed", (vocabulary, width))]
    for layer in range(layers):
        shapes += [
            (f"{layer}/qkv", (width, 3 * width)),
            (f"{layer}/out", (width, width)),
            (f"{layer}/up", (width, 4 * width)),
            (f"{layer}/down", (4 * width, width)),
            (f"{layer}/scale", (width,)),
            (f"{layer}/bias", (4 * width,)),
        ]
    return [(f"{x}/{path}", shape) for x in ("p", "mu", "nu") for path, shape in shapes]


def lay_out(
    shapes: list[tuple[str, Shape]], processes: int, how: str
) -> tuple[list[Leaf], list[Pieces]]:
    """Lay a tree on one device a process: replicated, cut in rows, or cut in two."""
    everyone = tuple(range(processes))
    leaves: list[Leaf] = []
    pieces: list[Pieces] = []
    for number, (path, shape) in enumerate(shapes):
        parts = {"fsdp": processes, "halves": 2, "mixed": (1, 2, processes)[number % 3]}
        count = parts.get(how, 1)
        if shape[0] % count:
            count = 1
        groups = tuple(everyone[part::count] for part in range(count))
        held = Pieces((shape[0] // count, *shape[1:]), groups)
        leaf = Leaf(path, "jax", "float32", shape)
        leaves.append(layouts.lay_out(leaf, path, held))
        pieces.append(held)
    return leaves, pieces


def loads_of(leaves: tuple[Leaf, ...], processes: int) -> list[int]:
    return [layouts.plan_write(leaves, process).nbytes for process in range(processes)]


@pytest.mark.parametrize("how", ["replicated", "fsdp", "halves", "mixed"])
@pytest.mark.parametrize("processes", [2, 4, 6, 8, 16])
@pytest.mark.parametrize(
    ("layers", "width", "vocabulary"), [(2, 768, 50257), (4, 1024, 32000), (8, 256, 0)]
)
def test_a_process_writes_within_a_tenth_of_its_share_of_a_decoder(
    layers: int, width: int, vocabulary: int, processes: int, how: str
) -> None:
    shapes = transformer(layers, width, vocabulary)
    leaves, pieces = lay_out(shapes, processes, how)
    loads = loads_of(layouts.assign_writers(leaves, pieces), processes)
    fair = sum(leaf.nbytes for leaf in leaves) / processes
    assert sum(loads) == fair * processes
    assert max(loads) <= 1.1 * fair
    assert min(loads) >= 0.9 * fair


def test_small_leaves_make_up_for_what_one_process_holds_alone() -> None:
    # 0 alone has 900 kB, and all hold 30 leaves of 100 kB: 975 kB for each of four.
    sizes = [100_000] * 15 + [900_000] + [100_000] * 15
    leaves = [
        Leaf(str(n), "jax", "uint8", (size,), store=Packed((size,)))
        for n, size in enumerate(sizes)
    ]
    pieces = [
        Pieces(leaf.shape, ((0,),) if leaf.nbytes == 900_000 else (tuple(range(4)),))
        for leaf in leaves
    ]
    loads = loads_of(layouts.assign_writers(leaves, pieces), 4)
    assert sorted(loads) == [900_000, 1_000_000, 1_000_000, 1_000_000]


@given(
    st.lists(st.integers(1, 2000), min_size=1, max_size=60),
    st.integers(2, 6),
    st.integers(0, 2000),
)
def test_no_process_has_more_than_the_least_loaded_and_one_leaf(
    sizes: list[int], processes: int, alone: int
) -> None:
    leaves = [
        Leaf(str(n), "jax", "uint8", (size,), store=Packed((size,)))
        for n, size in enumerate([alone, *sizes])
    ]
    everyone = tuple(range(processes))
    pieces = [
        Pieces(leaf.shape, (everyone if number else (processes - 1,),))
        for number, leaf in enumerate(leaves)
    ]
    assigned = layouts.assign_writers(leaves, pieces)
    loads = loads_of(assigned, processes)
    for process in everyone:
        own = [
            leaf.nbytes
            for leaf in assigned[1:]
            if layouts.plan_write([leaf], process).rows
        ]
        if own:
            assert loads[process] - min(own) <= min(loads)


@given(st.lists(placed(), min_size=1, max_size=4), st.data())
def test_the_answer_depends_on_values_alone(
    placements: list[Layout], data: st.DataObject
) -> None:
    leaves = [data.draw(stored(x, str(n))) for n, x in enumerate(placements)]
    pieces = [pieces_of(x, [d % 3 for d in range(x.mesh.size)]) for x in placements]
    copies = [pieces_of(x, [d % 3 for d in range(x.mesh.size)]) for x in placements]
    assert layouts.assign_writers(leaves, pieces) == layouts.assign_writers(
        leaves, copies
    )


def many_leaves(count: int, processes: int) -> tuple[Leaf, ...]:
    """Return leaves that each process holds a row of."""
    held = tuple((process,) for process in range(processes))
    leaves = [
        Leaf(
            str(n), "jax", "uint8", (processes, n % 3 + 1), store=Packed((1, n % 3 + 1))
        )
        for n in range(count)
    ]
    pieces = [Pieces((1, *leaf.shape[1:]), held) for leaf in leaves]
    return layouts.assign_writers(leaves, pieces)


def test_leaves_of_one_layout_share_their_writers() -> None:
    leaves = many_leaves(50, 20)
    assert len({id(leaf.store.writers) for leaf in leaves if leaf.store}) == 1
    manifest, _ = example()
    part = layouts.PartRef(1 << 20, "ab" * 32)
    tree = dict.fromkeys([leaf.path for leaf in leaves], 0)
    made = replace(
        manifest,
        structure=pytree.flatten(tree)[1],
        leaves=leaves,
        parts=(part,) * 20,
    )
    again = layouts.parse_manifest(made.encode())
    assert again == made
    assert len({id(leaf.store.writers) for leaf in again.leaves if leaf.store}) == 1
    assert made.encode().count(b"[0,1,1,1,2,1") == 1


RUNS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=8)


@given(RUNS)
def test_writers_are_looked_up_as_they_are_spelled(runs: list[tuple[int, int]]) -> None:
    writers = Writers(tuple(runs))
    spelled = [process for process, count in runs for _ in range(count)]
    assert writers.length == len(spelled)
    assert [writers.process(cell) for cell in range(len(spelled))] == spelled
    for process in range(7):
        cells = [cell for cell, writer in enumerate(spelled) if writer == process]
        assert list(writers.cells(process)) == cells
    assert hash(writers) == hash(Writers(tuple(runs)))
    assert writers == Writers(tuple(runs))
