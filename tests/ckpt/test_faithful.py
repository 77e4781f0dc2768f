"""Any tree comes back bit for bit, or is refused by the path of what cannot."""

import datetime
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from hypothesis import given, strategies as st
from jax.sharding import NamedSharding, PartitionSpec as P

import ckpt
from tests.ckpt import _faithful as faithful
from tests.ckpt._faithful import (
    as_host,
    as_placed,
    bits_of,
    explain,
    leaves_of,
    memory_url,
    types_of,
)

MESH = faithful.make_mesh()


@given(st.data())
def test_any_tree_comes_back_on_the_host(data: st.DataObject) -> None:
    with jax.enable_x64(True):
        tree = data.draw(faithful.trees(MESH))
        codec = data.draw(st.sampled_from([None, "zstd"]))
        url = memory_url()
        ckpt.save(tree, None, url, codec=codec)
        assert explain(ckpt.restore(url), as_host) == explain(tree, as_host)


@given(st.data())
def test_any_tree_comes_back_as_it_was_with_like(data: st.DataObject) -> None:
    with jax.enable_x64(True):
        tree = data.draw(faithful.trees(MESH))
        url = memory_url()
        ckpt.save(tree, None, url)
        again = ckpt.restore(url, like=tree)
        assert types_of(again) == types_of(tree)
        assert explain(again, as_placed) == explain(tree, as_placed)
        assert _ties(again) == _ties(tree)


@given(st.data())
def test_any_tree_comes_back_on_its_mesh_from_a_folder(data: st.DataObject) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        with jax.enable_x64(True):
            tree = data.draw(faithful.trees(MESH))
            ckpt.save(tree, MESH, folder / "run")
            again = ckpt.restore(folder / "run", MESH)
            assert explain(again, as_host) == explain(tree, as_host)
            arrays = [x for x in leaves_of(again) if isinstance(x, jax.Array)]
            assert all(x.sharding.device_set == set(jax.devices()) for x in arrays)
    finally:
        shutil.rmtree(folder)


def _ties(tree: Any) -> list[int]:
    """Return, for each array in the tree, the place of its first occurrence."""
    arrays = [x for x in leaves_of(tree) if hasattr(x, "shape")]
    found = [x for x in arrays if not isinstance(x, np.generic)]
    return [next(n for n, y in enumerate(found) if y is x) for x in found]


@pytest.mark.parametrize("dtype", faithful.DTYPES)
@pytest.mark.parametrize("codec", [None, "zstd"])
def test_every_dtype_comes_back_in_chunks(dtype: str, codec: str | None) -> None:
    with jax.enable_x64(True):
        count = (9 << 20) // jnp.dtype(dtype).itemsize
        values = faithful.random_bits(dtype, (8, count // 8), 1)
        array = jax.device_put(values, NamedSharding(MESH, P("data", "model")))
        url = memory_url()
        ckpt.save({"w": array}, None, url, codec=codec)
        again = ckpt.restore(url, MESH)["w"]
        assert (again.dtype, again.sharding) == (array.dtype, array.sharding)
        assert bits_of(again) == bits_of(values)
    ckpt.prune(url, drop=[0])


def test_every_dtype_of_jax_is_known_or_is_refused_by_jax_itself() -> None:
    # Older versions of ml_dtypes have the six-bit floats and no one-bit integers.
    names = [name for name in faithful.UNUSABLE if hasattr(ml_dtypes, name)]
    assert "float6_e2m3fn" in names
    for name in names:
        values = np.zeros(8, jnp.dtype(name))
        with pytest.raises(ckpt.Unsupported, match="`a/w`"):
            ckpt.save({"a": {"w": values}}, None, memory_url())


def test_a_memory_map_comes_back_as_a_plain_array(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "raw", np.float32, "w+", shape=(3, 2))
    mapped[...] = np.arange(6).reshape(3, 2)
    ckpt.save({"m": mapped}, None, tmp_path / "run")
    again = ckpt.restore(tmp_path / "run")["m"]
    assert type(again) is np.ndarray
    np.testing.assert_array_equal(again, [[0, 1], [2, 3], [4, 5]])


def test_restored_arrays_may_be_donated_and_written() -> None:
    url = memory_url()
    array = jax.device_put(np.zeros((512, 512), np.float32), NamedSharding(MESH, P()))
    ckpt.save({"x": array, "h": np.zeros(3)}, None, url)
    again = ckpt.restore(url, MESH)
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = step(step(again["x"]))
    assert {float(s.data.max()) for s in x.addressable_shards} == {2.0}
    assert {float(s.data.min()) for s in x.addressable_shards} == {2.0}
    again["h"][0] = 1


def test_leaves_tied_in_like_alone_keep_their_own_values() -> None:
    url = memory_url()
    ckpt.save({"a": np.ones(3), "b": np.full(3, 2.0)}, None, url)
    zero = np.zeros(3)
    again = ckpt.restore(url, like={"a": zero, "b": zero})
    assert (again["a"].tolist(), again["b"].tolist()) == ([1.0] * 3, [2.0] * 3)


def test_leaves_tied_in_the_checkpoint_are_one_for_an_abstract_like() -> None:
    url = memory_url()
    w = jnp.arange(3.0)
    ckpt.save({"a": w, "b": w}, None, url)
    again = ckpt.restore(url, MESH, like=jax.eval_shape(lambda: {"a": w, "b": w}))
    assert again["a"] is again["b"]


def _linen() -> TrainState:
    model = nn.Dense(3)
    params = model.init(jax.random.key(0), jnp.ones((1, 2)))["params"]
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return TrainState.create(apply_fn=model.apply, params=params, tx=tx)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(2, 2, rngs=rngs) for _ in range(2)])
        self.norm = nnx.BatchNorm(2, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)


PARAMS = {"w": jnp.ones((2, 3)), "b": jnp.zeros(3, jnp.bfloat16)}
STATES: dict[str, Callable[[], Any]] = {
    "linen": _linen,
    "nnx": lambda: nnx.state(Net(nnx.Rngs(0))),
    "adam": lambda: optax.adam(1e-3).init(PARAMS),
    "schedule": lambda: optax.sgd(optax.linear_schedule(1, 0, 9), 0.9).init(PARAMS),
    "masked": lambda: optax.masked(optax.adam(1), {"w": True, "b": False}).init(PARAMS),
    "steps": lambda: optax.MultiSteps(optax.adam(1e-3), 2).init(PARAMS),
    "inject": lambda: optax.inject_hyperparams(optax.adam)(1e-3).init(PARAMS),
}


@pytest.mark.parametrize("name", STATES)
def test_states_of_flax_and_optax_come_back(name: str) -> None:
    state = STATES[name]()
    url = memory_url()
    ckpt.save(state, None, url)
    for like in (state, jax.eval_shape(lambda: state)):
        again = ckpt.restore(url, jax.make_mesh((1,), ("data",)), like=like)
        assert jax.tree.structure(again) == jax.tree.structure(state)
        pairs = zip(jax.tree.leaves(again), jax.tree.leaves(state), strict=True)
        assert all(_same(a, b) for a, b in pairs)
    host = jax.tree.leaves(ckpt.restore(url))
    saved = sorted(bits_of(x) for x in jax.tree.leaves(state) if not _is_key(x))
    assert sorted(bits_of(x) for x in host if not _is_key(x)) == saved


def _same(a: Any, b: Any) -> bool:
    return as_host(jnp.asarray(a)) == as_host(jnp.asarray(b))


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(
        value.dtype, jax.dtypes.prng_key
    )


def _unreduced() -> Any:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(np.zeros(8, np.float32), NamedSharding(mesh, P("x")))
        unreduced = P(unreduced=frozenset({"x"}))
        return jax.jit(lambda a: jnp.einsum("i,i->", a, a, out_sharding=unreduced))(x)


def _deleted() -> Any:
    array = jnp.ones(2)
    array.delete()
    return array


REFUSED: dict[str, Callable[[], Any]] = {
    "unreduced": _unreduced,
    "deleted": _deleted,
    "object": lambda: np.array([{}], object),
    "structured": lambda: np.zeros(2, [("a", "i4")]),
    "longdouble": lambda: np.zeros(2, np.longdouble),
    "clongdouble": lambda: np.zeros(2, np.clongdouble),
    "datetime": lambda: np.zeros(2, "datetime64[s]"),
    "timedelta": lambda: np.timedelta64(1, "s"),
    "text": lambda: np.array(["a"]),
    "text scalar": lambda: np.str_("a"),
    "bytes": lambda: np.array([b"a"]),
    "void": lambda: np.zeros(2, "V3"),
    "float0": lambda: np.zeros(2, jax.dtypes.float0),
    "masked": lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
    "matrix": lambda: np.zeros((2, 2)).view(np.recarray),
    "surrogate": lambda: "a\ud800",
    "long surrogate": lambda: "a\ud800" * 2000,
    "set": lambda: {1, 2},
    "object()": object,
    "date": lambda: datetime.date(2020, 1, 1),
    "function": lambda: len,
    "bytearray": lambda: bytearray(b"a"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("save", [ckpt.save, ckpt.save_async])
def test_what_cannot_come_back_is_refused_by_its_path(name: str, save: Any) -> None:
    url = memory_url()
    with pytest.raises(ckpt.Unsupported, match="`a/0`"):
        save({"a": [REFUSED[name]()]}, None, url)
    assert ckpt.steps(url) == []


def test_a_tracer_is_refused_by_its_path() -> None:
    def traced(x: jax.Array) -> jax.Array:
        ckpt.save({"a": [x]}, None, memory_url())
        return x

    with pytest.raises(ckpt.Unsupported, match=r"tracer.*`a/0`"):
        jax.jit(traced)(jnp.ones(2))


@pytest.mark.parametrize("key", ["\ud800", (1, 2), b"a", 1j, np.int32(3)])
def test_keys_that_no_path_can_hold_are_refused(key: Any) -> None:
    with pytest.raises(ckpt.Unsupported, match="`a`"):
        ckpt.save({"a": {key: 1}}, None, memory_url())
