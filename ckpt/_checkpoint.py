"""A checkpoint as a lazy handle: its metadata at once, its arrays when asked for."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import layouts
import pytree
from layouts import Box, Leaf, Manifest

from ._catalog import Opened
from ._errors import NotFound, Untrusted
from ._read import Fill, empty_aligned, fill_buffers
from ._value import decode_value, encode_value


@dataclass(frozen=True, slots=True, repr=False)
class Checkpoint:
    """One committed checkpoint; nothing but its manifest is read until asked for.

    >>> import jax.numpy as jnp, ckpt
    >>> ck = ckpt.save({"w": jnp.arange(6.0)}, None, "memory://doc-open", step=1)
    >>> ck["w"][2:4]
    array([2., 3.], dtype=float32)
    """

    opened: Opened

    @property
    def step(self) -> int:
        """The step that was saved."""
        return self.opened.manifest.step

    @property
    def url(self) -> str:
        """Where the checkpoint's directory is."""
        return self.opened.store.url

    @property
    def manifest(self) -> Manifest:
        """The manifest: leaves, structure, meshes and specs."""
        return self.opened.manifest

    @property
    def format(self) -> str:
        """Who wrote it: "ckpt", or the format of another library, "safetensors" say."""
        foreign = self.opened.foreign
        return "ckpt" if foreign is None else foreign.format

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics given to `save`."""
        found = self.opened.manifest.metrics
        return {name: _metric(value) for name, value in found.items()}

    @property
    def digest(self) -> str:
        """The SHA-256 of the manifest, which covers every byte of the checkpoint.

        Of another library's checkpoint only names, types and shapes are covered.
        """
        return self.opened.digest

    @property
    def nbytes(self) -> int:
        """Bytes of all the arrays, each counted once."""
        return self.opened.manifest.nbytes

    @property
    def tree(self) -> Any:
        """The saved tree with a jax.ShapeDtypeStruct for each array.

        Where a mesh and spec were saved, the structs carry them on an AbstractMesh.
        """
        shardings: dict[Any, Any] = {}
        leaves = {x.path: _abstract(x, shardings) for x in self.manifest.leaves}
        return pytree.unflatten(self.manifest.structure, leaves)

    def keys(self) -> tuple[str, ...]:
        """Return the paths of the leaves."""
        return self.manifest.structure.paths

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.manifest.leaves)

    def __contains__(self, path: object) -> bool:
        return path in self.keys() or path in self.manifest.structure.ties

    def __getitem__(self, path: str) -> StoredArray:
        structure = self.manifest.structure
        path = structure.ties.get(path, path)
        try:
            number = structure.paths.index(path)
        except ValueError:
            raise NotFound(
                f"expected a leaf at `{path}`, found none - in {self.url} step "
                f"{self.step}: see .keys()"
            ) from None
        return StoredArray(self.opened, number)

    def __repr__(self) -> str:
        return (
            f"Checkpoint({self._what('step=')}, {len(self)} leaves, "
            f"{self.nbytes:,} bytes, {self.url!r})"
        )

    def _what(self, step: str) -> str:
        """Return its step and, if another library wrote it, what it is."""
        if self.format == "ckpt":
            return f"{step}{self.step}"
        return self.format + (f", {step}{self.step}" if self.step else "")

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td><code>{_html(x.path)}</code></td><td>{_html(describe(x))}</td>"
            f"<td>{x.nbytes:,}</td></tr>"
            for x in self.manifest.leaves[:200]
        )
        more = len(self) - 200
        note = f"<p>(+{more} more leaves)</p>" if more > 0 else ""
        return (
            f"<p><b>{_html(self._what('step '))}</b> · {len(self)} leaves"
            f" · {self.nbytes:,} bytes · <code>{_html(self.url)}</code></p>"
            f"<table><tr><th>leaf</th><th>array</th><th>bytes</th></tr>{rows}</table>{note}"
        )


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _metric(value: Any) -> Any:
    if not isinstance(value, (dict, list)):
        return value
    try:
        return float(cast("dict[str, str]", value)["float"])
    except (KeyError, TypeError, ValueError):
        raise Untrusted(
            f"expected a metric that save writes, found {value!r:.80}"
        ) from None


def describe(leaf: Leaf) -> str:
    """Return a leaf's dtype, shape and layout as one reads them.

    >>> describe(Leaf("w", "jax", "float32", (4, 2), store=layouts.Packed((4, 2))))
    'float32[4,2]'
    """
    if leaf.store is None:
        value = decode_leaf_value(leaf)
        if leaf.kind == "int" and value.bit_length() > 1024:
            return f"int of {value.bit_length():,} bits"
        return f"{leaf.kind} {value!r:.60}"
    shown = f"{leaf.impl or leaf.dtype}[{','.join(map(str, leaf.shape))}]"
    if leaf.placement and leaf.placement.spec is not None and any(leaf.placement.spec):
        shown += f" {layouts.format_spec(leaf.placement.spec)} {leaf.placement.mesh}"
    return shown


def decode_leaf_value(leaf: Leaf) -> Any:
    """Return the Python value of a leaf kept in the manifest."""
    try:
        value = decode_value(leaf.kind, leaf.value)
        # One text for each value: a lenient parser takes many.
        if encode_value(value) == leaf.value:
            return value
    except (ArithmeticError, AttributeError, TypeError, ValueError, struct.error):
        pass
    raise Untrusted(
        f"expected a value of kind {leaf.kind}, found {leaf.value!r:.80} "
        f"- at `{leaf.path}`"
    )


def key_shape(leaf: Leaf) -> tuple[int, ...]:
    """Return the logical shape of a typed PRNG key leaf; Untrusted for another's."""
    key = jax.ShapeDtypeStruct((), key_dtype(leaf))
    words = jax.eval_shape(jax.random.key_data, key).shape
    rank = len(leaf.shape) - len(words)
    if rank < 0 or leaf.shape[rank:] != words:
        raise Untrusted(
            f"expected the words {words} of a key of {leaf.impl}, found the shape "
            f"{leaf.shape} - at `{leaf.path}`"
        )
    return leaf.shape[:rank]


def key_dtype(leaf: Leaf) -> Any:
    """Return the JAX dtype of a typed PRNG key leaf; Untrusted for an unknown one."""
    try:
        return jax.eval_shape(lambda: jax.random.key(0, impl=leaf.impl)).dtype
    except (TypeError, ValueError) as error:
        raise Untrusted(
            f"expected a PRNG that JAX knows, found {leaf.impl!r} - at `{leaf.path}`"
        ) from error


def _abstract(leaf: Leaf, shardings: dict[Any, Any]) -> Any:
    if leaf.store is None:
        return decode_leaf_value(leaf)
    if leaf.kind == "key":
        return jax.ShapeDtypeStruct(key_shape(leaf), key_dtype(leaf))
    sharding = None
    placement = leaf.placement
    if placement is not None and placement.mesh is not None and leaf.kind == "jax":
        sharding = shardings.get(placement)
        if sharding is None:
            types = tuple(getattr(AxisType, t) for t in placement.mesh.types)
            sizes = tuple(n for _, n in placement.mesh.axes)
            names = tuple(a for a, _ in placement.mesh.axes)
            mesh = AbstractMesh(sizes, names, axis_types=types)
            sharding = NamedSharding(mesh, partition_spec(placement.spec or ()))
            shardings[placement] = sharding
    return jax.ShapeDtypeStruct(
        leaf.shape, leaf.numpy_dtype, sharding=sharding, weak_type=leaf.weak
    )


def partition_spec(spec: layouts.Spec) -> PartitionSpec:
    """Return a Spec as a jax PartitionSpec, as short as jit writes it.

    To jit, P("x") and P("x", None) differ: the other one would compile again.
    """
    entries = [axes[0] if len(axes) == 1 else (axes or None) for axes in spec]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def read_box(
    opened: Opened, number: int, box: Box, *, max_host_bytes: int | None = None
) -> np.ndarray[Any, Any]:
    """Return one box of a leaf as numpy, reading and checking just its chunks."""
    leaf = opened.manifest.leaves[number]
    buffer = empty_aligned(box.shape, layouts.stored_dtype(leaf.dtype))
    plan = layouts.plan_leaf_read(number, leaf, [box])
    fill_buffers(opened, [Fill(plan, (buffer,))], max_host_bytes=max_host_bytes)
    return buffer.view(leaf.numpy_dtype)


@dataclass(frozen=True, slots=True, repr=False)
class StoredArray:
    """One leaf of a checkpoint, read by indexing: ints, slices and `...`."""

    opened: Opened
    number: int

    @property
    def leaf(self) -> Leaf:
        """What the manifest says of the leaf."""
        return self.opened.manifest.leaves[self.number]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the stored array."""
        return self.leaf.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the stored array."""
        return self.leaf.numpy_dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.leaf.nbytes

    def __getitem__(self, index: Any) -> Any:
        leaf = self.leaf
        if leaf.store is None:
            return np.asarray(decode_leaf_value(leaf))[index]
        box, rest = _split_index(index, leaf.shape)
        if math.prod(box.shape) == 0:
            return np.empty(box.shape, leaf.numpy_dtype)[rest]
        return read_box(self.opened, self.number, box)[rest]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        values = self[...]
        return values if dtype is None else values.astype(dtype)

    def __repr__(self) -> str:
        return f"StoredArray(`{self.leaf.path}`: {describe(self.leaf)})"


def _split_index(index: Any, shape: tuple[int, ...]) -> tuple[Box, tuple[Any, ...]]:
    """Return the box to read for a numpy index, and the index to apply to it."""
    given: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)  # pyright: ignore[reportUnknownVariableType]
    if any(i is Ellipsis for i in given):
        at = next(n for n, i in enumerate(given) if i is Ellipsis)
        fill = (slice(None),) * (len(shape) - len(given) + 1)
        given = given[:at] + fill + given[at + 1 :]
    if len(given) > len(shape):
        raise IndexError(f"expected at most {len(shape)} indices, found {len(given)}")
    given += (slice(None),) * (len(shape) - len(given))
    start: list[int] = []
    sizes: list[int] = []
    rest: list[Any] = []
    for i, n in zip(given, shape, strict=True):
        if isinstance(i, (bool, np.bool_)):
            raise IndexError(f"expected integers and slices, found {i}")
        if isinstance(i, slice):
            picked = range(n)[cast("slice", i)]
            low = min(picked[0], picked[-1]) if picked else 0
            high = max(picked[0], picked[-1]) + 1 if picked else 0
            stop = picked.stop - low if picked.stop >= low else None
            step = picked.step if picked else 1
            first = picked.start - low if picked else 0
            rest.append(slice(first, stop if picked else 0, step))
        else:
            low = range(n)[cast(int, i)]
            high = low + 1
            rest.append(0)
        start.append(low)
        sizes.append(high - low)
    return Box(tuple(start), tuple(sizes)), tuple(rest)
