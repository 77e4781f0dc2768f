"""Checkpoints of DCP that no honest writer made: each is refused, quickly."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ckpt import CkptError, Damaged, LimitExceeded, Unsupported, Untrusted
from ckpt._store import open_store
from ckpt.formats._dcp import find_dcp
from ckpt.formats._entry import Catalogue, Folder, Tensor
from ckpt.formats._torch_tensor import read_sizes

from . import _dcp_files as dcp
from ._gather import PEERS, leaves, look_in, materialise

ITEM = dcp.item(np.arange(12, dtype=np.float32).reshape(4, 3))
INDEX = dcp.index("w", (0, 0))
PLACE = dcp.place("__0_0.distcp", 0, len(ITEM))
CHUNK = dcp.chunk((0, 0), (4, 3))
HALVES = [dcp.chunk((0, 0), (2, 3)), dcp.chunk((2, 0), (2, 3))]


def save(
    folder: Path, entries: Any, items: Any = ((INDEX, PLACE),), paths: Any = None
) -> Catalogue:
    """Write metadata beside one good item, and look for the checkpoint."""
    (folder / "__0_0.distcp").write_bytes(ITEM)
    (folder / "__2_0.distcp").write_bytes(ITEM)
    (folder / ".metadata").write_bytes(dcp.metadata(entries, items, paths))
    found = find_dcp(look_in(folder))
    assert found is not None
    return found


def entry(shape: Any = (4, 3), chunks: Any = (CHUNK,), dtype: str = "float32") -> Any:
    return {"w": dcp.tensor(dtype, shape, list(chunks))}


def test_the_good_one_is_read(tmp_path: Path) -> None:
    tensor = save(tmp_path, entry()).tree["w"]
    assert materialise(open_store(tmp_path), tensor).sum() == 66


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../__0_0.distcp",
        "sub/__0_0.distcp",
        "..",
        ".",
        "",
        "a\\b",
        "C:x",
        "a\0b",
        "x" * 2000,
        7,
        None,
    ],
)
def test_objects_outside_of_the_folder_are_refused(path: Any, tmp_path: Path) -> None:
    with pytest.raises(Untrusted, match=r"at `w`, in .*\.metadata"):
        save(tmp_path, entry(), [(INDEX, dcp.place(path, 0, 10))])


@pytest.mark.parametrize(
    ("offset", "length", "error"),
    [
        (1, len(ITEM), Damaged),
        (0, len(ITEM) + 1, Damaged),
        (2**61, 2**61, Damaged),
        (2**63, 10, Untrusted),
        (-1, len(ITEM), Untrusted),
        (0, -1, Untrusted),
        (0, 1.0, Untrusted),
        (0, True, Untrusted),
        (0, 10, Untrusted),
        (None, None, Untrusted),
    ],
)
def test_items_outside_of_their_object_are_refused(
    offset: Any, length: Any, error: type[CkptError], tmp_path: Path
) -> None:
    place = dcp.place("__0_0.distcp", offset, length)
    with pytest.raises(error, match="at `w`, in"):
        save(tmp_path, entry(), [(INDEX, place)])


@pytest.mark.parametrize(
    ("shape", "chunks", "error"),
    [
        ((4, 3), [], Damaged),
        ((5, 3), [CHUNK], Damaged),
        ((4, 3), [CHUNK, HALVES[1]], Untrusted),
        ((4, 3), [HALVES[0], dcp.chunk((1, 0), (2, 3))], Untrusted),
        ((4, 3), [dcp.chunk((0, 0), (5, 3))], Untrusted),
        ((4, 3), [dcp.chunk((0,), (12,))], Untrusted),
        ((4, 3), [dcp.chunk((-1, 0), (4, 3))], Untrusted),
        ((4, 3), [dcp.chunk((0, 0), (2**63, 3))], Untrusted),
        ((4, 3), [dcp.chunk(("a", 0), (4, 3))], Untrusted),
        ((2**40, 2**40), [dcp.chunk((0, 0), (2**40, 2**40))], LimitExceeded),
        ((0, 2**60), [], LimitExceeded),
        ((1,) * 65, [], LimitExceeded),
        ((2**32, 1), [dcp.chunk((0, 0), (2**32, 1))], Untrusted),
        ((4, 3), [7], Untrusted),
        ((None,), [], Untrusted),
    ],
)
def test_boxes_that_do_not_tile_are_refused(
    shape: Any, chunks: Any, error: type[CkptError], tmp_path: Path
) -> None:
    items = [(dcp.index("w", at), PLACE) for at in ((0, 0), (1, 0), (2, 0))]
    with pytest.raises(error, match=r"\.metadata"):
        save(tmp_path, entry(shape, chunks), items)


@pytest.mark.parametrize(
    ("entries", "items", "paths", "error"),
    [
        (entry(), [], None, Damaged),
        (entry(), [(dcp.index("w", (1, 0)), PLACE)], None, Damaged),
        (entry(), [(INDEX, dcp.place("__9_0.distcp", 0, 9))], None, Damaged),
        (entry(), [(INDEX, 7)], None, Untrusted),
        (entry(), [(7, PLACE)], None, Untrusted),
        (entry(), [(dcp.index(7, (0, 0)), PLACE)], None, Untrusted),
        (7, (), None, Untrusted),
        ({"w": 7}, (), None, Untrusted),
        ({7: dcp.plain()}, (), None, Untrusted),
        ({"w": dcp.plain()}, [], None, Damaged),
        (entry(dtype="complex32"), [(INDEX, PLACE)], None, Unsupported),
        (entry(), [(INDEX, PLACE)], {"w": 7}, Untrusted),
        (entry(), [(INDEX, PLACE)], {"w": ()}, Untrusted),
        (entry(), [(INDEX, PLACE)], {"w": (-1,)}, Untrusted),
        (entry(), [(INDEX, PLACE)], {"w": (1.5,)}, Untrusted),
        (entry(), [(INDEX, PLACE)], {"w": ("l", 10**9)}, Untrusted),
        (entry(), [(INDEX, PLACE)], {"w": ("l",) * 1000}, LimitExceeded),
        (
            {"w": dcp.tensor("float32", (), []), "v": dcp.tensor("float32", (), [])},
            [],
            None,
            Damaged,
        ),
    ],
)
def test_metadata_that_contradict_themselves_are_refused(
    entries: Any, items: Any, paths: Any, error: type[CkptError], tmp_path: Path
) -> None:
    with pytest.raises(error):
        save(tmp_path, entries, items, paths)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("a",), ("a", "b")),
        (("a", "b"), ("a",)),
        (("a", 0), ("a", "b")),
        (("a", 0), ("a", 0)),
    ],
)
def test_paths_that_contradict_each_other_are_refused(
    first: Any, second: Any, tmp_path: Path
) -> None:
    entries = {name: entry()["w"] for name in ("v", "w")}
    other = dcp.place("__2_0.distcp", 0, len(ITEM))
    items = [(dcp.index("v", (0, 0)), other), (INDEX, PLACE)]
    with pytest.raises(Untrusted, match="each path once"):
        save(tmp_path, entries, items, {"v": first, "w": second})


def test_items_that_share_bytes_are_refused(tmp_path: Path) -> None:
    entries = {name: dcp.plain() for name in ("v", "w")}
    for offset in (0, 10):
        place = dcp.place("__0_0.distcp", offset, len(ITEM) - offset)
        items = [(dcp.index("v", None), PLACE), (dcp.index("w", None), place)]
        with pytest.raises(Untrusted, match="apart, found those of `v` and `w`"):
            save(tmp_path, entries, items)


def test_boxes_that_many_tensors_share_are_refused(tmp_path: Path) -> None:
    # What a memo makes of few bytes: each tensor has the same long list of boxes.
    entries = entry(chunks=[CHUNK] * 200)
    first = dcp.spell(entries["w"].state["chunks"])
    data = dcp.metadata({f"{n}": entries["w"] for n in range(40)}, [])
    at = data.index(first) + len(first)
    data = data[:at] + b"q\0" + data[at:].replace(first, b"h\0")
    (tmp_path / ".metadata").write_bytes(data)
    with pytest.raises(Untrusted, match="shared ones"):
        find_dcp(look_in(tmp_path))


def test_extensions_and_layouts_that_are_unknown_are_named(tmp_path: Path) -> None:
    place = dcp.place("__0_0.distcp", 0, 9, transform_descriptors=["rot13/1"])
    with pytest.raises(Unsupported, match="rot13"):
        save(tmp_path, entry(), [(INDEX, place)])
    sparse = entry()["w"]
    sparse.state["properties"] = dcp.properties("float32", layout="torch.sparse_coo")
    with pytest.raises(Unsupported, match="sparse_coo"):
        save(tmp_path, {"w": sparse})


@pytest.mark.parametrize(
    "value",
    [
        dcp.Made(dcp.Name("os", "system"), ("true",), reduced=True),
        dcp.Made(dcp.Name("builtins", "eval"), ("1",), reduced=True),
        dcp.Made(dcp.Name("torch", "load"), ("x",), reduced=True),
    ],
)
def test_functions_that_run_code_are_refused_wherever_they_are(
    value: Any, tmp_path: Path
) -> None:
    with pytest.raises(Untrusted, match=f"{value.of.module}.{value.of.name}"):
        save(tmp_path, {"w": value})
    item = dcp.saved([value])
    (tmp_path / "__1_0.distcp").write_bytes(item)
    place = dcp.place("__1_0.distcp", 0, len(item))
    with pytest.raises(Untrusted, match=f"{value.of.module}.{value.of.name}"):
        save(tmp_path, {"x": dcp.plain()}, [(dcp.index("x", None), place)])
    tensor = save(tmp_path, entry(), [(INDEX, place)]).tree["w"]
    with pytest.raises(Untrusted, match=f"{value.of.module}.{value.of.name}"):
        materialise(open_store(tmp_path), tensor)


def test_items_of_another_shape_or_dtype_are_damaged(tmp_path: Path) -> None:
    for array in (np.zeros((3, 4), np.float32), np.zeros((4, 3), np.int64)):
        item = dcp.item(array)
        (tmp_path / "__1_0.distcp").write_bytes(item)
        place = dcp.place("__1_0.distcp", 0, len(item))
        tensor = save(tmp_path, entry(), [(INDEX, place)]).tree["w"]
        with pytest.raises(Damaged, match=r"expected float32\[4, 3\], .* of `w`"):
            materialise(open_store(tmp_path), tensor)


def test_a_compressed_item_cannot_claim_what_no_stream_holds(tmp_path: Path) -> None:
    place = dcp.place("__0_0.distcp", 0, 9, transform_descriptors=["stream.zstd/1"])
    shape = (2**40, 1)
    with pytest.raises(Untrusted, match="an item of"):
        save(tmp_path, entry(shape, [dcp.chunk((0, 0), shape)]), [(INDEX, place)])
    tensor = save(tmp_path, entry(), [(INDEX, place)]).tree["w"]
    with pytest.raises(Damaged, match="zstd"):
        materialise(open_store(tmp_path), tensor)


def test_a_compressed_value_that_explodes_is_refused(tmp_path: Path) -> None:
    block = (131_072 << 3 | 2).to_bytes(3, "little") + b"x"
    bomb = b"\x28\xb5\x2f\xfd\x00\x58" + block * 2000 + b"\1\0\0"
    (tmp_path / "__1_0.distcp").write_bytes(bomb)
    more = {"transform_descriptors": ["stream.zstd/1"]}
    place = dcp.place("__1_0.distcp", 0, len(bomb), **more)
    with pytest.raises(LimitExceeded, match="`x` of"):
        save(tmp_path, {"x": dcp.plain()}, [(dcp.index("x", None), place)])


@pytest.mark.parametrize("cut", [0, 1, 100, 3000, 8000])
def test_metadata_that_are_cut_short_are_refused(cut: int, tmp_path: Path) -> None:
    data = (PEERS / "dcp_single" / ".metadata").read_bytes()
    (tmp_path / ".metadata").write_bytes(data[:cut])
    with pytest.raises(CkptError):
        find_dcp(look_in(tmp_path))
    (tmp_path / ".metadata").write_bytes(data + b"x")
    with pytest.raises(Untrusted, match="more bytes"):
        find_dcp(look_in(tmp_path))


def test_a_data_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    shutil.copytree(PEERS / "dcp_mesh4_1d", tmp_path, dirs_exist_ok=True)
    path = tmp_path / "__2_0.distcp"
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(Damaged, match="expected the object __2_0"):
        find_dcp(look_in(tmp_path))
    path.write_bytes(data[:-1])
    with pytest.raises(Damaged, match=r"of __2_0\.distcp, found its end at"):
        find_dcp(look_in(tmp_path))


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_nothing_but_our_errors_leaves(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([".metadata", "__0_0.distcp"]))
    source = PEERS / "dcp_single_zstd"
    store = open_store("memory://dcp-mutated")
    for path in source.iterdir():
        text = bytearray(path.read_bytes())
        if path.name == name:
            for _ in range(data.draw(st.integers(1, 4))):
                at = data.draw(st.integers(0, len(text) - 1))
                text[at] = data.draw(st.integers(0, 255))
        store.remove(path.name)
        store.create(path.name, bytes(text))
    with contextlib.suppress(CkptError):
        found = find_dcp(Folder(store, tuple(store.list(""))))
        assert found is not None
        for _, leaf in list(leaves(found.tree))[:8]:
            if isinstance(leaf, Tensor):
                materialise(store, leaf)


def test_places_whose_hashes_repeat_are_refused() -> None:
    """Many such places would be looked up one after another."""
    hostile = 2**61 - 1
    assert hash((hostile, 5)) == hash((0, 5))
    assert read_sizes((2**60 - 1, 5)) == (2**60 - 1, 5)
    with pytest.raises(Untrusted):
        read_sizes((hostile, 5))
