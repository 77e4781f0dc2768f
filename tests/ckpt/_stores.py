"""Stores of every kind, each with a way around it to see and change what it holds."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ckpt._kv_store import KvStore
from ckpt._store import Store, open_store
from tests.ckpt._cloud import Cloud

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


def cloud_case(kind: str, cloud: Cloud) -> Case:
    cloud.objects.clear()
    cloud.lose_answers = 0
    cloud.hide_sizes = False

    def put(name: str, data: bytes) -> None:
        cloud.put(f"runs/1/{name}", data, expected=None)

    def get(name: str) -> bytes:
        return cloud.objects[f"runs/1/{name}"][0]

    return Case(kind, open_store(f"{kind}://bucket/runs/1"), put, get, cloud)


def write(store: Store, name: str, data: bytes) -> None:
    with store.write(name, size=len(data)) as writer:
        writer.write([data])
