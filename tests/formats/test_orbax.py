"""Orbax checkpoints of several ages: each tensor equals what Orbax itself tells."""

import hashlib
import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from ckpt import Damaged, NotFound
from ckpt._store import open_store
from ckpt.formats._entry import Catalogue, Lazy, Tensor
from ckpt.formats._orbax import find_orbax
from layouts import Box, MeshLayout, Placement, whole
from tests._harness.servers import BUCKET, Cloud, Kind

from ._gather import PEERS, expected_tensors, look_in

SETS = [
    "ox_0_2_3_pytree",
    "ox_0_4_8_pytree",
    "ox_v0_manager",
    "ox_v0_standard",
    "ox_v0_zarr_dirs",
    "ox_v1",
]


def read(path: Path | str, *, step: int | None = None) -> Catalogue:
    found = find_orbax(look_in(path, step=step))
    assert found is not None
    return found


def value_of(leaf: Any) -> np.ndarray[Any, Any]:
    if not isinstance(leaf, Tensor):
        return np.asarray(leaf)
    if isinstance(leaf.data, np.ndarray):
        return leaf.data
    assert isinstance(leaf.data, Lazy)
    return leaf.data.read(whole(leaf.shape))


def flatten(tree: Any, *above: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict | list | tuple) and tree:
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in pairs:
            yield from flatten(value, *above, str(key))
    elif isinstance(tree, Tensor | int | float | str):
        yield "/".join(above), tree


@pytest.mark.parametrize("name", SETS)
def test_every_tensor_of_a_sample_is_read_bit_for_bit(name: str) -> None:
    found = read(PEERS / name)
    tree = found.tree["state"] if name == "ox_v0_manager" else found.tree
    tensors = {
        path: {
            "shape": list(values.shape),
            "dtype": values.dtype.name,
            "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
        }
        for path, leaf in flatten(tree)
        for values in [value_of(leaf)]
    }
    assert tensors == expected_tensors(name)
    assert found.notes == ()


def test_a_manager_opens_at_its_newest_step_with_json_beside_the_tree() -> None:
    found = read(PEERS / "ox_v0_manager")
    assert (found.step, found.tree["extra"]) == (2, {"epoch": 2})
    assert {name.partition("/")[0] for name in found.objects} == {"2"}


def test_a_manager_opens_at_the_step_that_is_wanted() -> None:
    found = read(PEERS / "ox_v0_manager", step=1)
    assert (found.step, found.tree["extra"]) == (1, {"epoch": 1})


def test_a_step_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound, match="expected step 7, found 1, 2 - in "):
        read(PEERS / "ox_v0_manager", step=7)


def test_a_step_and_an_item_open_by_their_own_folder() -> None:
    step = read(PEERS / "ox_v0_manager" / "2")
    item = read(PEERS / "ox_v0_manager" / "2" / "state")
    assert (step.step, set(step.tree)) == (2, {"state", "extra"})
    assert dict(flatten(item.tree)).keys() == dict(flatten(step.tree["state"])).keys()


def test_empty_nodes_and_numbers_come_back_as_they_were() -> None:
    tree = read(PEERS / "ox_v0_standard").tree
    assert (tree["lr"], tree["n"], tree["lst"][1][1]) == (0.125, 7, None)
    assert type(tree["n"]) is int


def test_the_saved_layout_is_told() -> None:
    kernel = read(PEERS / "ox_v1").tree["params"]["dense"]["kernel"]
    mesh = MeshLayout((("data", 4), ("model", 2)), ("Auto", "Auto"))
    assert kernel.placement == Placement(mesh, (("data",), ("model",)))
    assert kernel.data.chunk == (4, 4)


def test_a_folder_of_something_else_is_no_orbax_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "model.safetensors").write_bytes(b"")
    (tmp_path / "metadata").write_bytes(b"{}")
    assert find_orbax(look_in(tmp_path)) is None


@pytest.fixture(scope="module")
def tree() -> dict[str, Any]:
    """Every kind of leaf that Orbax stores, some of them in shards."""
    random = np.random.default_rng(3)
    mesh = jax.make_mesh((4, 2), ("data", "model"))

    def shard(values: Any, *spec: Any) -> jax.Array:
        return jax.device_put(values, NamedSharding(mesh, P(*spec)))

    normal = random.standard_normal
    return {
        "w": shard(normal((16, 8), np.float32), "data", "model"),
        "odd": shard(normal((8, 6, 5), np.float32), None, "model"),
        "bfloat16": shard(normal((8, 6)).astype(ml_dtypes.bfloat16), ("data", "model")),
        "int4": jnp.asarray(random.integers(-8, 8, 9), jnp.int4),
        "float8_e4m3fn": jnp.asarray(normal(7), jnp.float8_e4m3fn),
        "float8_e5m2": jnp.asarray(normal(7), jnp.float8_e5m2),
        "complex64": jnp.asarray(normal(4) + 1j * normal(4), jnp.complex64),
        "bool": jnp.asarray([True, False, True]),
        "0-d": jnp.float32(2.5),
        "zeros": jnp.zeros((4, 3)),
        "nan": jnp.asarray([np.nan, -0.0, np.inf]),
        "numpy": {"int64": np.arange(5) * 2**40, "uint8": np.arange(3, dtype="u1")},
        "scalars": {"int": 2**62, "float": 0.1, "bool": True},
        "keys": [jax.random.key(3), jax.random.split(jax.random.key(5, impl="rbg"), 3)],
        "nodes": [(jnp.ones(2), None, {}, [], ())],
        "with space": {"1": jnp.arange(3)},
    }


def save(path: Path, tree: Any, **options: Any) -> Path:
    import orbax.checkpoint as ocp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)).save(path, tree)
    return path


@pytest.fixture(
    scope="module",
    params=[
        {},
        {"use_zarr3": True},
        {"use_ocdbt": False},
        {"use_ocdbt": False, "use_zarr3": True},
    ],
    ids=["zarr2", "zarr3", "zarr2 files", "zarr3 files"],
)
def saved(
    request: pytest.FixtureRequest,
    tree: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, Any]]:
    kept = dict(tree)
    if request.param.get("use_ocdbt") is False:
        del kept["with space"]
    path = tmp_path_factory.mktemp("orbax") / "saved"
    return save(path, kept, **request.param), kept


def test_every_kind_of_leaf_is_read_in_each_layout(
    saved: tuple[Path, dict[str, Any]],
) -> None:
    path, tree = saved
    found = read(path).tree
    assert found["nodes"] == [[found["nodes"][0][0], None, {}, [], ()]]
    assert found["scalars"] == tree["scalars"]
    assert [key.impl for key in found["keys"]] == ["threefry2x32", "rbg"]
    expected = {**tree, "keys": list(map(jax.random.key_data, tree["keys"]))}
    for at, leaf in jax.tree_util.tree_leaves_with_path(expected):
        actual = found
        for key in at:
            actual = actual[key.key if hasattr(key, "key") else key.idx]
        values = value_of(actual)
        assert (values.dtype, values.shape) == (np.asarray(leaf).dtype, np.shape(leaf))
        assert values.tobytes() == np.asarray(leaf).tobytes(), at


def test_any_box_is_read_from_the_chunks_that_hold_it(
    saved: tuple[Path, dict[str, Any]],
) -> None:
    path, tree = saved
    found = read(path).tree
    for name, box in [
        ("w", Box((3, 1), (6, 5))),
        ("w", Box((4, 4), (4, 4))),
        ("odd", Box((1, 2, 3), (7, 3, 2))),
        ("odd", Box((0, 0, 0), (0, 6, 5))),
        ("bfloat16", Box((7, 0), (1, 6))),
    ]:
        expected = np.asarray(tree[name])[box.slices]
        actual = found[name].data.read(box)
        assert actual.shape == expected.shape
        assert actual.tobytes() == expected.tobytes()


def test_inner_chunks_of_shards_are_read_alone(tmp_path: Path) -> None:
    import orbax.checkpoint as ocp

    values = np.arange(32 * 16, dtype=np.float32).reshape(32, 16)
    array = jax.device_put(values, jax.devices()[0])
    handler = ocp.PyTreeCheckpointHandler(use_zarr3=True)
    arguments = ocp.args.PyTreeSave(
        {"w": array}, save_args={"w": ocp.SaveArgs(chunk_byte_size=256)}
    )
    ocp.Checkpointer(handler).save(tmp_path / "saved", arguments)
    found = read(tmp_path / "saved").tree["w"]
    assert np.prod(found.data.chunk) * 4 <= 256
    box = Box((5, 3), (20, 11))
    np.testing.assert_array_equal(found.data.read(box), values[box.slices])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps with a prefix and zeros in front, six items in each, and metrics."""
    import orbax.checkpoint as ocp

    path = tmp_path_factory.mktemp("orbax") / "run"
    options = ocp.CheckpointManagerOptions(
        step_prefix="ck", step_format_fixed_length=5, best_fn=lambda m: m["loss"]
    )
    with ocp.CheckpointManager(path, options=options) as manager:
        for step in (0, 10):
            items = ocp.args.Composite(
                state=ocp.args.StandardSave({"a": jnp.arange(4) + step}),
                extra=ocp.args.JsonSave({"x": float("nan"), "y": [step, None]}),
                key=ocp.args.JaxRandomKeySave(jax.random.key(9)),
                array=ocp.args.ArraySave(jnp.arange(6)),
                numpy=ocp.args.NumpyRandomKeySave(np.random.RandomState(3).get_state()),
            )
            manager.save(step, args=items, metrics={"loss": float(step)})
        manager.wait_until_finished()
    return path


def test_all_kinds_of_items_are_read_by_name(run: Path) -> None:
    found = read(run)
    tree = found.tree
    assert (found.step, found.meta["metrics"]) == (10, {"loss": 10.0})
    assert set(tree) == {"state", "extra", "key", "array", "numpy"}
    np.testing.assert_array_equal(value_of(tree["state"]["a"]), np.arange(4) + 10)
    assert (np.isnan(tree["extra"]["x"]), tree["extra"]["y"]) == (True, [10, None])
    assert (tree["key"].kind, tree["key"].impl) == ("key", "threefry2x32")
    np.testing.assert_array_equal(value_of(tree["array"]), np.arange(6))
    state: Any = np.random.RandomState(3).get_state()
    assert tree["numpy"][0] == state[0]
    np.testing.assert_array_equal(value_of(tree["numpy"][1]), state[1])


def test_a_step_that_was_never_finished_is_passed_over(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    torn = tmp_path / "run" / "ck_00010.orbax-checkpoint-tmp"
    (tmp_path / "run" / "ck_00010").rename(torn)
    found = read(tmp_path / "run")
    assert (found.step, len(found.notes)) == (0, 1)
    assert found.notes[0].endswith("was never finished.")
    for path, step in [(tmp_path / "run", 10), (torn, None)]:
        with pytest.raises(Damaged, match="never finished"):
            read(path, step=step)


def test_a_copy_made_while_a_step_was_written_is_passed_over(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    newest = tmp_path / "run" / "ck_00010"
    (newest / "commit_success.txt").unlink()
    about = json.loads((newest / "_CHECKPOINT_METADATA").read_text())
    about["commit_timestamp_nsecs"] = None
    (newest / "_CHECKPOINT_METADATA").write_text(json.dumps(about))
    assert read(tmp_path / "run").step == 0
    with pytest.raises(Damaged, match="never finished"):
        read(newest)


def test_texts_and_typed_keys_of_the_second_interface(tmp_path: Path) -> None:
    from orbax.checkpoint import v1

    state = {"s": "hello", "key": jax.random.key(1), "st": {"x": jnp.arange(3)}}
    v1.save(str(tmp_path / "saved"), state)
    found = read(tmp_path / "saved").tree
    assert (found["s"], found["key"].impl) == ("hello", "threefry2x32")
    np.testing.assert_array_equal(value_of(found["st"]["x"]), np.arange(3))


def test_databases_that_were_never_merged_are_read_together(tmp_path: Path) -> None:
    shutil.copytree(PEERS / "ox_v0_standard", tmp_path / "saved")
    shutil.rmtree(tmp_path / "saved" / "d")
    (tmp_path / "saved" / "manifest.ocdbt").unlink()
    found = read(tmp_path / "saved").tree["ids"]
    expected = value_of(read(PEERS / "ox_v0_standard").tree["ids"])
    np.testing.assert_array_equal(value_of(found), expected)


def test_a_checkpoint_in_memory_is_read_like_one_on_disk() -> None:
    store = open_store("memory://orbax-v1")
    for path in (PEERS / "ox_v1").rglob("*"):
        if path.is_file():
            store.create(str(path.relative_to(PEERS / "ox_v1")), path.read_bytes())
    found = read("memory://orbax-v1").tree["ids"]
    expected = value_of(read(PEERS / "ox_v1").tree["ids"])
    np.testing.assert_array_equal(value_of(found), expected)


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_a_run_is_read_from_an_object_store(
    kind: Kind, clouds: dict[Kind, Cloud]
) -> None:
    cloud = clouds[kind]
    run = PEERS / "ox_v0_manager"
    cloud.make_bucket()
    for path in filter(Path.is_file, run.rglob("*")):
        name = str(path.relative_to(run))
        cloud.put(f"orbax/{name}", path.read_bytes())
        # In object stores a step has its own name before it is finished.
        if name.startswith("2/state/"):
            cloud.put(f"orbax/3/{name[2:]}", path.read_bytes())
            cloud.put(f"orbax/4/{name[2:]}", path.read_bytes())
    cloud.put("orbax/4/_CHECKPOINT_METADATA", b'{"commit_timestamp_nsecs": null}')
    found = read(f"{kind}://{BUCKET}/orbax")
    assert (found.step, len(found.notes)) == (2, 2)
    emb = value_of(found.tree["state"]["params"]["emb"])
    expected = value_of(read(run).tree["state"]["params"]["emb"])
    assert emb.tobytes() == expected.tobytes()
    for step in (3, 4):
        with pytest.raises(Damaged, match="never finished"):
            read(f"{kind}://{BUCKET}/orbax", step=step)
