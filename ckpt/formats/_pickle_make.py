"""How objects come about in a pickle: by a closed table, or as inert records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from .._errors import CkptError, LimitExceeded, Untrusted
from ._pickle_machine import Machine
from ._record import Global, Record

_KEY = 64
"""How many values a tuple may hold, counted through, that is a key."""

_FLAT = frozenset({int, bool, float, type(None)})


def find_global(m: Machine, module: str, name: str) -> Any:
    """Return what stands for a class or function; Untrusted if nothing does."""
    key = module, name
    if key in m.known:
        return m.known[key]
    if key in m.globals:
        entry = m.globals[key]
        found = Global(*key, entry) if entry is None or callable(entry) else entry
    elif module.partition(".")[0] in m.inert:
        found = Global(*key)
    else:
        shown = f"{module}.{name}"[:200]
        raise Untrusted(f"expected only classes known to be harmless, found {shown!a}")
    m.known[key] = found
    return found


def call(m: Machine, called: Any, args: Any) -> Any:
    """Return what a function of the table makes of arguments, or a Record."""
    if type(called) is not Global or type(args) is not tuple:
        raise Untrusted("expected a class and its arguments, found other values")
    arguments = cast(tuple[Any, ...], args)
    cost, make = 8 + len(arguments), called.call
    if make is None:
        m.spend(cost)
        m.contain(2)
        return Record(called.module, called.name, arguments)
    for arg in arguments:
        # A function may copy what it is given, and may be given the same often.
        if type(arg) not in _FLAT and hasattr(arg, "__len__"):
            cost += len(arg)
    m.spend(cost)
    try:
        return make(*arguments)
    except CkptError:
        raise
    except Exception as error:
        raise Untrusted(
            f"expected arguments that {called.module}.{called.name} takes, found others"
            f" ({type(error).__name__})"
        ) from error


def build(target: Any, state: Any) -> None:
    """Give an object its state."""
    if isinstance(target, Record):
        if target.state is not None:
            raise Untrusted(f"expected one state of {target!r}, found two")
        target.state = state
    elif not isinstance(target, (dict, list, set)):
        raise Untrusted("expected an object that has a state")
    # Attributes of an OrderedDict or its like are not what the dict holds.


def check_keys(m: Machine, keys: Iterable[Any]) -> Iterable[Any]:
    """Return keys whose hashes are cheap: that of a tuple may take for ever.

    Of numbers beyond 64 bits any count can be made that have the same hash.
    """
    for key in keys:
        if isinstance(key, int):
            if key.bit_length() > 64:
                raise LimitExceeded("expected numbers of at most 64 bits as keys")
        elif isinstance(key, tuple):
            _walk_key(m, cast(tuple[Any, ...], key))
    return keys


def _walk_key(m: Machine, key: tuple[Any, ...]) -> None:
    todo: list[Any] = [key]
    for _ in range(_KEY):
        if not todo:
            return
        item = todo.pop()
        m.spend(64)  # Tuples of one hash can be made as well: pay for their compares.
        if type(item) is tuple:
            todo.extend(cast(tuple[Any, ...], item)[: _KEY + 1])
    raise LimitExceeded(f"expected tuples of at most {_KEY} values as keys")
