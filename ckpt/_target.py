"""What each restored leaf becomes, and where it goes: the table of meanings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

import layouts
import pytree
from layouts import Leaf, Spec

from ._cast import fits, is_lossless
from ._checkpoint import (
    decode_leaf_value,
    describe,
    key_dtype,
    key_shape,
    partition_spec,
)
from ._errors import StructureMismatch, Unsupported

SpecRule = Callable[[str, tuple[int, ...], PartitionSpec], Any]
Specs = SpecRule | Mapping[str, Any]

_SHOWN = 20
_SCALARS = {"int": int, "float": float, "bool": bool, "complex": complex}


@dataclass(frozen=True, slots=True)
class Target:
    """What one leaf becomes.

    `kind` is "jax", "key", "numpy", "numpy_scalar" or a Python type's name; `dtype`
    is that of the values (of the key data for keys); `laid` the mesh and spec, for
    plans on meshes without devices; `sharding` where a jax array goes, None: nowhere.
    """

    number: int
    path: str = field(compare=False)
    kind: str
    dtype: np.dtype[Any] | None
    laid: tuple[layouts.MeshLayout, Spec] | None = None
    sharding: Any = None
    weak: bool = False
    notes: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller of restore or plan asked for, beside the path."""

    mesh: Any = None
    like: Any = None
    specs: Specs | None = None
    cast: bool | str = False
    strict: bool = False

    @property
    def layout(self) -> layouts.MeshLayout:
        """The layout of the mesh."""
        return _layout(self.mesh)


def _layout(mesh: Any) -> layouts.MeshLayout:
    """Return a mesh's layout, the same object for the same jax mesh."""
    return _layout_once(mesh) if _has_devices(mesh) else layouts.mesh_layout(mesh)


_layout_once = lru_cache(maxsize=64)(layouts.mesh_layout)


def choose_target(
    number: int, path: str, leaf: Leaf, wishes: Wishes, like: Any
) -> Target:
    """Return what a leaf becomes; StructureMismatch or Unsupported if it cannot.

    `like` is the caller's leaf at this path, or None.
    """
    if leaf.kind == "key":
        key_shape(leaf)
    kind, dtype, weak = _kind(path, leaf, wishes, like)
    found = Target(number, path, kind, dtype, weak=weak)
    if kind not in ("jax", "key"):
        return found
    found = _place(found, leaf, wishes, like)
    if found.sharding is None and found.laid is None:
        # Nowhere to go: numpy, except keys, which numpy cannot hold.
        return replace(found, kind="key" if kind == "key" else "numpy")
    _check_narrowing(found, leaf)
    return found


def choose_local_target(number: int, path: str, leaf: Leaf, wishes: Wishes) -> Target:
    """Return what a leaf becomes that belongs to one process: on its own device.

    Without a mesh it is numpy, as all are.
    """
    found = choose_target(number, path, leaf, Wishes(), None)
    if leaf.kind != "jax" or leaf.store is None or wishes.mesh is None:
        return found
    found = replace(found, kind="jax", sharding=default_sharding(), weak=leaf.weak)
    _check_narrowing(found, leaf)
    return found


def _kind(
    path: str, leaf: Leaf, wishes: Wishes, like: Any
) -> tuple[str, np.dtype[Any] | None, bool]:
    saved = leaf.numpy_dtype if leaf.store is not None else None
    if like is None:
        if saved is not None and leaf.kind == "jax" and wishes.cast == "lossy":
            saved = np.dtype(jax.dtypes.canonicalize_dtype(saved))
        return leaf.kind, saved, leaf.weak
    wanted = like_kind(like)
    if leaf.kind in ("str", "bytes") or wanted in ("str", "bytes"):
        if wanted != leaf.kind and not _is_struct_of(leaf, like):
            raise mismatch(path, _type_name(like), describe(leaf))
        return leaf.kind, saved, False
    if (wanted == "key") != (leaf.kind == "key"):
        raise mismatch(path, _describe_like(like), describe(leaf))
    if wanted == "key":
        if tuple(like.shape) != key_shape(leaf) or like.dtype != key_dtype(leaf):
            raise mismatch(path, _describe_like(like), describe(leaf))
        return "key", saved, False
    if wanted in _SCALARS:
        return _scalar_kind(path, leaf, wanted, wishes, like)
    shape = () if leaf.store is None else leaf.shape
    if tuple(like.shape) != shape:
        raise mismatch(path, _describe_like(like), describe(leaf))
    dtype = np.dtype(like.dtype).newbyteorder("=")
    _check_cast(path, leaf, dtype, wishes)
    weak = bool(getattr(like, "weak_type", False))
    return wanted, dtype, weak if saved is None or dtype == saved else False


def _is_struct_of(leaf: Leaf, like: Any) -> bool:
    """Tell whether this is what `Checkpoint.tree` has for long text or bytes."""
    return (
        isinstance(like, jax.ShapeDtypeStruct)
        and leaf.store is not None
        and (like.shape, like.dtype) == (leaf.shape, leaf.numpy_dtype)
    )


def _scalar_kind(
    path: str, leaf: Leaf, wanted: str, wishes: Wishes, like: Any
) -> tuple[str, np.dtype[Any] | None, bool]:
    """A Python scalar from a Python scalar or a 0-d array of the same kind."""
    if leaf.store is None:
        lossless = leaf.kind == wanted
    else:
        family = {"b": "bool", "i": "int", "u": "int", "c": "complex"}
        # By name: numpy takes int4 for neither an integer nor a float.
        found = family.get((leaf.dtype or "").replace("bfloat", "float")[0], "float")
        lossless = leaf.shape == () and found == wanted
    if not lossless:
        raise mismatch(path, _type_name(like), describe(leaf))
    return wanted, None, False


def like_kind(like: Any) -> str:
    """Return which kind of leaf the caller's leaf is."""
    if isinstance(like, (jax.Array, jax.ShapeDtypeStruct)) or (
        hasattr(like, "shape")
        and hasattr(like, "dtype")
        and not isinstance(like, (np.ndarray, np.generic))
    ):
        is_key = jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key)
        return "key" if is_key else "jax"
    if isinstance(like, np.generic):
        return "numpy_scalar"
    if isinstance(like, np.ndarray):
        return "numpy"
    for name in ("bool", "int", "float", "complex", "str", "bytes"):
        if type(like).__name__ == name:
            return name
    raise TypeError(
        f"expected arrays, ShapeDtypeStructs or Python scalars in like=, "
        f"found {_type_name(like)}"
    )


def mismatch(path: str, expected: str, found: str) -> StructureMismatch:
    """Return the error for a leaf that is not what `like` says."""
    return StructureMismatch(f"expected {expected}, found {found} - at `{path}`")


def _type_name(value: Any) -> str:
    return type(value).__qualname__


def _describe_like(like: Any) -> str:
    if not hasattr(like, "shape"):
        return _type_name(like)
    return f"{like.dtype}[{','.join(map(str, like.shape))}]"


def _check_cast(path: str, leaf: Leaf, dtype: np.dtype[Any], wishes: Wishes) -> None:
    if leaf.store is None:
        # A Python scalar has no width: it fits where its value does.
        value = decode_leaf_value(leaf)
        # An int beyond 64 bits is no number that numpy could convert.
        lossy = wishes.cast == "lossy" and not (
            isinstance(value, int) and value.bit_length() > 63
        )
        if not fits(value, dtype) and not lossy:
            raise mismatch(path, f"{dtype}[]", describe(leaf))
        return
    if dtype == leaf.numpy_dtype:
        return
    if layouts.name_of(dtype) is None:
        raise mismatch(
            path, f"a dtype that checkpoints hold, not {dtype}", describe(leaf)
        )
    lossless = is_lossless(leaf.numpy_dtype, dtype)
    if wishes.cast == "lossy" or (wishes.cast and lossless):
        return
    hint = "pass cast=True to convert" if lossless else 'cast="lossy" would lose values'
    shape = ",".join(map(str, leaf.shape))
    raise StructureMismatch(
        f"expected {dtype}[{shape}], found {describe(leaf)} - at `{path}`: {hint}"
    )


def _place(target: Target, leaf: Leaf, wishes: Wishes, like: Any) -> Target:
    """Find where a jax leaf goes: like's sharding, else specs, else the saved spec."""
    sharding = getattr(like, "sharding", None)
    rank = len(leaf.shape)
    if isinstance(sharding, NamedSharding) and _has_devices(sharding.mesh):
        if wishes.mesh is not None and sharding.mesh != wishes.mesh:
            raise ValueError(
                f"expected like= on the mesh given, found `{target.path}` on "
                f"{layouts.mesh_layout(sharding.mesh)}: leave out one of them, or "
                "pass like=jax.eval_shape(lambda tree: tree, like)"
            )
        spec = layouts.spec_of(sharding.spec, rank)
        laid = layouts.mesh_layout(sharding.mesh), spec
        return replace(target, sharding=sharding, laid=laid)
    if wishes.mesh is None:
        if sharding is not None and not isinstance(sharding, NamedSharding):
            return replace(target, sharding=sharding)
        if wishes.specs is not None:
            raise ValueError("expected mesh= with specs=, found none")
        return target
    return _lay(target, leaf, wishes, like=sharding)


def _has_devices(mesh: Any) -> bool:
    return isinstance(mesh, jax.sharding.Mesh)


def _lay(target: Target, leaf: Leaf, wishes: Wishes, *, like: Any) -> Target:
    rank, mesh = len(leaf.shape), wishes.layout
    placement = leaf.placement
    saved = placement.spec if placement and placement.spec is not None else ((),) * rank
    if isinstance(like, NamedSharding):
        # On a mesh without devices, as `Checkpoint.tree` has: only its spec counts.
        saved = layouts.spec_of(like.spec, rank)
    chosen = _chosen_spec(target.path, leaf, saved, wishes.specs)
    if chosen is None:
        laid = layouts.relay_spec(saved, leaf.shape, mesh)
        spec, notes = laid.spec, laid.dropped
    else:
        spec, notes = _read_spec(target.path, chosen, rank), ()
        fixed = layouts.relay_spec(spec, leaf.shape, mesh)
        if fixed.dropped:
            raise ValueError(
                f"expected specs= to fit {mesh}, found {layouts.format_spec(spec)} for "
                f"`{target.path}` of shape {leaf.shape}: {'; '.join(fixed.dropped)}"
            )
    if notes and wishes.strict:
        raise StructureMismatch(
            f"expected {layouts.format_spec(saved)} to fit {mesh}, found: "
            f"{'; '.join(notes)} - at `{target.path}`: pass specs=, or strict=False"
        )
    sharding = None
    if _has_devices(wishes.mesh):
        memory = placement.memory if placement else None
        sharding, more = make_sharding(wishes.mesh, spec, memory)
        notes += more
    return replace(target, laid=(mesh, spec), sharding=sharding, notes=notes)


def _chosen_spec(path: str, leaf: Leaf, saved: Spec, specs: Specs | None) -> Any:
    if specs is None:
        return None
    if isinstance(specs, Mapping):
        globs = cast("Mapping[str, Any]", specs)
        return next((s for glob, s in globs.items() if pytree.match(glob, path)), None)
    shape = key_shape(leaf) if leaf.kind == "key" else leaf.shape
    return specs(path, shape, partition_spec(saved[: len(shape)]))


def warn_changed(found: Sequence[str], *, stacklevel: int) -> None:
    """Say which specs did not fit a mesh, once for all leaves."""
    if found:
        shown = "\n  ".join(found[:_SHOWN])
        more = f"\n  (+{len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
        warnings.warn(
            "some layouts do not fit the mesh and were changed "
            f"(strict=True refuses):\n  {shown}{more}",
            UserWarning,
            stacklevel=stacklevel + 1,
        )


def _read_spec(path: str, chosen: Any, rank: int) -> Spec:
    """Return the caller's spec for a leaf; ValueError or TypeError if it is none."""
    if not isinstance(chosen, (PartitionSpec, tuple)):
        raise TypeError(
            f"expected PartitionSpecs in specs=, found {_type_name(chosen)} "
            f"for `{path}`"
        )
    return _read_entries(path, cast("Any", chosen), rank)


@lru_cache(maxsize=4096)
def _read_entries(path: str, chosen: Any, rank: int) -> Spec:
    given: tuple[Any, ...] = tuple(chosen)
    spec = layouts.spec_of(given, rank)
    axes = [axis for entry in spec for axis in entry]
    if len(given) > rank or len(set(axes)) < len(axes):
        raise ValueError(
            f"expected specs= to use each axis once in {rank} dimensions, found "
            f"{chosen} for `{path}`"
        )
    return spec


def require_devices(mesh: Any) -> None:
    """Refuse what arrays cannot be laid on: anything but a Mesh or None."""
    if mesh is not None and not _has_devices(mesh):
        raise TypeError(
            f"expected a jax.sharding.Mesh of devices, found {mesh!r:.80}: "
            "ckpt.plan takes meshes without devices"
        )


def make_sharding(
    mesh: Any, spec: Spec, memory: str | None
) -> tuple[Any, tuple[str, ...]]:
    """Return a sharding in that memory, or in device memory and a note that says so."""
    plain = NamedSharding(mesh, partition_spec(spec))
    if memory is None:
        return plain, ()
    device = next(iter(mesh.devices.flat))
    if memory in {m.kind for m in device.addressable_memories()}:
        return plain.with_memory_kind(memory), ()
    return plain, (f"no memory kind {memory!r} here, device memory instead",)


def _check_narrowing(target: Target, leaf: Leaf) -> None:
    dtype = target.dtype
    if dtype is None or target.kind == "key":
        return
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise Unsupported(
            f"expected a dtype that JAX keeps, found {describe(leaf)}, which JAX would "
            f"narrow to {jax.dtypes.canonicalize_dtype(dtype)} - at `{target.path}`: "
            'set jax_enable_x64, pass cast="lossy", or restore it as numpy'
        )


def default_sharding() -> SingleDeviceSharding:
    """Return where typed keys go when nothing says where."""
    return SingleDeviceSharding(cast("Any", jax.local_devices()[0]))
