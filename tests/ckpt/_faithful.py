"""Random trees of every kind of leaf, and an equality that sees every bit."""

import itertools
import struct
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from pytree import Record
from tests.pytree import _trees

UNUSABLE = {"int1", "uint1", "float6_e2m3fn", "float6_e3m2fn"}
"""Dtypes that jax names and cannot put on a device of this platform."""

DTYPES = sorted(
    {
        np.dtype(value.dtype).name
        for value in vars(jnp).values()
        if type(value).__name__ == "_ScalarMeta"
    }
    - UNUSABLE
)
NARROW = {"int2": 4, "uint2": 4, "int4": 16, "uint4": 16, "float4_e2m1fn": 16}
IMPLS = ["threefry2x32", "rbg", "unsafe_rbg"]
SPECS = [(), ("data",), ("model",), ("data", "model"), ("model", "data")]

_numbers = itertools.count()


def memory_url() -> str:
    """Return the address of a run in memory that nobody has used."""
    return f"memory://faithful-{next(_numbers)}"


def make_mesh() -> jax.sharding.Mesh:
    """Return a 4x2 mesh of the eight devices."""
    return jax.make_mesh((4, 2), ("data", "model"))


def random_bits(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return an array of random bits: with NaN payloads, -0.0 and infinities."""
    rng = np.random.default_rng(seed)
    kind = jnp.dtype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in NARROW:
        bits = rng.integers(0, NARROW[dtype], shape).astype(np.uint8)
        return bits.view(kind) if dtype.startswith("float") else bits.astype(kind)
    size = int(np.prod(shape)) * kind.itemsize
    return np.frombuffer(rng.bytes(size), np.uint8).view(kind).reshape(shape)


def bits_of(array: Any) -> bytes:
    """Return an array's bytes in C order and native byte order."""
    values = np.asarray(array)
    return values.astype(values.dtype.newbyteorder("=")).tobytes()


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
seeds = st.integers(0, 1 << 32)
dtypes = st.sampled_from(DTYPES)


@st.composite
def sharded(draw: st.DrawFn, mesh: jax.sharding.Mesh) -> jax.Array:
    used: set[str] = set()
    axes: list[tuple[str, ...]] = []
    shape: list[int] = []
    for _ in range(draw(st.integers(0, 3))):
        chosen = draw(st.sampled_from(SPECS))
        chosen = () if used & set(chosen) else chosen
        used |= set(chosen)
        parts = int(np.prod([mesh.shape[a] for a in chosen]))
        axes.append(chosen)
        shape.append(parts * draw(st.integers(0, 3)))
    spec = PartitionSpec(*(a[0] if len(a) == 1 else a or None for a in axes))
    values = random_bits(draw(dtypes), tuple(shape), draw(seeds))
    return jax.device_put(values, NamedSharding(mesh, spec))


@st.composite
def keys(draw: st.DrawFn, mesh: jax.sharding.Mesh) -> jax.Array:
    key = jax.random.key(draw(st.integers(0, 99)), impl=draw(st.sampled_from(IMPLS)))
    kind = draw(st.sampled_from(["one", "batch", "sharded"]))
    if kind == "one":
        return key
    batch = jax.random.split(key, 8)
    if kind == "batch":
        return batch
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))


@st.composite
def host_arrays(draw: st.DrawFn) -> Any:
    values = random_bits(draw(dtypes), draw(shapes), draw(seeds))
    match draw(st.sampled_from(["plain", "strided", "fortran", "swapped", "scalar"])):
        case "strided" if values.ndim:
            return np.repeat(values, 2, axis=0)[::-2]
        case "fortran":
            return np.asfortranarray(values)
        case "swapped" if values.dtype.kind in "iufc" and values.dtype.isbuiltin == 1:
            return values.astype(values.dtype.newbyteorder())
        case "scalar" if values.size:
            return values.reshape(-1)[0]
        case _:
            return values


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
plain = st.one_of(
    st.integers(),
    st.integers(-(1 << 200), 1 << 200),
    st.just(10**400),
    st.floats(),
    st.just(struct.unpack(">d", bytes.fromhex("fff4000000000123"))[0]),
    st.booleans(),
    st.complex_numbers(),
    texts,
    texts.map(lambda text: text * 200),
    st.binary(max_size=20),
    st.binary(min_size=1, max_size=9).map(lambda data: data * 1500),
)
weak = st.sampled_from([1, 0.5, -0.0, 2j]).map(jnp.asarray)
dense = st.builds(random_bits, dtypes, shapes, seeds).map(jax.device_put)


def trees(mesh: jax.sharding.Mesh) -> st.SearchStrategy[Any]:
    """Return trees of every container, every leaf, and leaves that occur twice."""
    leaves = st.one_of(dense, sharded(mesh), keys(mesh), host_arrays(), plain, weak)
    found = st.recursive(leaves | st.none(), _trees.containers, max_leaves=10)
    twice = st.one_of(dense, sharded(mesh), host_arrays())
    return found | st.tuples(found, twice).map(lambda p: [p[1], {"t": p[1]}, p[0]])


def explain(tree: Any, leaf: Any) -> Any:
    """Return what is equal for trees with equal containers and equal `leaf(x)`.

    With types that only `like` knows, a record counts as what it stands for.
    """
    kind = type(tree)
    if kind is Record:
        return _fields(tree.type_name.rpartition(".")[2], dict(tree.fields), leaf)
    if kind is _trees.Point:
        return _fields("Point", tree._asdict(), leaf)
    if kind is _trees.Layer:
        return _fields("Layer", dict(vars(tree)), leaf)
    if isinstance(tree, dict):
        items = [(type(k), repr(k), explain(v, leaf)) for k, v in tree.items()]
        return getattr(tree, "default_factory", None) and "list", items, kind.__name__
    if isinstance(tree, (list, tuple)):
        return kind.__name__, [explain(item, leaf) for item in tree]
    return None if tree is None else leaf(tree)


def _fields(name: str, fields: dict[Any, Any], leaf: Any) -> Any:
    if name == "defaultdict":
        fields = {k: v for k, v in fields.items() if k != "default_factory"}
        items = [(type(k), repr(k), explain(v, leaf)) for k, v in fields.items()]
        return "list", items, name
    static = fields.get("activation")
    children = {k: v for k, v in fields.items() if k != "activation"}
    pairs = [(repr(k), explain(v, leaf)) for k, v in sorted(children.items())]
    return name, static, pairs


def leaves_of(tree: Any) -> list[Any]:
    """Return a tree's leaves, also where jax cannot sort its keys."""
    found: list[Any] = []
    explain(tree, found.append)
    return found


def types_of(tree: Any) -> list[type]:
    """Return the types of a tree's containers and leaves, depth first."""
    below: list[Any] = []
    if isinstance(tree, dict):
        below = list(tree.values())
    elif isinstance(tree, (list, tuple)):
        below = list(tree)
    elif type(tree) is _trees.Layer:
        below = [tree.weight, tree.bias]
    return [type(tree), *(kind for item in below for kind in types_of(item))]


def as_plain(value: Any) -> Any:
    """Return what is equal for the same Python value, NaN payloads included."""
    if type(value) is float:
        return float, struct.pack(">d", value)
    if type(value) is complex:
        return complex, struct.pack(">dd", value.real, value.imag)
    return type(value), value


def as_host(value: Any) -> Any:
    """Return how a leaf comes back where no mesh and no `like` is given."""
    if isinstance(value, jax.Array):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            data = jax.random.key_data(value)
            return "key", jax.random.key_impl(value), data.shape, bits_of(data)
        value = np.asarray(value)
    if isinstance(value, (np.ndarray, np.generic)):
        scalar = isinstance(value, np.generic)
        native = value.dtype.newbyteorder("=")
        return scalar, native, value.shape, bits_of(value)
    return as_plain(value)


def as_placed(value: Any) -> Any:
    """Return how a leaf comes back where `like` is the saved tree itself."""
    if not isinstance(value, jax.Array):
        return as_host(value)
    sharding = value.sharding
    spec = sharding.spec if isinstance(sharding, NamedSharding) else None
    weak = getattr(value, "weak_type", False)
    return as_host(value), weak, spec, sharding.device_set
