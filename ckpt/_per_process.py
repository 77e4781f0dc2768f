"""Values that each process of a job has for itself."""

from __future__ import annotations

from typing import Any

import jax

import pytree

TYPE = "ckpt.PerProcess"
"""How the structure of a saved tree names such a node."""


class PerProcess:
    """A leaf or subtree that differs between the processes of a job.

    Each process saves its own: a data position, the state of a generator. Restored in
    a job of as many processes each gets its own back; elsewhere `values` has all of
    them, in order of process. A restored one can be saved again.

    >>> import ckpt
    >>> done = ckpt.save({"data": ckpt.PerProcess({"row": 7})}, None, "memory://doc-own")
    >>> ckpt.restore("memory://doc-own")["data"].value
    {'row': 7}
    """

    __module__ = "ckpt"
    __slots__ = ("values",)
    values: tuple[Any, ...]

    def __init__(self, value: Any) -> None:
        """Hold this process's value."""
        self.values = (value,)

    @property
    def value(self) -> Any:
        """This process's value; ValueError when it was saved by a job of another size.

        Values that were not read are ckpt.ABSENT.
        """
        if len(self.values) == 1:
            return self.values[0]
        if len(self.values) != jax.process_count():
            raise ValueError(
                f"expected a value for each of {jax.process_count()} processes, found "
                f"those of {len(self.values)}: see .values, and say which are whose"
            )
        return self.values[jax.process_index()]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerProcess) and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.values)

    def __repr__(self) -> str:
        return f"PerProcess({', '.join(map(repr, self.values))})"


def _gather(children: dict[Any, Any], _: dict[str, Any]) -> PerProcess:
    found = PerProcess(None)
    found.values = tuple(children.values())
    return found


pytree.register(PerProcess, unflatten=_gather, name=TYPE)
