"""The table of meanings: what a restored leaf is, and where it goes."""

import math
import re
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import ShapeDtypeStruct as Struct
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec as P,
    SingleDeviceSharding,
)

import ckpt
from tests.ckpt._faithful import memory_url

VALUES = np.arange(64, dtype=np.float32).reshape(8, 8)
ONE = SingleDeviceSharding(jax.devices()[3])


@pytest.fixture(params=["Auto", "Explicit", "Auto, set", "Explicit, set"])
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    kind, _, current = request.param.partition(", ")
    made = make_mesh((4, 2), ("data", "model"), kind)
    if not current:
        yield made
        return
    with jax.set_mesh(made):
        yield made


def make_mesh(
    sizes: tuple[int, ...], names: tuple[str, ...], kind: str = "Auto"
) -> Mesh:
    types = (getattr(AxisType, kind),) * len(sizes)
    devices = jax.devices()[: math.prod(sizes)]
    return jax.make_mesh(sizes, names, axis_types=types, devices=devices)


def put(mesh: Mesh, *spec: Any, memory: str = "device", values: Any = VALUES) -> Any:
    return jax.device_put(values, NamedSharding(mesh, P(*spec), memory_kind=memory))


def save(state: Any, mesh: Any = None, **options: Any) -> str:
    url = memory_url()
    ckpt.save(state, mesh, url, **options)
    return url


def check(array: Any, sharding: Any, values: Any = VALUES) -> None:
    assert isinstance(array, jax.Array)
    assert array.sharding == sharding
    np.testing.assert_array_equal(array, values)


def check_keys(keys: Any, expected: Any) -> None:
    assert jax.random.key_impl(keys) == jax.random.key_impl(expected)
    found, wanted = (np.asarray(jax.random.key_data(k)) for k in (keys, expected))
    np.testing.assert_array_equal(found, wanted)


def test_a_leaf_keeps_its_own_mesh_and_others_are_replicated_on_the_one_given(
    mesh: Mesh,
) -> None:
    other = make_mesh((2,), ("other",))
    url = save({"own": put(other, "other"), "none": jnp.asarray(VALUES)}, mesh)
    tree = ckpt.open(url).tree
    assert tree["own"].sharding.mesh.shape == {"other": 2}
    assert tree["own"].sharding.spec == P("other")
    assert tree["none"].sharding.mesh.shape == {"data": 4, "model": 2}
    assert tree["none"].sharding.spec == P()


def test_leaves_of_several_meshes_come_back_on_one(mesh: Mesh) -> None:
    other = make_mesh((2, 2), ("model", "data"))
    url = save({"a": put(mesh, "data", "model"), "b": put(other, "model", "data")})
    again = ckpt.restore(url, mesh)
    check(again["a"], NamedSharding(mesh, P("data", "model")))
    check(again["b"], NamedSharding(mesh, P("model", "data")))


def test_the_sharding_of_like_wins_over_specs_and_the_saved_spec(mesh: Mesh) -> None:
    url = save({"w": put(mesh, "data", "model")})
    wanted = NamedSharding(mesh, P("model"))
    like = {"w": Struct((8, 8), np.float32, sharding=wanted)}
    again = ckpt.restore(url, mesh, like=like, specs={"**": P(None, "data")})
    check(again["w"], wanted)
    check(ckpt.restore(url, like=like)["w"], wanted)


def test_specs_win_over_the_saved_spec_by_glob(mesh: Mesh) -> None:
    url = save({"a": {"w": put(mesh, "data")}, "b": {"w": put(mesh, "data")}})
    specs = {"a/*": P("model"), "**": P(None, "data")}
    again = ckpt.restore(url, mesh, specs=specs)
    check(again["a"]["w"], NamedSharding(mesh, P("model")))
    check(again["b"]["w"], NamedSharding(mesh, P(None, "data")))
    some = ckpt.restore(url, mesh, specs={"a/*": P("model")})
    check(some["b"]["w"], NamedSharding(mesh, P("data")))


def test_specs_may_be_a_function_of_path_shape_and_saved_spec(mesh: Mesh) -> None:
    keys = put(mesh, "data", values=jax.random.split(jax.random.key(0), 8))
    url = save({"w": put(mesh, "data"), "k": keys})
    calls: list[Any] = []

    def choose(path: str, shape: tuple[int, ...], saved: P) -> P:
        calls.append((path, shape, saved))
        return P("model")

    again = ckpt.restore(url, mesh, specs=choose)
    assert calls == [("w", (8, 8), P("data")), ("k", (8,), P("data"))]
    check(again["w"], NamedSharding(mesh, P("model")))
    assert again["k"].sharding.spec == P("model")
    check_keys(again["k"], keys)


WRONG_SPECS = [
    (P("absent"), ValueError),
    (P(("data", "model", "absent")), ValueError),
    (P("data", "model", None), ValueError),
    (P("data", "data"), ValueError),
    (3, TypeError),
]


@pytest.mark.parametrize(("spec", "error"), WRONG_SPECS)
def test_specs_that_do_not_fit_are_refused(spec: Any, error: Any) -> None:
    url = save({"w": VALUES.copy(), "x": jnp.asarray(VALUES)})
    with pytest.raises(error, match="`x`"):
        ckpt.restore(url, make_mesh((4, 2), ("data", "model")), specs={"x": spec})


def test_specs_without_a_mesh_are_refused() -> None:
    with pytest.raises(ValueError, match="mesh="):
        ckpt.restore(save({"x": jnp.ones(8)}), specs={"x": P("data")})


def test_the_saved_spec_is_laid_on_another_mesh(mesh: Mesh) -> None:
    url = save({"w": put(mesh, "data", "model")})
    smaller = make_mesh((2, 4), ("model", "data"))
    check(ckpt.restore(url, smaller)["w"], NamedSharding(smaller, P("data", "model")))


def test_an_axis_the_mesh_lacks_is_dropped_with_a_warning(mesh: Mesh) -> None:
    url = save({"w": put(mesh, "model", "data"), "v": put(mesh, ("data", "model"))})
    smaller = make_mesh((2,), ("data",))
    with pytest.warns(UserWarning, match="no axis 'model' for dimension 0") as caught:
        again = ckpt.restore(url, smaller)
    assert len(caught) == 1
    check(again["w"], NamedSharding(smaller, P(None, "data")))
    check(again["v"], NamedSharding(smaller, P("data")))
    assert len(ckpt.plan(url, smaller).fallbacks) == 2
    with pytest.raises(ckpt.StructureMismatch, match=r"(?s)`w`.*`v`"):
        ckpt.restore(url, smaller, strict=True)


def test_an_axis_that_does_not_divide_is_dropped_for_that_dimension_alone() -> None:
    mesh = make_mesh((2, 2), ("a", "b"))
    values = np.arange(36, dtype=np.float32).reshape(6, 6)
    url = save({"w": put(mesh, "a", "b", values=values)})
    wider = make_mesh((4, 2), ("a", "b"))
    with pytest.warns(UserWarning, match="'a' of size 4 does not divide dimension 0"):
        again = ckpt.restore(url, wider)
    check(again["w"], NamedSharding(wider, P(None, "b")), values)


def test_a_single_device_in_like_counts_without_a_mesh_only(mesh: Mesh) -> None:
    url = save({"w": jnp.asarray(VALUES)})
    like = {"w": Struct((8, 8), np.float32, sharding=ONE)}
    check(ckpt.restore(url, like=like)["w"], ONE)
    check(ckpt.restore(url, mesh, like=like)["w"], NamedSharding(mesh, P()))


def test_like_on_another_mesh_than_the_one_given_is_refused(mesh: Mesh) -> None:
    url = save({"w": jnp.asarray(VALUES)})
    other = NamedSharding(make_mesh((8,), ("data",)), P("data"))
    like = {"w": Struct((8, 8), np.float32, sharding=other)}
    with pytest.raises(ValueError, match="`w`"):
        ckpt.restore(url, mesh, like=like)


def test_a_spec_of_like_on_a_mesh_without_devices_counts(mesh: Mesh) -> None:
    url = save({"w": put(mesh, "data")})
    abstract = AbstractMesh((4, 2), ("data", "model"))
    wanted = NamedSharding(abstract, P(None, "model"))
    like = {"w": Struct((8, 8), np.float32, sharding=wanted)}
    again = ckpt.restore(url, mesh, like=like)["w"]
    check(again, NamedSharding(mesh, P(None, "model")))


def test_the_tree_of_a_checkpoint_is_a_like(mesh: Mesh) -> None:
    state = {
        "w": put(mesh, "data"),
        "weak": jnp.asarray(0.5),
        "n": np.arange(3, dtype=np.int32),
        "text": "é" * 2000,
        "bytes": b"ab" * 2000,
        "short": "x",
        "step": 3,
        "key": jax.random.key(0),
    }
    url = save(state)
    again = ckpt.restore(url, mesh, like=ckpt.open(url).tree)
    check(again["w"], NamedSharding(mesh, P("data")))
    assert again["weak"].weak_type
    assert [again[k] for k in ("text", "bytes", "short", "step")] == [
        state[k] for k in ("text", "bytes", "short", "step")
    ]


def test_without_any_placement_arrays_are_numpy_and_typed_keys_are_keys(
    mesh: Mesh,
) -> None:
    key = jax.random.key(7, impl="rbg")
    url = save({"w": put(mesh, "data"), "k": key, "r": jax.random.PRNGKey(1)})
    again = ckpt.restore(url)
    assert type(again["w"]) is np.ndarray
    np.testing.assert_array_equal(again["w"], VALUES)
    assert again["k"].devices() == {jax.local_devices()[0]}
    check_keys(again["k"], key)
    assert type(again["r"]) is np.ndarray
    assert again["r"].tolist() == [0, 1]


def test_host_leaves_stay_host_leaves_on_a_mesh(mesh: Mesh) -> None:
    state = {"n": np.arange(3), "s": np.float64(2.5), "i": 1, "f": 0.5, "t": "x"}
    again = ckpt.restore(save(state, mesh), mesh)
    assert [type(x) for x in again.values()] == [
        np.ndarray,
        np.float64,
        int,
        float,
        str,
    ]
    assert again["n"].tolist() == [0, 1, 2]


def test_the_type_of_a_leaf_of_like_wins() -> None:
    url = save({"w": jnp.asarray(VALUES), "n": VALUES})
    mesh = make_mesh((2,), ("x",))
    struct = Struct((8, 8), np.float32)
    again = ckpt.restore(url, mesh, like={"w": VALUES * 0, "n": struct})
    assert type(again["w"]) is np.ndarray
    check(again["n"], NamedSharding(mesh, P()))


SCALARS = [
    (3, np.int32(0), 3),
    (3, np.float32(0), 3.0),
    (True, np.bool_(0), True),
    (0.5, ml_dtypes.bfloat16(0), 0.5),
    (-0.0, np.float32(0), -0.0),
    (1j, np.complex64(0), 1j),
    (7, np.zeros((), ml_dtypes.int4), 7),
    (np.int32(5), 0, 5),
    (np.uint64(1 << 63), 0, 1 << 63),
    (np.bool_(1), False, True),
    (np.zeros((), ml_dtypes.int4), 1, 0),
    (ml_dtypes.bfloat16(0.5), 0.0, 0.5),
    (np.complex64(1j), 0j, 1j),
]


@pytest.mark.parametrize(("saved", "like", "expected"), SCALARS)
def test_python_scalars_and_0d_arrays_convert(
    saved: Any, like: Any, expected: Any
) -> None:
    again = ckpt.restore(save({"x": saved}), like={"x": like})["x"]
    assert type(again) is type(like)
    assert repr(getattr(again, "tolist", lambda: again)()) == repr(expected)


LOSING = [
    (0.1, np.float32(0)),
    (300, np.int8(0)),
    (1 << 70, np.int64(0)),
    (-1, np.uint32(0)),
    ((1 << 24) + 1, np.float32(0)),
    (10**400, np.float64(0)),
    (1e300, np.float32(0)),
    (math.nan, np.int32(0)),
    (-0.0, np.int32(0)),
    (3.0, np.int32(0)),
    (1j, np.float32(0)),
    (2, np.bool_(0)),
    (np.float32(5), 0),
    (np.int32(5), 0.0),
    (np.zeros(1, np.int32), 0),
    ("x", 0),
    (0, "x"),
    (b"x", "x"),
]


@pytest.mark.parametrize(("saved", "like"), LOSING)
def test_a_scalar_is_not_converted_where_something_is_lost(
    saved: Any, like: Any
) -> None:
    with pytest.raises(ckpt.StructureMismatch, match="`x`"):
        ckpt.restore(save({"x": saved}), like={"x": like})


def test_a_dtype_that_jax_would_narrow_is_refused_on_a_mesh_alone(mesh: Mesh) -> None:
    with jax.enable_x64(True):
        url = save({"n": jnp.asarray([(1 << 40) + 1])})
    like = {"n": Struct((1,), "int64", sharding=ONE)}
    placed: list[dict[str, Any]] = [{"mesh": mesh}, {"like": like}]
    for options in placed:
        with pytest.raises(ckpt.Unsupported, match=r"int64.*`n`"):
            ckpt.restore(url, **options)
    assert ckpt.restore(url)["n"].tolist() == [(1 << 40) + 1]
    host = {"n": np.zeros(1, np.int64)}
    assert ckpt.restore(url, mesh, like=host)["n"].tolist() == [(1 << 40) + 1]
    with jax.enable_x64(True):
        assert ckpt.restore(url, mesh)["n"][0] == (1 << 40) + 1


def test_lossless_casts_need_leave_and_others_more_of_it() -> None:
    url = save({"x": np.array([1.5, 2.25], np.float32)})
    wide, narrow = np.zeros(2, np.float64), np.zeros(2, ml_dtypes.bfloat16)
    with pytest.raises(ckpt.StructureMismatch, match="cast=True"):
        ckpt.restore(url, like={"x": wide})
    again = ckpt.restore(url, like={"x": wide}, cast=True)["x"]
    assert (again.dtype, again.tolist()) == (np.float64, [1.5, 2.25])
    with pytest.raises(ckpt.StructureMismatch, match="lossy"):
        ckpt.restore(url, like={"x": narrow}, cast=True)
    again = ckpt.restore(url, like={"x": narrow}, cast="lossy")["x"]
    assert (again.dtype, again.tolist()) == (narrow.dtype, [1.5, 2.25])


def test_lossy_casts_are_silent_and_take_python_floats() -> None:
    url = save({"c": np.array([1 + 2j], np.complex64), "f": 0.1})
    like = {"c": np.zeros(1, np.float32), "f": np.float32(0)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = ckpt.restore(url, like=like, cast="lossy")
    assert (again["c"].tolist(), again["f"]) == ([1.0], np.float32(0.1))


def test_all_that_differs_from_like_is_said_at_once() -> None:
    url = save({"a": np.zeros(2), "b": np.zeros(2), "c": 1})
    like = {"a": np.zeros(3), "b": np.zeros(2, np.int64), "c": "x"}
    with pytest.raises(ckpt.StructureMismatch, match=r"(?s)3 diff.*`a`.*`b`.*`c`"):
        ckpt.restore(url, like=like)
    with pytest.raises(ckpt.StructureMismatch, match=r"(?s)`d`.*`e`.*`a`.*`b`.*`c`"):
        ckpt.restore(url, like={"d": 1, "e": 2})
    many = {f"k{n}": n for n in range(30)}
    with pytest.raises(ckpt.StructureMismatch, match=re.escape("(+10 more)")):
        ckpt.restore(save(many), like={}, missing="keep")


def test_missing_and_extra_leaves_are_kept_or_ignored_on_request() -> None:
    url = save({"a": 1, "old": 2})
    again = ckpt.restore(url, like={"a": 0, "new": 9}, missing="keep", extra="ignore")
    assert again == {"a": 1, "new": 9}
    either: list[dict[str, Any]] = [{"missing": "keep"}, {"extra": "ignore"}]
    for options in either:
        with pytest.raises(ckpt.StructureMismatch):
            ckpt.restore(url, like={"a": 0, "new": 9}, **options)


def test_select_keeps_places_and_leaves_absent_what_was_not_selected() -> None:
    w = np.ones(2)
    url = save({"p": {"w": w, "b": 1}, "o": [w, 3]})
    again = ckpt.restore(url, select="p/**")
    assert again["p"]["w"].tolist() == [1, 1]
    assert again["o"] == [ckpt.ABSENT, ckpt.ABSENT]
    assert len(jax.tree.leaves(again)) == 2
    only = ckpt.restore(url, select=["o/0"])
    assert (only["p"]["w"], only["o"][0].tolist()) == (ckpt.ABSENT, [1, 1])
    like: dict[str, Any] = {"p": {"w": np.zeros(2), "b": 7}, "o": [np.zeros(2), 8]}
    again = ckpt.restore(url, select="p/**", like=like)
    assert again["p"]["b"] == 1
    assert again["o"][0] is like["o"][0]
    with pytest.raises(ValueError, match="nothing"):
        ckpt.restore(url, select="nothing")


def test_renamed_leaves_take_their_new_places() -> None:
    url = save({"old": {"w": np.ones(2)}, "s": 1})
    like = {"new": {"w": np.zeros(2)}, "s": 0}
    again = ckpt.restore(url, like=like, rename={"old/**": "new/**"})
    assert (again["new"]["w"].tolist(), again["s"]) == ([1, 1], 1)
    with pytest.raises(ValueError, match="new/w"):
        ckpt.restore(url, like=like, rename={"**": "new/w"})


def test_memory_kinds_come_back_or_become_device_memory(mesh: Mesh) -> None:
    url = save({"w": put(mesh, "data", memory="pinned_host")})
    again = ckpt.restore(url, mesh)["w"]
    wanted = NamedSharding(mesh, P("data"), memory_kind="pinned_host")
    check(again, wanted)
    plain = NamedSharding(mesh, P("data"), memory_kind="device")
    like = {"w": Struct((8, 8), np.float32, sharding=plain)}
    check(ckpt.restore(url, mesh, like=like)["w"], plain)


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_a_budget_smaller_than_a_shard_gives_the_same(codec: str | None) -> None:
    mesh = make_mesh((2,), ("x",))
    values = np.random.default_rng(0).random((1024, 1024), np.float32)
    state = {"w": put(mesh, "x", values=values), "n": values.T}
    url = save(state, codec=codec, max_host_bytes=1 << 20)
    again = ckpt.restore(url, mesh, max_host_bytes=1 << 20)
    check(again["w"], NamedSharding(mesh, P("x")), values)
    np.testing.assert_array_equal(again["n"], values.T)


def test_remesh_keeps_memory_kinds(mesh: Mesh) -> None:
    smaller = make_mesh((2,), ("data",))
    again = ckpt.remesh({"w": put(mesh, "data", memory="pinned_host")}, smaller)
    wanted = NamedSharding(smaller, P("data"), memory_kind="pinned_host")
    check(again["w"], wanted)


def test_remesh_lays_saved_specs_on_the_mesh_and_leaves_the_rest(mesh: Mesh) -> None:
    keys = put(mesh, "data", values=jax.random.split(jax.random.key(0), 8))
    state = {
        "w": put(mesh, "data", "model"),
        "one": jnp.asarray(0.5),
        "k": keys,
        "n": 3,
    }
    smaller = make_mesh((2,), ("data",))
    with pytest.warns(UserWarning, match="no axis 'model' for dimension 1"):
        again = ckpt.remesh(state, smaller)
    check(again["w"], NamedSharding(smaller, P("data")))
    check(again["one"], NamedSharding(smaller, P()), 0.5)
    assert again["one"].weak_type
    assert again["k"].sharding.device_set == set(smaller.devices.flat)
    check_keys(again["k"], keys)
    assert again["n"] == 3
    with pytest.raises(ValueError, match="`w`"):
        ckpt.remesh(state, smaller, strict=True)


@pytest.mark.parametrize(
    "wrong", [[1], "runs/a", {"data": 2}, AbstractMesh((2,), ("x",))]
)
def test_arrays_go_on_meshes_of_devices_only(wrong: Any) -> None:
    url = save({"w": jnp.ones(2)})
    with pytest.raises(TypeError):
        ckpt.restore(url, wrong)
    with pytest.raises(TypeError):
        ckpt.remesh({"w": jnp.ones(2)}, wrong)
