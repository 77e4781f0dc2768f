"""Pickles, read by an interpreter of our own: no class is imported, no code is run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from .._errors import CkptError, LimitExceeded, StoreError, Untrusted
from ._pickle_machine import Machine
from ._pickle_run import run
from ._record import Global as Global, Limits as Limits, Record as Record

LIMITS = Limits()

_ADVICE = ": do not trust this file, or save tensors and plain values in its place"

Globals = Mapping[tuple[str, str], Any]
"""What stands for the classes and functions a pickle may name.

A function is called in place of the real one, None makes Records, and anything else
is the value itself.
"""


def decode_pickle(
    data: memoryview[Any] | bytes,
    *,
    at: int = 0,
    globals: Globals,
    persistent: Callable[[Any], Any] | None = None,
    inert: Collection[str] = (),
    limits: Limits = LIMITS,
    where: str = "a pickle",
) -> tuple[Any, int]:
    """Return the value of the pickle at `at`, and the offset behind its end.

    Protocols 0 to 5. What a pickle names and `globals` lacks is Untrusted, unless its
    top module is in `inert`: then it becomes Records. The value may share objects,
    hold cycles and be nested deeply: walk it with care. `where` is for messages.
    Damaged where the data end early, Untrusted for what no writer makes,
    LimitExceeded over a limit.

    >>> decode_pickle(b"\\x80\\x02]q\\x00(K\\x01X\\x02\\x00\\x00\\x00hie.", globals={})
    ([1, 'hi'], 17)
    """
    whole = data if isinstance(data, bytes) else bytes(data)
    machine = Machine(
        data=whole,
        end=len(whole),
        at=at,
        globals=globals,
        persistent=persistent,
        inert=frozenset(inert),
        limits=limits,
        left=limits.operations,
        text=limits.text,
    )
    try:
        value = run(machine)
    except StoreError:
        raise
    except CkptError as error:
        advice = _ADVICE if isinstance(error, Untrusted) else ""
        raise type(error)(f"{error} - {_place(machine, where)}{advice}") from None
    except (MemoryError, RecursionError) as error:
        raise LimitExceeded(
            f"expected a pickle of reasonable size, found {type(error).__name__} - "
            f"{_place(machine, where)}"
        ) from error
    except Exception as error:
        # The data decide which of many errors this is: an empty stack, a wrong type.
        raise Untrusted(
            f"expected a pickle, found nonsense ({type(error).__name__}) - "
            f"{_place(machine, where)}: do not trust this file"
        ) from error
    return value, machine.at


def _place(machine: Machine, where: str) -> str:
    return f"at byte {machine.at} of {where}"
