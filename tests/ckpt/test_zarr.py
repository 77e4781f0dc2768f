"""zarr-python opens a checkpoint, lists it, and reads every array equal."""

import json
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import zarr
from jax.sharding import NamedSharding, PartitionSpec as P

import ckpt

CORE = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
    *("uint64", "float16", "float32", "float64", "complex64", "complex128"),
]
EXOTIC = [
    *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("float8_e8m0fnu", "float4_e2m1fn", "int2", "int4", "uint2", "uint4"),
]
ROWS = 4096
PIECE_BYTES = 1 << 20
"""From this size on a piece is an object of an array of its own."""


def _values(name: str) -> np.ndarray[Any, Any]:
    """Return an array whose eighths are 1 MiB each, of random values."""
    dtype = np.dtype(name if name in CORE else getattr(ml_dtypes, name))
    columns = 8 * PIECE_BYTES // ROWS // dtype.itemsize
    rng = np.random.default_rng(len(name))
    small = rng.integers(0, 2, (ROWS, columns))
    if name in ("bool", "float4_e2m1fn", "int2", "int4", "uint2", "uint4"):
        return small.astype(dtype)
    size = dtype.itemsize
    data = rng.integers(0, 256, ROWS * columns * size, dtype=np.uint8)
    return data.view(dtype).reshape(ROWS, columns)


def _bits(values: np.ndarray[Any, Any]) -> bytes:
    return np.ascontiguousarray(values).tobytes()


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((4, 2), ("data", "model"))


@pytest.mark.parametrize(
    ("name", "codec"),
    [(name, None) for name in [*CORE, *EXOTIC]]
    + [
        (name, codec)
        for name in ("bool", "int4", "bfloat16", "float32", "complex128")
        for codec in ("zstd", "gzip", "blosc")
    ],
)
def test_every_dtype_is_read_equal(
    memory_run: Path, mesh: jax.sharding.Mesh, name: str, codec: str | None
) -> None:
    values = _values(name)
    # Without x64 a device would narrow: numpy keeps what JAX does not.
    kept: Any = values
    if jax.dtypes.canonicalize_dtype(values.dtype) == values.dtype:
        kept = jax.device_put(values, NamedSharding(mesh, P("data", "model")))
    done = ckpt.save({"layer": [{"w": kept}]}, mesh, memory_run, step=1, codec=codec)
    group = zarr.open_group(done.url, mode="r")
    found = group["layer/0/w"]
    assert isinstance(found, zarr.Array)
    assert found.attrs["path"] == "layer/0/w"
    assert found.attrs["dtype"] == name
    assert found.shape == values.shape
    read = np.asarray(found[...])
    expected = name if name in CORE else f"uint{8 * values.dtype.itemsize}"
    assert read.dtype == np.dtype(expected)
    assert _bits(read) == _bits(values)
    part = np.asarray(found[1000:1003, 5:9])
    assert _bits(part) == _bits(values[1000:1003, 5:9])


# Looking for nodes without the consolidated metadata, zarr warns of other files.
@pytest.mark.filterwarnings("ignore:Object at (manifest.json|parts) is not recog")
def test_a_group_with_every_dtype_is_listed(
    memory_run: Path, mesh: jax.sharding.Mesh
) -> None:
    rng = np.random.default_rng(0)
    state: dict[str, Any] = {
        name: _values(name)[: ROWS // 8] for name in [*CORE, *EXOTIC]
    }
    state["nested"] = {"a/b": rng.random(1 << 18), "": [rng.random(1 << 18)]}
    done = ckpt.save(state, mesh, memory_run, step=1)
    for consolidated in (True, False):
        group = zarr.open_group(done.url, mode="r", use_consolidated=consolidated)
        arrays = {
            array.attrs["path"]: array
            for name, array in group.members(max_depth=None)
            if isinstance(array, zarr.Array) and not name.startswith("~packs")
        }
        assert set(arrays) == {*CORE, *EXOTIC, "nested/a%2Fb", "nested/''/0"}
        for name in [*CORE, *EXOTIC]:
            assert _bits(np.asarray(arrays[name][...])) == _bits(state[name])


def test_packs_are_bytes_in_which_the_part_finds_the_pieces(
    memory_run: Path, mesh: jax.sharding.Mesh
) -> None:
    small = {
        "f": np.arange(100, dtype=np.float32).reshape(10, 10),
        "b": np.array([1.5, -2], ml_dtypes.bfloat16),
        "empty": np.empty((0, 3), np.int32),
        "scalar": np.float64(0.1),
    }
    halves = np.arange(64, dtype=np.int32).reshape(8, 8)
    sharding = NamedSharding(mesh, P("data", "model"))
    state = small | {"sharded": jax.device_put(halves, sharding)}
    done = ckpt.save(state, mesh, memory_run, step=1)
    pack = zarr.open_group(done.url, mode="r")["~packs/0-0"]
    assert isinstance(pack, zarr.Array)
    assert pack.dtype == np.uint8
    data = np.asarray(pack[...])
    text = (Path(done.url) / "parts/0.json").read_text()
    rows = json.loads(text.split("\n")[1])["packs"]
    expected = [
        *((n, 0, _bits(np.asarray(x))) for n, x in enumerate(small.values())),
        *(
            (4, 2 * i + j, _bits(halves[2 * i : 2 * i + 2, 4 * j : 4 * j + 4]))
            for i in range(4)
            for j in range(2)
        ),
    ]
    columns = zip(
        *(rows[c] for c in ("leaf", "piece", "pack", "offset", "length")), strict=True
    )
    found = [
        (leaf, piece, data[offset : offset + length].tobytes())
        for leaf, piece, _, offset, length in columns
    ]
    assert set(rows["pack"]) == {0}
    assert found == [row for row in expected if row[2]]
