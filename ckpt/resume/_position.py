"""A position as it is saved: of one process, in plain values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, cast

from .._errors import DataMismatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a stream stands.

    `batches` were taken over all epochs, `in_epoch` of them in this one, from which all
    hosts took `taken` samples (if known) in batches of `batch_size`; `prefix` is how
    many of which order. `first` is a digest of the state behind the epoch's first
    batch.
    """

    kind: str
    batches: int
    epoch: int
    in_epoch: int
    taken: int | None
    batch_size: int | None
    prefix: tuple[int, str] | None
    first: str | None
    state: Any

    def encode(self) -> dict[str, Any]:
        """Return plain values."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return plain | {"prefix": None if self.prefix is None else list(self.prefix)}

    @staticmethod
    def decode(plain: Any) -> Position:
        """Return the position that was encoded; DataMismatch when it was none."""
        if isinstance(plain, dict):
            found: dict[str, Any] = dict(cast("dict[str, Any]", plain))
            if found.keys() == _TYPES.keys() and all(
                isinstance(found[key], kinds) for key, kinds in _TYPES.items()
            ):
                prefix = found["prefix"]
                if prefix is None or list(map(type, prefix)) == [int, str]:
                    found["prefix"] = None if prefix is None else tuple(prefix)
                    return Position(**found)
        raise DataMismatch(
            "expected the position of a ckpt.resume.Stream, found something else"
        )


_NONE = type(None)
_TYPES: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "batches": (int,),
    "epoch": (int,),
    "in_epoch": (int,),
    "taken": (int, _NONE),
    "batch_size": (int, _NONE),
    "prefix": (list, _NONE),
    "first": (str, _NONE),
    "state": (object,),
}
