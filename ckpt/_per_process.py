"""Values that each process of a job has for itself."""

from __future__ import annotations

from typing import Any

import jax

import pytree

from ._job import Job

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
    __slots__ = ("is_restored", "values")
    values: tuple[Any, ...]
    is_restored: bool

    def __init__(self, value: Any) -> None:
        """Hold this process's value."""
        self.values = (value,)
        self.is_restored = False

    @property
    def value(self) -> Any:
        """This process's value; ValueError when it was saved by a job of another size.

        Values that were not read are ckpt.ABSENT.
        """
        if not self.is_restored:
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


def find_owners(structure: pytree.Structure, processes: int) -> dict[str, int]:
    """Return whose each value in a PerProcess is that so many processes saved.

    Of a PerProcess that a job of another size saved, everybody reads everything.
    """
    return {
        path: owner
        for children in pytree.find_nodes(structure, TYPE).values()
        if len(children) == processes > 1
        for owner, child in enumerate(children)
        for path in structure.positions
        if path == child or path.startswith(f"{child}/")
    }


def split_paths(
    structure: pytree.Structure, job: Job
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the paths of what this process saved for itself, and of the others'."""
    owners = find_owners(structure, job.count).items()
    mine = frozenset(path for path, owner in owners if owner == job.process)
    return mine, frozenset(path for path, owner in owners if owner != job.process)


def flatten_like(
    tree: Any, saved: pytree.Structure
) -> tuple[dict[str, Any], pytree.Structure]:
    """Flatten the caller's `like`, with what was saved in the place of a PerProcess.

    Its own leaves are not known then: they come back as they were saved.
    """
    leaves, structure = pytree.flatten(tree)
    own = [path for path, leaf in leaves.items() if isinstance(leaf, PerProcess)]
    nodes = pytree.find_nodes(saved, TYPE)
    parts = {path: pytree.take_children(saved, path) for path in own if path in nodes}
    for path in parts:
        del leaves[path]
    if parts:
        structure = pytree.graft(structure, parts, type=TYPE)
    inside = [path for path in structure.paths if path not in leaves]
    return leaves | dict.fromkeys(inside, pytree.ABSENT), structure


def inside_nodes(structure: pytree.Structure) -> frozenset[str]:
    """Return the paths of all values that are in a PerProcess."""
    prefixes = tuple(f"{n}/" if n else "" for n in pytree.find_nodes(structure, TYPE))
    return frozenset(p for p in structure.positions if p.startswith(prefixes))


def _gather(children: dict[Any, Any], _: dict[str, Any]) -> PerProcess:
    found = PerProcess(None)
    found.values = tuple(children.values())
    found.is_restored = True
    return found


pytree.register(PerProcess, unflatten=_gather, name=TYPE)
