"""Trees for jobs of any size, whose every value follows from a seed and a path."""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

EVERYWHERE = P()

Form = Literal["array", "key", "numpy", "numpy_scalar", "single", "value"]


@dataclass(frozen=True, slots=True)
class Case:
    """One leaf: a global array of a spec, a typed key, or what hosts hold.

    The dtype of a key is the name of its implementation.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    spec: P = EVERYWHERE
    form: Form = "array"

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype of the values; of a key, of its words."""
        if self.form == "key":
            return np.dtype(np.uint32)
        return np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the values; of a key, of its words."""
        words = {"threefry2x32": (2,), "rbg": (4,)}
        return self.shape + (words[self.dtype] if self.form == "key" else ())


Cases = Mapping[str, Case]

FSDP = P("fsdp")
BOTH = P(("data", "model"))

KINDS: dict[str, Cases] = {
    "tiny": {
        "kernel": Case((512, 1024), spec=P("data", "model")),
        "table": Case((2048, 256)),
        "bias": Case((64,), spec=P("model")),
        "key": Case((16,), "threefry2x32", P("data"), "key"),
        "norm": Case((3,), "float64", form="numpy"),
        "single": Case((3,), form="single"),
        "rate": Case((), "float64", form="value"),
    },
    "data_model": {
        "kernel": Case((2048, 2048), spec=P("data", "model")),
        "embed": Case((4096, 1024), "bfloat16", BOTH),
        "moment": Case((2048, 1024), spec=P("data")),
        "out": Case((1024, 2048), "bfloat16", P(None, "model")),
        "bias": Case((1024,), spec=P("model")),
        "scale": Case((48,)),
        "step": Case((), "int32"),
    },
    "fsdp": {
        "kernel": Case((2048, 2048), spec=FSDP),
        "embed": Case((4096, 1024), "bfloat16", FSDP),
        "thin": Case((64, 65536), spec=FSDP),
        "across": Case((96, 2048), "int8", P(None, "fsdp")),
        "bias": Case((4096,), spec=FSDP),
        "step": Case((), "int32"),
    },
    "replicated": {
        "large": Case((2048, 2048)),
        "middle": Case((2048, 1024), "bfloat16"),
        "odd": Case((1031, 1007)),
        **{f"small{n}": Case((n * 37, 11)) for n in range(1, 9)},
        "step": Case((), "int32"),
    },
    "mixed": {
        "kernel": Case((2048, 2048), spec=P("model", "data")),
        "half": Case((2048, 512), spec=P("model")),
        "table": Case((2048, 1024), "bfloat16"),
        "odd": Case((1000, 333)),
        "mask": Case((256, 64), "bool", P("data")),
        "empty": Case((0, 16), spec=P(None, "data")),
        "low": Case((64, 64), "float8_e4m3fn", P("data", "model")),
        "nibbles": Case((64, 16), "int4", P("model")),
        "key": Case((), "threefry2x32", form="key"),
        "norm": Case((1 << 20,), "float64", form="numpy"),
        "count": Case((), "int64", form="numpy_scalar"),
        "rate": Case((), "float64", form="value"),
        "step": Case((), "int32"),
    },
    "host": {
        "table": Case((1024, 1024), "float64", form="numpy"),
        "rows": Case((3, 1 << 20), "int16", form="numpy"),
        "big": Case((257,), ">f8", form="numpy"),
        "count": Case((), "uint64", form="numpy_scalar"),
        "rate": Case((), "float64", form="value"),
        "single": Case((2048, 1024), form="single"),
        "small": Case((5,), "int32", form="single"),
    },
    "keys": {
        "many": Case((1 << 21,), "threefry2x32", BOTH, "key"),
        "grid": Case((64, 256), "rbg", P("data", "model"), "key"),
        "same": Case((1 << 18,), "rbg", form="key"),
        "one": Case((), "threefry2x32", form="key"),
        "step": Case((), "int32"),
    },
}


def make_mesh(kind: str, *, explicit: bool = False) -> Mesh:
    """Return the mesh of a kind over all devices of the job."""
    types = AxisType.Explicit if explicit else AxisType.Auto
    count = jax.device_count()
    if kind == "fsdp":
        return jax.make_mesh((count,), ("fsdp",), axis_types=(types,))
    model = 2 if count % 4 == 0 else 1
    shape = (count // model, model)
    return jax.make_mesh(shape, ("data", "model"), axis_types=(types,) * 2)


@lru_cache(maxsize=256)
def make_values(case: Case, path: str, seed: int) -> Any:
    """Return the whole of a leaf as numpy, the same in every process."""
    generator = np.random.default_rng([seed, zlib.crc32(path.encode())])
    dtype, shape = case.stored_dtype, case.stored_shape
    if dtype == np.bool_ or dtype.kind in "iu" or dtype.name == "int4":
        bits = generator.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
        if dtype == np.bool_:
            return (bits[..., 0] & 1).astype(bool)
        if dtype.name == "int4":
            return (bits[..., 0].astype(np.int8) // 16).astype(dtype)
        return bits.reshape(-1).view(dtype).reshape(shape)
    return np.asarray(generator.standard_normal(shape)).astype(dtype)


def make_tree(cases: Cases, mesh: Mesh, seed: int) -> dict[str, Any]:
    """Make the tree of a kind on a mesh; collective."""
    return {path: _make_leaf(case, path, mesh, seed) for path, case in cases.items()}


def _make_leaf(case: Case, path: str, mesh: Mesh, seed: int) -> Any:
    values = make_values(case, path, seed)
    match case.form:
        case "numpy":
            return values
        case "numpy_scalar":
            return values[()]
        case "value":
            return values.item()
        case "single":
            return jax.device_put(values, jax.local_devices()[0])
        case "array" | "key":
            sharding = NamedSharding(mesh, case.spec)
            leaf = jax.make_array_from_callback(
                values.shape, sharding, lambda index: values[index]
            )
            if case.form == "array":
                return leaf
            with jax.set_mesh(mesh):
                return jax.random.wrap_key_data(leaf, impl=case.dtype)


def find_wrong(
    tree: Any,
    cases: Cases,
    mesh: Mesh,
    seed: int,
    *,
    specs: Mapping[str, P] | None = None,
) -> list[str]:
    """Say which leaves this process holds otherwise than saved, on this mesh.

    `specs` are those asked for instead of the saved ones.
    """
    if list(tree) != list(cases):
        return [f"expected the leaves {list(cases)}, found {list(tree)}"]
    return [
        f"{path}: {complaint}"
        for path, case in cases.items()
        for complaint in _find_wrong_leaf(
            tree[path],
            case,
            make_values(case, path, seed),
            mesh,
            (specs or {}).get(path, case.spec),
        )
    ]


def _find_wrong_leaf(
    leaf: Any, case: Case, values: Any, mesh: Mesh, spec: P
) -> list[str]:
    sharding = NamedSharding(mesh, spec)
    if case.form == "value":
        return [] if same_bits(leaf, values) and type(leaf) is float else [repr(leaf)]
    if case.form in ("numpy", "numpy_scalar"):
        kind = np.ndarray if case.form == "numpy" else np.generic
        values = values.astype(values.dtype.newbyteorder("="))
        right = isinstance(leaf, kind) and same_bits(leaf, values)
        return [] if right else [f"{type(leaf)} {leaf!r:.80}"]
    if not isinstance(leaf, jax.Array):
        return [f"{type(leaf)}"]
    if case.form == "key":
        if str(jax.random.key_impl(leaf)) != case.dtype:
            return [f"{leaf.dtype}"]
        if leaf.shape != case.shape:
            return [f"{leaf.shape}"]
        if not leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
            return [f"{leaf.sharding}"]
        with jax.set_mesh(mesh):
            leaf = jax.random.key_data(leaf)
    if leaf.weak_type or leaf.dtype != values.dtype or leaf.shape != values.shape:
        return [f"{leaf.aval}, weak {leaf.weak_type}"]
    if not leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return [f"{leaf.sharding}, expected {sharding}"]
    return [
        f"shard {shard.index} on {shard.device}"
        for shard in leaf.addressable_shards
        if not same_bits(shard.data, values[shard.index])
    ]


def same_bits(found: Any, expected: Any) -> bool:
    """Compare two arrays by dtype, shape and bytes."""
    found, expected = np.asarray(found), np.asarray(expected)
    return (found.dtype, found.shape) == (expected.dtype, expected.shape) and (
        found.tobytes() == expected.tobytes()
    )


def count_bytes(cases: Cases) -> int:
    """Return the bytes of all leaves, each once."""
    return sum(_size(case, case.stored_shape) for case in cases.values())


def count_own_bytes(
    cases: Cases,
    mesh: Mesh,
    *,
    specs: Mapping[str, P] | None = None,
    whole: bool = False,
) -> float:
    """Return the bytes that this process must read to hold its part of a tree.

    Of what several processes hold each must read its share; all if `whole`. What
    hosts hold, each must read.
    """
    me = jax.process_index()
    total = 0.0
    for path, case in cases.items():
        if case.form not in ("array", "key", "single"):
            total += _size(case, case.stored_shape)
            continue
        sharding = NamedSharding(mesh, (specs or {}).get(path, case.spec))
        holders: dict[Any, set[int]] = {}
        for device, index in sharding.devices_indices_map(case.shape).items():
            box = tuple((s.start, s.stop) for s in index)
            holders.setdefault(box, set()).add(device.process_index)
        for box, processes in holders.items():
            if me in processes:
                size = _size(case, _box_shape(box, case.stored_shape))
                total += size if whole else size / len(processes)
    return total


def _box_shape(
    box: Sequence[tuple[int | None, int | None]], shape: tuple[int, ...]
) -> tuple[int, ...]:
    spans = [
        (n if stop is None else stop) - (start or 0)
        for (start, stop), n in zip(box, shape, strict=False)
    ]
    return (*spans, *shape[len(spans) :])


def _size(case: Case, shape: tuple[int, ...]) -> int:
    return 0 if case.form == "value" else math.prod(shape) * case.stored_dtype.itemsize


def abstract_tree(cases: Cases, mesh: Mesh, specs: Mapping[str, P]) -> dict[str, Any]:
    """Return `like` for a tree on a mesh, with specs of its own."""
    return {
        path: _abstract(case, mesh, specs.get(path, case.spec))
        for path, case in cases.items()
    }


def _abstract(case: Case, mesh: Mesh, spec: P) -> Any:
    sharding = NamedSharding(mesh, spec)
    match case.form:
        case "value":
            return 0.0
        case "numpy" | "numpy_scalar":
            dtype = case.stored_dtype.newbyteorder("=")
            zeros = np.zeros(case.shape, dtype)
            return zeros if case.form == "numpy" else zeros[()]
        case "key":
            key = jax.eval_shape(lambda: jax.random.key(0, impl=case.dtype))
            return jax.ShapeDtypeStruct(case.shape, key.dtype, sharding=sharding)
        case "array" | "single":
            dtype = jnp.dtype(case.stored_dtype)
            return jax.ShapeDtypeStruct(case.shape, dtype, sharding=sharding)
