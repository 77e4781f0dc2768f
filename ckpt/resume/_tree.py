"""The tree that a Run saves: the state, and as text what resuming needs beside it.

    {"state": .., "host": PerProcess(text), "run": text}

`host` is what each process has for itself: its data position, its generators. `run` is
the same everywhere: what to compare before going on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import jax
from jax.sharding import NamedSharding, SingleDeviceSharding

import pytree

from .._catalog import PathLike
from .._checkpoint import Checkpoint
from .._errors import StructureMismatch, Untrusted
from .._open import open as open_checkpoint
from .._per_process import TYPE, PerProcess
from .._remesh import remesh
from .._restore import restore
from .._store_options import GivenOptions
from ._plain import decode_plain, encode_plain
from ._rng import check_global_rngs, pack_rngs, read_global_rngs

STATE = ("state", "state/**", "run")


@dataclass(frozen=True, slots=True)
class Saved:
    """What one step holds beside the state.

    `hosts` are the texts of this process, or of all that saved where their number is
    another; `processes` is that number.
    """

    step: int
    processes: int
    hosts: tuple[dict[str, Any], ...]
    told: dict[str, Any] = field(default_factory=dict[str, Any])


def make_tree(state: Any, *, position: Any, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree to save."""
    host = {"rngs": read_global_rngs(), "data": position}
    return {
        "state": pack_rngs(state),
        "host": PerProcess(encode_plain(host)),
        "run": encode_plain(dict(told)),
    }


def read_saved(
    path: PathLike | None,
    step: int,
    *,
    process: int,
    processes: int,
    mirror: PathLike | None = None,
    store_options: GivenOptions | None = None,
) -> Saved:
    """Read what a step holds beside the state.

    StructureMismatch for a step that no Run has saved.
    """
    found = open_checkpoint(path, step=step, mirror=mirror, store_options=store_options)
    children = pytree.find_nodes(found.manifest.structure, TYPE).get("host")
    if not children or "run" not in found:
        raise StructureMismatch(
            f"expected a step that ckpt.Run saved (state, host, run), found "
            f"{_name_top(found)} - in {found.url}: begin the run in another folder, "
            "with what ckpt.restore returns as its init"
        )
    count = len(children)
    wanted = [children[process]] if count == processes else list(children)
    tree = restore(found, select=["run", *wanted])
    hosts = tuple(_read_text(t, found) for t in tree["host"].values if t is not _ABSENT)
    for host in hosts:
        check_global_rngs(host.get("rngs"))
    told = _read_text(tree["run"], found)
    for name in ("settings", "config", "data"):
        value = told.get(name)
        if not (isinstance(value, dict) or (name == "data" and value is None)):
            raise Untrusted(
                f"expected {name} by name, found {value!r:.80} - at `run`, in "
                f"{found.url}"
            )
    return Saved(step, count, hosts, told)


_ABSENT = pytree.ABSENT


def _name_top(found: Checkpoint) -> str:
    names = dict.fromkeys(path.partition("/")[0] for path in found.keys())  # noqa: SIM118
    return ", ".join(list(names)[:8]) or "an empty tree"


def _read_text(text: Any, found: Checkpoint) -> dict[str, Any]:
    value = decode_plain(text) if isinstance(text, str) else None
    if not isinstance(value, dict):
        raise Untrusted(
            f"expected what a Run saves as text, found {text!r:.80} - in {found.url}"
        )
    return cast("dict[str, Any]", value)


def lay_out(state: Any, mesh: Any) -> Any:
    """Return a fresh state as a restored one lies: arrays without a mesh replicated.

    So a run that begins and one that resumes compile the same.
    """
    if mesh is None:
        return state
    leaves, structure = pytree.flatten(state)
    loose = {
        path: leaf
        for path, leaf in leaves.items()
        if isinstance(leaf, jax.Array) and not isinstance(leaf.sharding, NamedSharding)
    }
    if not loose:
        return state
    return pytree.unflatten(structure, leaves | remesh(loose, mesh))


def is_function(init: Any) -> bool:
    """Tell a function that makes a state from a state that can be called (a model)."""
    if not callable(init):
        return False
    leaves = list(pytree.flatten(init)[0].values())
    return len(leaves) == 1 and leaves[0] is init


def make_like(init: Any, mesh: Any) -> Any:
    """Return what a restored state is to be like, which is not made for that.

    But where something in it is no array (a generator, a text) a function is called.
    """
    if not is_function(init):
        return init
    try:
        like = jax.eval_shape(init)
    except TypeError:
        return init()
    if mesh is not None:
        return like
    # Abstract arrays lie nowhere: they would come back as numpy's.
    device = cast("Any", jax.local_devices()[0])
    here = SingleDeviceSharding(device)

    def put(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        weak = leaf.weak_type
        return jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=here, weak_type=weak
        )

    return jax.tree.map(put, like)


def in_state(*, specs: Any, rename: Mapping[str, str] | None) -> dict[str, Any]:
    """Return options of `restore` on a state's paths as those of the saved tree."""
    found: dict[str, Any] = {}
    if callable(specs):
        found["specs"] = _strip_state(specs)
    elif specs is not None:
        found["specs"] = {f"state/{glob}": spec for glob, spec in specs.items()}
    if rename:
        found["rename"] = {f"state/{k}": f"state/{v}" for k, v in rename.items()}
    return found


def _strip_state(specs: Any) -> Any:
    def choose(path: str, *rest: Any) -> Any:
        return specs(path.removeprefix("state/"), *rest)

    return choose


def describe_mesh(mesh: Any) -> dict[str, int]:
    """Return the sizes of a mesh's axes."""
    return {} if mesh is None else {str(k): int(v) for k, v in mesh.shape.items()}
