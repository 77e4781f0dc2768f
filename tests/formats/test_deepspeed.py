import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ckpt._store import open_store
from ckpt.formats._deepspeed import find_deepspeed
from ckpt.formats._entry import Catalogue, Folder

from ._naive import gather, tensors

PEERS = Path(__file__).parent.parent / "data" / "peers"
SETS = sorted(path.name for path in PEERS.glob("ds_*") if path.is_dir())


def find(path: Path, *, step: int | None = None) -> Catalogue | None:
    store = open_store(path)
    return find_deepspeed(Folder(store, tuple(store.list("")), step=step))


def read(path: Path) -> dict[str, Any]:
    catalogue = find(path)
    assert catalogue is not None
    return catalogue.tree


def expected(name: str) -> dict[str, Any]:
    return json.loads((PEERS / f"{name}.expected.json").read_text())["tensors"]


@pytest.mark.parametrize("name", SETS)
def test_each_parameter_has_the_values_of_the_live_engine(name: str) -> None:
    found = tensors(read(PEERS / name))
    for path, want in expected(name).items():
        array = gather(PEERS / name, found[path])
        assert array.dtype.name == want["dtype"]
        assert hashlib.sha256(array.tobytes()).hexdigest() == want["sha256"], path
        if "zero3" not in name:
            assert list(array.shape) == want["shape"]
