"""A run in a store of each kind, with a way past our own code to its objects."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from ckpt._kv_store import KvStore
from ckpt._store import open_store
from tests._harness.servers import BUCKET, Cloud, Kind

KINDS = ["file", "memory", "s3", "gs"]

_numbers = count()


class Place(Protocol):
    """A run's URL, and its objects by their names below it."""

    @property
    def kind(self) -> str: ...

    @property
    def url(self) -> str: ...

    def get(self, name: str) -> bytes: ...

    def put(self, name: str, data: bytes) -> None: ...

    def delete(self, name: str) -> None: ...

    def names(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class FilePlace:
    root: Path
    kind: str = "file"

    @property
    def url(self) -> str:
        return f"file://{self.root}"

    def get(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def put(self, name: str, data: bytes) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_bytes(data)

    def delete(self, name: str) -> None:
        (self.root / name).unlink()

    def names(self) -> list[str]:
        paths = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.root).as_posix() for path in paths)


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    url: str
    kv: Any
    kind: str = "memory"

    def get(self, name: str) -> bytes:
        return self.kv[name]

    def put(self, name: str, data: bytes) -> None:
        self.kv[name] = data

    def delete(self, name: str) -> None:
        del self.kv[name]

    def names(self) -> list[str]:
        return sorted(key.decode() for key in self.kv.list().result())


@dataclass(frozen=True, slots=True)
class CloudPlace:
    cloud: Cloud
    folder: str

    @property
    def kind(self) -> Kind:
        return self.cloud.kind

    @property
    def url(self) -> str:
        return f"{self.cloud.kind}://{BUCKET}/{self.folder}"

    def get(self, name: str) -> bytes:
        return self.cloud.get(f"{self.folder}/{name}")

    def put(self, name: str, data: bytes) -> None:
        self.cloud.put(f"{self.folder}/{name}", data)

    def delete(self, name: str) -> None:
        self.cloud.delete(f"{self.folder}/{name}")

    def names(self) -> list[str]:
        prefix = f"{self.folder}/"
        return [name.removeprefix(prefix) for name in self.cloud.names(prefix)]


def memory_place() -> MemoryPlace:
    """Return a run that does not exist yet, in the memory of this process."""
    url = f"memory://conformance/{next(_numbers)}"
    store = open_store(url)
    if not isinstance(store, KvStore):
        raise TypeError(f"Expected a key-value store, found {store}")
    return MemoryPlace(url, store.kv)


def cloud_place(cloud: Cloud) -> CloudPlace:
    """Return a run that does not exist yet, behind a proxy that does no wrong."""
    cloud.break_with()
    cloud.take_log()
    return CloudPlace(cloud, f"runs/{next(_numbers)}")


def new_place(kind: str, clouds: Mapping[Kind, Cloud], folder: Path) -> Place:
    """Return a run that does not exist yet in a store of this kind."""
    if kind == "file":
        return FilePlace(folder / "run")
    if kind == "memory":
        return memory_place()
    return cloud_place(clouds["s3" if kind == "s3" else "gs"])


def read_objects(make: Callable[[str], object]) -> dict[str, bytes]:
    """Return all objects of a run that is made at a URL in memory, by name."""
    place = memory_place()
    make(place.url)
    return {name: place.get(name) for name in place.names()}


def copy_to_memory(place: Place) -> MemoryPlace:
    """Copy all objects of a run past the library, and return the copy."""
    copy = memory_place()
    for name in place.names():
        copy.put(name, place.get(name))
    return copy
