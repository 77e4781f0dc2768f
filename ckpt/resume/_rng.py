"""Random number generators of numpy and Python as plain values.

JAX's keys are arrays and need nothing of this.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import pytree

from .._errors import Untrusted
from .._per_process import PerProcess
from ._plain import decode_plain, encode_plain

_GENERATORS: dict[str, Callable[[], Any]] = {
    "MT19937": np.random.MT19937,
    "PCG64": np.random.PCG64,
    "PCG64DXSM": np.random.PCG64DXSM,
    "Philox": np.random.Philox,
    "SFC64": np.random.SFC64,
}

_ODD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

_PLACES = {"pos": 624, "buffer_pos": 4}
"""Where a generator stands in its words: numpy reads there without a look."""

Rng = np.random.Generator | np.random.RandomState | random.Random


def is_rng(leaf: object) -> bool:
    """Tell whether a leaf is a generator whose state can be saved."""
    return isinstance(leaf, (np.random.Generator, np.random.RandomState, random.Random))


def read_rng(rng: Any) -> dict[str, Any]:
    """Return the state of a generator as plain values.

    >>> read_rng(np.random.default_rng(0))["kind"]
    'numpy.Generator'
    """
    if isinstance(rng, np.random.Generator):
        return {"kind": "numpy.Generator", "state": rng.bit_generator.state}
    if isinstance(rng, np.random.RandomState):
        return {"kind": "numpy.RandomState", "state": rng.get_state(legacy=False)}
    return {"kind": "random.Random", "state": _plain_state(rng.getstate())}


def set_rng(rng: Any, saved: dict[str, Any]) -> None:
    """Set a generator of the same kind to a saved state; Untrusted for another's."""
    expected = read_rng(rng)["kind"]
    if saved.get("kind") != expected:
        raise Untrusted(
            f"expected the state of a {expected}, found one of {saved.get('kind')!r}"
        )
    try:
        state = saved["state"]
        if isinstance(rng, np.random.Generator):
            _check_place(state)
            rng.bit_generator.state = state
        elif isinstance(rng, np.random.RandomState):
            _check_place(state)
            rng.set_state(state)
        else:
            rng.setstate(_python_state(state))
    except _ODD as error:
        raise Untrusted(
            f"expected the state of a {type(rng).__name__}, found another "
            f"({error!s:.80})"
        ) from None


def make_rng(saved: dict[str, Any]) -> Rng:
    """Return a new generator in a saved state.

    >>> rng = np.random.default_rng(0)
    >>> make_rng(read_rng(rng)).random() == rng.random()
    True
    """
    try:
        kind = saved["kind"]
        if kind == "numpy.Generator":
            rng: Rng = np.random.Generator(
                _GENERATORS[saved["state"]["bit_generator"]]()
            )
        elif kind == "numpy.RandomState":
            rng = np.random.RandomState(_GENERATORS[saved["state"]["bit_generator"]]())
        else:
            rng = {"random.Random": random.Random}[kind]()
    except _ODD as error:
        raise Untrusted(
            f"expected the state of a generator, found another ({error!s:.80})"
        ) from None
    set_rng(rng, saved)
    return rng


def pack_rngs(tree: Any) -> Any:
    """Return a tree with its generators as text, which `save` takes.

    >>> pack_rngs({"rng": random.Random(0)})["rng"][:24]
    '{"kind":"random.Random",'
    """
    leaves, structure = pytree.flatten(tree)
    packed: dict[str, Any] = {
        path: encode_plain(read_rng(x)) for path, x in leaves.items() if is_rng(x)
    }
    for path, leaf in leaves.items():
        if isinstance(leaf, PerProcess) and not leaf.is_restored:
            packed[path] = PerProcess(pack_rngs(leaf.value))
    return pytree.unflatten(structure, leaves | packed) if packed else tree


def unpack_rngs(tree: Any, like: Any) -> Any:
    """Return a tree that was packed with new generators, where `like` has some."""
    wanted = [path for path, leaf in pytree.flatten(like)[0].items() if is_rng(leaf)]
    if not wanted:
        return tree
    leaves, structure = pytree.flatten(tree)
    made = {path: make_rng(decode_plain(leaves[path])) for path in wanted}
    return pytree.unflatten(structure, leaves | made)


def read_global_rngs() -> dict[str, Any]:
    """Return the states of the generators behind `random` and `np.random`."""
    return {
        "random": _plain_state(random.getstate()),
        "numpy": np.random.get_state(legacy=False),
    }


def check_global_rngs(saved: Any) -> None:
    """Raise Untrusted for what `set_global_rngs` would not take."""
    try:
        random.Random().setstate(_python_state(saved["random"]))
        make_rng({"kind": "numpy.RandomState", "state": saved["numpy"]})
    except _ODD as error:
        raise Untrusted(
            f"expected the states of random and np.random, found {error!s:.80}"
        ) from None


def set_global_rngs(saved: dict[str, Any]) -> None:
    """Set the generators behind `random` and `np.random` to saved states."""
    try:
        state = _python_state(saved["random"])
        _check_place(saved["numpy"])
        np.random.set_state(saved["numpy"])
        random.setstate(state)
    except _ODD as error:
        raise Untrusted(
            f"expected the states of random and np.random, found {error!s:.80}"
        ) from None


def _check_place(state: dict[str, Any]) -> None:
    """Refuse a place outside of the words, where numpy would read other memory."""
    for holder in (state, state["state"]):
        for name, most in _PLACES.items():
            if name in holder and not 0 <= int(holder[name]) <= most:
                raise ValueError(f"{name}={holder[name]!r:.20}")
    key = state["state"].get("key")
    if "pos" in state["state"] and np.shape(key) != (624,):
        raise ValueError(f"words of shape {np.shape(key)}")


def _plain_state(state: tuple[Any, ...]) -> dict[str, Any]:
    version, words, gauss = state
    return {"version": version, "words": np.array(words, np.uint32), "gauss": gauss}


def _python_state(state: dict[str, Any]) -> tuple[Any, ...]:
    gauss = state["gauss"]
    if not isinstance(gauss, (float, type(None))):
        raise TypeError(f"gauss={gauss!r:.20}")
    return state["version"], tuple(state["words"].tolist()), gauss
