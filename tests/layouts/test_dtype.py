"""The closed table of dtypes."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import layouts
from layouts import InvalidLayout

CORE = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]


# JAX 0.10 names these, but holds them not: XLA refuses the floats, and numpy sees the
# integers as bool.
NAMED_ONLY = {"float6_e2m3fn", "float6_e3m2fn", "int1", "uint1"}


def test_every_dtype_that_a_jax_array_can_have_is_in_the_table() -> None:
    names = [
        name for name in dir(jnp) if isinstance(getattr(jnp, name), type(jnp.float32))
    ]
    found = {np.dtype(getattr(jnp, name)).name for name in names}
    assert {"bfloat16", "float8_e5m2", "int4", "float32", "bool"} <= found
    assert found - NAMED_ONLY <= set(layouts.DTYPES)


@pytest.mark.parametrize("name", sorted(layouts.DTYPES))
def test_names_and_dtypes_correspond(name: str) -> None:
    dtype = layouts.dtype_of(name)
    expected = np.dtype(name if name in CORE else getattr(ml_dtypes, name))
    assert dtype == expected
    assert dtype.name == name
    assert layouts.name_of(dtype) == name


@pytest.mark.parametrize("name", sorted(layouts.DTYPES))
def test_dtypes_are_stored_as_core_zarr_dtypes_of_the_same_size(name: str) -> None:
    kept = layouts.stored_dtype(name)
    assert kept.name in CORE
    assert kept.itemsize == layouts.dtype_of(name).itemsize
    assert (kept.name == name) == (name in CORE)
    leaf = layouts.Leaf("w", "jax", name, (3,), store=layouts.Packed((3,)))
    assert leaf.itemsize == kept.itemsize
    assert leaf.nbytes == 3 * kept.itemsize
    bits = np.arange(3).astype(kept)
    np.testing.assert_array_equal(bits.view(leaf.numpy_dtype).view(kept), bits)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (">f4", "float32"),
        ("<i8", "int64"),
        (np.longlong, "int64"),
        (np.intc, "int32"),
        ("O", None),
        ("U3", None),
        ("S3", None),
        ("M8[s]", None),
        ("m8", None),
        ("V4", None),
        ([("a", "f4")], None),
        ([("a", ">f4")], None),
    ],
    ids=str,
)
def test_other_byte_orders_have_the_name_and_other_dtypes_none(
    dtype: object, name: str | None
) -> None:
    assert layouts.name_of(np.dtype(dtype)) == name  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_long_doubles_have_no_name_of_their_own() -> None:
    same = np.dtype(np.longdouble) == np.dtype(np.float64)
    expected = "float64" if same else None
    assert layouts.name_of(np.dtype(np.longdouble)) == expected


@pytest.mark.parametrize("name", ["", "object", "<f4", "float128", "f4", None, 4, []])
def test_names_outside_the_table_are_refused(name: object) -> None:
    with pytest.raises(InvalidLayout, match="expected one of the 28 known dtypes"):
        layouts.dtype_of(name)  # pyright: ignore[reportArgumentType]
