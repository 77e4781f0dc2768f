"""What is written is what safetensors reads; a set is replaced whole or not at all."""

import json
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax.sharding import NamedSharding, PartitionSpec as P
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import ckpt
from ckpt.cli import main
from ckpt.formats._safetensors import find_safetensors
from ckpt.formats._safetensors_header import DTYPES
from ckpt.formats._safetensors_items import Item
from ckpt.formats._safetensors_plan import cut_item
from layouts import dtype_of
from tests._harness.forkserver import Fault, ForkServer, Job, sweep
from tests._harness.servers import Cloud, Kind
from tests.formats._exports import LARGE, export, tree_of
from tests.formats._read_files import PEERS, folder_of, materialise
from tests.stores._places import cloud_place

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def mesh() -> Any:
    types = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), ("data", "model"), types)


def lay(mesh: Any, values: np.ndarray, *spec: Any) -> jax.Array:
    return jax.device_put(values, NamedSharding(mesh, P(*spec)))


def parse(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the header and the data of a file that keeps all rules of layout."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert length % 8 == 0
    header = json.loads(raw[8 : 8 + length])
    data = raw[8 + length :]
    end = 0
    order: list[tuple[int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, stop = entry["data_offsets"]
        bits = 4 if entry["dtype"] == "F4" else 8 * itemsize(entry["dtype"])
        assert begin == end
        assert bits < 8 or begin % (bits // 8) == 0
        assert 8 * (stop - begin) == bits * int(np.prod(entry["shape"], dtype=int))
        order.append((-bits, name))
        end = stop
    assert end == len(data)
    assert order == sorted(order)
    return header, data


def itemsize(dtype: str) -> int:
    return dtype_of(DTYPES[dtype]).itemsize


def read(path: Path) -> dict[str, np.ndarray]:
    """Return all arrays of a folder by our reader."""
    folder = folder_of(path)
    found = find_safetensors(folder)
    assert found is not None
    assert found.notes == ()
    return {name: materialise(folder, x) for name, x in found.tree.items()}


def as_transformers_reads(path: Path) -> dict[str, np.ndarray]:
    """Return all arrays as transformers finds them: the plain file, else the index."""
    if (path / "model.safetensors").exists():
        return load_file(path / "model.safetensors")
    places = json.loads((path / INDEX).read_text())["weight_map"]
    files = {file: load_file(path / file) for file in set(places.values())}
    return {name: files[file][name] for name, file in places.items()}


def check_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert (found[name].dtype, found[name].shape) == (values.dtype, values.shape)
        assert found[name].tobytes() == values.tobytes(), name


def make_tree(mesh: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a tree of every kind of array, and what its names and values are."""
    w = np.arange(16 * 24, dtype=np.float32).reshape(16, 24)
    whole = {
        "both": lay(mesh, w, "data", "model"),
        "rows": lay(mesh, w + 1, ("data", "model")),
        "columns": lay(mesh, w + 2, None, "model"),
        "copies": lay(mesh, w + 3),
    }
    tree: dict[str, Any] = {
        "jax": whole,
        "layers": [
            {"fortran": np.asfortranarray(w), "gaps": w[::2, ::3]},
            {"big": np.arange(3, dtype=">i4"), "backwards": w[::-1]},
        ],
        "a.b": jnp.ones((2, 3), jnp.bfloat16),
        "f8": jnp.ones(3, jnp.float8_e4m3fn),
        "empty": np.zeros((0, 3)),
        "none": None,
        "n": 3,
        "x": 0.5,
        "yes": np.True_,
        "large": (1 << 64) - 1,
    }
    expected: dict[str, Any] = {
        f"jax.{name}": np.asarray(x) for name, x in whole.items()
    } | {
        "layers.0.fortran": w,
        "layers.0.gaps": np.ascontiguousarray(w[::2, ::3]),
        "layers.1.big": np.arange(3, dtype="<i4"),
        "layers.1.backwards": np.ascontiguousarray(w[::-1]),
        "a.b": np.ones((2, 3), ml_dtypes.bfloat16),
        "f8": np.ones(3, ml_dtypes.float8_e4m3fn),
        "empty": np.zeros((0, 3)),
        "n": np.int64(3).reshape(()),
        "x": np.float64(0.5).reshape(()),
        "yes": np.array(True),
        "large": np.uint64((1 << 64) - 1).reshape(()),
    }
    return tree, expected


@pytest.mark.parametrize("most", [LARGE, 2000, 1])
def test_a_tree_is_written_as_it_is(tmp_path: Path, mesh: Any, most: int) -> None:
    tree, expected = make_tree(mesh)
    names = ckpt.save_safetensors(tree, tmp_path, max_shard_bytes=most)
    assert sorted(names) == sorted(p.name for p in tmp_path.iterdir())
    check_equal(read(tmp_path), expected)
    files = [name for name in names if name != INDEX]
    headers = {name: parse(tmp_path / name)[0] for name in files}
    assert {h["__metadata__"]["format"] for h in headers.values()} == {"pt"}
    keys: set[str] = set()
    for name in files:
        with safe_open(tmp_path / name, "np") as file:
            keys.update(file.keys())
    assert keys == set(expected)
    if most == LARGE:
        assert names == ("model.safetensors",)
        return
    index = json.loads((tmp_path / INDEX).read_text())
    assert names[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in expected.values())
    assert index["weight_map"] == {
        key: name for name, h in headers.items() for key in h if key != "__metadata__"
    }
    assert list(index["weight_map"]) == sorted(index["weight_map"])
    for header in headers.values():
        sizes = [
            np.subtract(*x["data_offsets"]) for k, x in header.items() if k[:2] != "__"
        ]
        assert len(sizes) == 1 or -sum(sizes) <= most


def test_small_pieces_make_the_same_file(tmp_path: Path, mesh: Any) -> None:
    w = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
    tree = {"a": lay(mesh, w, None, "data"), "b": np.asfortranarray(w)}
    ckpt.save_safetensors(tree, tmp_path / "a")
    ckpt.save_safetensors(tree, tmp_path / "b", max_host_bytes=1 << 20)
    files = [(tmp_path / x / "model.safetensors").read_bytes() for x in "ab"]
    assert files[0] == files[1]
    np.testing.assert_array_equal(load_file(tmp_path / "b/model.safetensors")["a"], w)


@given(
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.sampled_from(sorted(set(DTYPES.values()) - {"float4_e2m1fn"})),
    st.integers(1, 300),
)
def test_any_shape_comes_back(shape: tuple[int, ...], dtype: str, most: int) -> None:
    size = int(np.prod(shape, dtype=int)) * dtype_of(dtype).itemsize
    raw = np.arange(size, dtype=np.uint8) % (2 if dtype == "bool" else 251)
    values = raw.view(dtype_of(dtype)).reshape(shape)
    tree = {"a": values, "b": values[..., None], "c": np.asfortranarray(values)}
    with tempfile.TemporaryDirectory() as folder:
        ckpt.save_safetensors(tree, folder, max_shard_bytes=most)
        check_equal(
            read(Path(folder)),
            {k: np.ascontiguousarray(v).reshape(v.shape) for k, v in tree.items()},
        )


def test_float4_is_packed_again(tmp_path: Path) -> None:
    values = (np.arange(12) % 16).astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    ckpt.save_safetensors({"a": values.reshape(3, 4)}, tmp_path)
    header, data = parse(tmp_path / "model.safetensors")
    assert (header["a"]["dtype"], header["a"]["shape"]) == ("F4", [3, 4])
    assert data == bytes([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA])
    check_equal(read(tmp_path), {"a": values.reshape(3, 4)})
    with pytest.raises(ckpt.Unsupported, match="odd number of float4"):
        ckpt.save_safetensors({"a": values[:3]}, tmp_path / "b")


@pytest.mark.parametrize("handle", [False, True])
def test_a_checkpoint_is_written_as_its_tree_is(
    tmp_path: Path, mesh: Any, handle: bool
) -> None:
    tree, expected = make_tree(mesh)
    tree["large_one"] = lay(
        mesh, np.arange(3 << 17, dtype=np.int32).reshape(-1, 512), "data", "model"
    )
    expected["large_one"] = np.asarray(tree["large_one"])
    ckpt.save(tree, mesh, tmp_path / "run", step=4, codec="zstd")
    source = ckpt.open(tmp_path / "run") if handle else tmp_path / "run"
    seen: list[tuple[int, int]] = []
    ckpt.save_safetensors(
        source,
        tmp_path / "out",
        max_shard_bytes=4 << 20,
        max_host_bytes=1 << 20,
        progress=lambda done, total: seen.append((done, total)),
    )
    check_equal(read(tmp_path / "out"), expected)
    sizes = sum(p.stat().st_size for p in (tmp_path / "out").glob("*.safetensors"))
    assert seen == sorted(seen)
    assert seen[-1] == (sizes, sizes)


def test_damage_of_the_source_is_found_and_leaves_no_set(tmp_path: Path) -> None:
    tree = {"w": np.arange(1 << 20, dtype=np.int32)}
    ckpt.save(tree, None, tmp_path / "run", step=1)
    [victim] = [
        p for p in (tmp_path / "run").rglob("c/*") if p.stat().st_size > 1 << 20
    ]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(ckpt.Damaged, match="`w`"):
        ckpt.save_safetensors(tmp_path / "run", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_ties_are_written_once_and_recorded(tmp_path: Path) -> None:
    w, b = jnp.ones((4, 4)), np.zeros(3)
    tree = {"embed": w, "b": b, "head": {"w": w}}
    ckpt.save_safetensors(tree, tmp_path / "one")
    header, data = parse(tmp_path / "one/model.safetensors")
    assert header["__metadata__"] == {"format": "pt", "head.w": "embed"}
    assert len(data) == w.nbytes + b.nbytes
    ckpt.save_safetensors(tree, tmp_path / "two", max_shard_bytes=1)
    told = json.loads((tmp_path / "two" / INDEX).read_text())["metadata"]
    assert told == {"total_size": len(data), "head.w": "embed"}
    for name in ("one", "two"):
        found = find_safetensors(folder_of(tmp_path / name))
        assert found is not None
        assert found.tree["head.w"] is found.tree["embed"]
    ckpt.save_safetensors(tree, tmp_path / "three", select="head/**")
    assert list(load_file(tmp_path / "three/model.safetensors")) == ["head.w"]


def test_metadata_lies_where_huggingface_hub_puts_it(tmp_path: Path) -> None:
    tree = {"a": np.ones(2), "b": np.ones(2)}
    told = {"format": "flax", "note": "é"}
    ckpt.save_safetensors(tree, tmp_path / "one", metadata=told)
    assert parse(tmp_path / "one/model.safetensors")[0]["__metadata__"] == told
    ckpt.save_safetensors(tree, tmp_path / "two", metadata=told, max_shard_bytes=1)
    index = json.loads((tmp_path / "two" / INDEX).read_text())
    assert index["metadata"] == {"total_size": 32, "note": "é"}
    header, _ = parse(tmp_path / "two/model-00002-of-00002.safetensors")
    assert header["__metadata__"] == {"format": "flax"}


def test_paths_are_selected_and_renamed_before_they_are_names(tmp_path: Path) -> None:
    tree = {"params": {"up": [np.ones(1), np.zeros(2)]}, "step": "a text"}
    rename = {"params/up/*": "model/layers/*/w"}
    ckpt.save_safetensors(tree, tmp_path, select="params/**", rename=rename)
    found = load_file(tmp_path / "model.safetensors")
    assert sorted(found) == ["model.layers.0.w", "model.layers.1.w"]


def test_all_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    tree = {
        "text": "a",
        "raw": b"b",
        "z": 1j,
        "key": jax.random.key(0),
        "i4": jnp.ones(2, jnp.int4),
        "c": np.ones(1, complex),
        "__metadata__": np.ones(1),
        "": np.ones(1),
        "x": {"y": np.ones(1)},
        "x.y": np.ones(1),
        "huge": 1 << 64,
        "objects": np.array([None]),
    }
    with pytest.raises(ckpt.Unsupported) as raised:
        ckpt.save_safetensors(tree, tmp_path)
    lines = str(raised.value).splitlines()
    assert len(lines) == len(tree)
    assert "found 11 leaves" in lines[0]
    for path in [*tree, "x/y"]:
        assert path in ("x", "") or any(f"`{path}`" in line for line in lines), path
    assert list(tmp_path.iterdir()) == []
    ckpt.save({k: tree[k] for k in ("text", "key", "i4")}, None, tmp_path / "run")
    with pytest.raises(ckpt.Unsupported, match="found 3 leaves"):
        ckpt.save_safetensors(tmp_path / "run", tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"metadata": {"a": 1}}, TypeError, "metadata= of texts"),
        ({"metadata": {"total_size": "1"}}, ValueError, "total_size"),
        ({"metadata": {"b": "1"}}, ValueError, "names of ties, found 'b'"),
        ({"metadata": {"note": "a"}}, ValueError, "ties no name to an array"),
        ({"max_shard_bytes": 0}, ValueError, "max_shard_bytes"),
        ({"max_host_bytes": 5}, ValueError, "max_host_bytes"),
        ({"select": "z"}, ValueError, "found none"),
        ({"step": 3}, ValueError, "step=3"),
        ({"rename": {"a": "b"}}, ValueError, "share one"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    tmp_path: Path, options: Any, error: type[Exception], text: str
) -> None:
    w = np.ones(1)
    with pytest.raises(error, match=text):
        ckpt.save_safetensors({"a": w, "b": w}, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_is_no_place_for_a_set(tmp_path: Path) -> None:
    done = ckpt.save({"a": np.ones(1)}, None, tmp_path)
    for place in (tmp_path, done.url):
        with pytest.raises(ValueError, match="found a checkpoint or a run"):
            ckpt.save_safetensors({"a": np.ones(1)}, place, overwrite=True)


def test_the_name_of_a_file_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give the folder"):
        ckpt.save_safetensors({"w": np.ones(2)}, tmp_path / "out" / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_set_is_replaced_only_when_told(tmp_path: Path) -> None:
    export(str(tmp_path), 1, sharded=False)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ckpt.StepExists, match=r"found model\.safetensors"):
        ckpt.save_safetensors(tree_of(2), tmp_path)
    check_equal(read(tmp_path), tree_of(1))
    names: set[str] = set()
    for seed, sharded in enumerate([True, True, True, False, False, True], 2):
        export(str(tmp_path), seed, sharded)
        check_equal(read(tmp_path), tree_of(seed))
        check_equal(as_transformers_reads(tmp_path), tree_of(seed))
        names = {p.name for p in tmp_path.iterdir()}
        assert len(names) == (5 if sharded else 2)
    assert "config.json" in names


def test_files_of_the_old_set_are_removed_by_any_name(tmp_path: Path) -> None:
    save_file({"a": np.ones(1)}, tmp_path / "part-a.safetensors")
    save_file({"b": np.ones(1)}, tmp_path / "model.safetensors")
    weights = {"a": "part-a.safetensors", "b": "model.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weights}))
    save_file({"c": np.ones(1)}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "model-00001-of-00009.safetensors").write_bytes(b"left by a kill")
    (tmp_path / f"model.safetensors.{16 * 'a'}.tmp").write_bytes(b"left by a kill")
    export(str(tmp_path), 1, sharded=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "adapter_model.safetensors",
        "model-00001-of-00001.safetensors",
        INDEX,
    ]
    check_equal(as_transformers_reads(tmp_path), tree_of(1))


@pytest.mark.parametrize("most", [LARGE, 300])
@pytest.mark.parametrize("kind", ["memory", "s3", "gs"])
def test_a_set_in_an_object_store_is_written_and_replaced(
    clouds: dict[Kind, Cloud], kind: Any, most: int
) -> None:
    url = f"memory://safetensors-write-{most}"
    if kind != "memory":
        url = cloud_place(clouds[kind]).url
    for seed in (1, 2):
        ckpt.save_safetensors(tree_of(seed), url, max_shard_bytes=most, overwrite=True)
        folder = folder_of(url)
        found = find_safetensors(folder)
        assert found is not None
        values = {name: materialise(folder, x) for name, x in found.tree.items()}
        check_equal(values, tree_of(seed))
        assert len(folder.names) == (1 if most == LARGE else 4)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.formats._exports") as started:
        yield started


def strike(
    server: ForkServer, root: Path, target: str, old: bool | None, new: bool
) -> list[str]:
    """Kill an export at its calls; return what a reader finds that is no set."""
    wrong: list[str] = []
    # Every other one will do where there are many.
    step = 1 + new

    def make_job(number: int) -> Job:
        out = root / str(number)
        out.mkdir(parents=True)
        if old is not None:
            export(str(out), 1, old)
        return Job(target, [str(out), 2, new], Fault(str(out), step * number, "kill"))

    count = 0
    for number, _, outcome in sweep(server, make_job):
        assert outcome.status == "killed"
        count += 1
        out = root / str(number)
        for look in (read_ours, as_transformers_reads):
            try:
                found = {name: float(x[0, 0]) for name, x in look(out).items()}
            except (ckpt.CkptError, AssertionError, OSError, KeyError) as error:
                found = repr(error)
            states = [tree_of(2)] + ([tree_of(1)] if old is not None else [])
            fine = [{name: float(x[0, 0]) for name, x in s.items()} for s in states]
            if found not in fine and not (old is None and isinstance(found, str)):
                wrong.append(f"{number}: {look.__name__} {found}")
        if wrong:
            return wrong
        # What a kill leaves behind does not stay in the way.
        if number % 4 == 0:
            export(str(out), 3, new)
            check_equal(read(out), tree_of(3))
            assert len(list(out.iterdir())) == (4 if new else 1)
    assert count > 4
    return wrong


def read_ours(path: Path) -> dict[str, np.ndarray]:
    folder = folder_of(path)
    found = find_safetensors(folder)
    assert found is not None
    return {name: materialise(folder, x) for name, x in found.tree.items()}


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("old", "new"), [(None, True), (False, False), (False, True), (True, False)]
)
def test_an_export_killed_at_any_call_leaves_the_old_set_or_the_new(
    server: ForkServer, memory_run: Path, old: bool | None, new: bool
) -> None:
    assert strike(server, memory_run, "tests.formats._exports:export", old, new) == []


def test_an_unsafe_export_is_caught(server: ForkServer, memory_run: Path) -> None:
    unsafe = "tests.formats._exports:export_in_place"
    assert strike(server, memory_run, unsafe, old=True, new=True)


@pytest.mark.campaign
@pytest.mark.parametrize("mode", ["eio", "enospc", "short"])
def test_an_export_that_meets_an_error_leaves_the_old_set_or_the_new(
    server: ForkServer, memory_run: Path, mode: Any
) -> None:
    for number in range(1, 40, 3):
        out = memory_run / str(number)
        export(str(out), 1, sharded=True)
        fault = Fault(str(out), number, mode)
        job = Job("tests.formats._exports:export", [str(out), 2, True], fault)
        [outcome] = server.run(job)
        found = read_ours(out)
        seed = int(found["w0"][0, 0]) // 10
        check_equal(found, tree_of(seed))
        if outcome.status == "returned":
            assert seed == 2
        else:
            assert outcome.error.endswith("StoreError"), outcome
        if not outcome.faults:
            return


def test_the_command_says_which_files_it_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = str(tmp_path / "run"), str(tmp_path / "out")
    ckpt.save({"a": np.ones(3), "b": {"c": np.ones(2)}}, None, run, step=3)
    assert main(["export", run, out, "--select", "b/**"]) == 0
    assert capsys.readouterr().out == "model.safetensors\n"
    assert list(load_file(f"{out}/model.safetensors")) == ["b.c"]
    assert main(["export", run, out]) == 2
    assert "overwrite=True" in capsys.readouterr().err
    more = ["--overwrite", "--max-shard-bytes", "20", "--json", "--step", "3"]
    assert main(["export", run, out, *more]) == 0
    assert json.loads(capsys.readouterr().out)["files"][-1] == INDEX


def test_a_set_of_a_peer_is_written_from_its_path(tmp_path: Path) -> None:
    source = PEERS / "st_hub_sharded"
    ckpt.save_safetensors(source, tmp_path, max_shard_bytes=5000)
    ours, theirs = as_transformers_reads(tmp_path), as_transformers_reads(source)
    check_equal(ours, theirs)
    told = json.loads((tmp_path / INDEX).read_text())["metadata"]
    assert told == {"total_size": 20484, "head": "embed"}
    check_equal(ckpt.restore(tmp_path), {**theirs, "head": theirs["embed"]})
    ckpt.save_safetensors(tmp_path, tmp_path, overwrite=True)
    check_equal(as_transformers_reads(tmp_path), theirs)
    opened = ckpt.open(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(opened["big"][3:5, 1:], theirs["big"][3:5, 1:])


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple),
    st.sampled_from(["float4_e2m1fn", "int8", "float32"]),
    st.integers(1, 40),
)
def test_an_array_is_cut_between_bytes(
    shape: tuple[int, ...], dtype: str, most: int
) -> None:
    four = dtype == "float4_e2m1fn"
    shape = (2 * shape[0], *shape[1:]) if four else shape
    order = np.arange(int(np.prod(shape))).reshape(shape)
    boxes = list(cut_item(Item("a", dtype, shape, 0), most=most))
    found = np.concatenate([order[box.slices].reshape(-1) for box in boxes])
    np.testing.assert_array_equal(found, order.reshape(-1))
    if four:
        assert all(box.size % 2 == 0 for box in boxes)
        if shape[-1] % 2 == 0 or len(shape) == 1:
            assert all(box.size <= max(2 * most, 2) for box in boxes)


def test_an_array_of_float4_is_written_in_pieces(tmp_path: Path) -> None:
    values = (np.arange(8 << 20) % 16).astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    tree = {"a": values.reshape(2048, 4096)}
    tracemalloc.start()
    try:
        ckpt.save_safetensors(tree, tmp_path, max_host_bytes=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    check_equal(read(tmp_path), tree)
