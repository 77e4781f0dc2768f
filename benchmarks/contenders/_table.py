from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast


class Library(Protocol):
    """What a contender's module offers; `folder` doesn't exist before `save`."""

    def save(self, state: Any, folder: Path) -> None:
        """Returns when the checkpoint is as durable as this library makes it."""
        ...

    def restore(self, folder: Path, abstract: Any) -> Any:
        """The saved tree under the shardings of `abstract`."""
        ...


class DescribingLibrary(Library, Protocol):
    """A library whose checkpoints say what is in them."""

    def metadata(self, folder: Path) -> Any:
        """The structure, shapes and dtypes, without the values."""
        ...


class OverlappingLibrary(Library, Protocol):
    """A library that saves in the background."""

    def save_async(self, state: Any, folder: Path) -> Callable[[], object]:
        """Returns when `state` may be donated; the result waits until it is durable."""
        ...


@dataclass(frozen=True, slots=True)
class Contender:
    """One library in one configuration."""

    name: str
    module: str
    distributions: tuple[str, ...]
    remeshes: bool = True
    describes: bool = True
    durable: bool = True
    jobs: bool = False
    overlaps: bool = False


CONTENDERS = (
    Contender("ckpt", "_ckpt", ("tensorstore",), jobs=True, overlaps=True),
    Contender("orbax v0", "_orbax_v0", ("orbax-checkpoint",), jobs=True, overlaps=True),
    Contender(
        "orbax v0 zarr3",
        "_orbax_v0_zarr3",
        ("orbax-checkpoint",),
        jobs=True,
        overlaps=True,
    ),
    Contender("orbax v1", "_orbax_v1", ("orbax-checkpoint",)),
    Contender("jax", "_jax", ("tensorstore",), describes=False),
    Contender("safetensors", "_safetensors", ("safetensors",)),
    Contender("torch dcp", "_torch_dcp", ("torch",)),
    Contender("floor", "_floor", (), remeshes=False, describes=False),
)


def find_contender(name: str) -> Contender:
    """The contender of that name."""
    for contender in CONTENDERS:
        if contender.name == name:
            return contender
    names = ", ".join(repr(contender.name) for contender in CONTENDERS)
    raise ValueError(f"Expected a contender among {names}, found {name!r}.")


def why_absent(contender: Contender) -> str:
    """Why the contender can't run here; empty when it can."""
    for name in contender.distributions:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return f"{name} is not installed"
    return ""


def load_library(contender: Contender) -> Library:
    """Imports the contender's module, and with it the library."""
    module = importlib.import_module(f"benchmarks.contenders.{contender.module}")
    return cast("Library", module)
