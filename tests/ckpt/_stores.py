"""Stores of every kind, each with a way around it to see and change what it holds."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ckpt._kv_store import KvStore
from ckpt._store import Store, open_store
from tests._harness.servers import Cloud
from tests.stores._places import cloud_place

KINDS = ["folder", "path", "memory", "s3", "gs"]


@dataclass(frozen=True)
class Case:
    """A store, and ways around it; "path" is a folder used as on Windows."""

    kind: str
    store: Store
    put: Callable[[str, bytes], None]
    get: Callable[[str], bytes]
    cloud: Cloud | None = None


def folder_case(kind: str, root: Path) -> Case:
    def put(name: str, data: bytes) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)

    store = open_store(root)
    store.make_folders(["a", "a/b"])
    return Case(kind, store, put, lambda name: (root / name).read_bytes())


def memory_case(url: str) -> Case:
    store = open_store(url)
    assert isinstance(store, KvStore)
    kv = store.kv

    def put(name: str, data: bytes) -> None:
        kv.write(name, data).result()

    return Case("memory", store, put, lambda name: kv[name])


def cloud_case(cloud: Cloud) -> Case:
    """Return a folder of a bucket that nobody else has used."""
    place = cloud_place(cloud)
    return Case(cloud.kind, open_store(place.url), place.put, place.get, cloud)


def write(store: Store, name: str, data: bytes) -> None:
    with store.write(name, size=len(data)) as writer:
        writer.write([data])
