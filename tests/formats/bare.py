"""`python -m tests.formats.bare`: every set of the peers opens where none of them is.

Run by CI in an environment that has only what `pip install ckpt-jax` brings, and by
the tests. Each tensor's bytes are compared with the SHA-256 that its peer's own reader
gave when the set was made.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

import ckpt

SETS = Path(__file__).parents[1] / "data" / "peers"
PEERS = (
    *("deepspeed", "flax", "huggingface_hub", "msgpack", "orbax", "safetensors"),
    *("torch", "transformers", "zstandard"),
)


def list_sets() -> list[str]:
    """Return the names of the sets whose tensors are known."""
    names = (
        p.name.removesuffix(".expected.json") for p in SETS.glob("*.expected.json")
    )
    # Of these each file is a checkpoint of its own.
    return sorted(set(names) - {"safetensors_edge", "torch_save"})


def read_expected(name: str) -> dict[str, Any]:
    """Return shape, dtype and SHA-256 of each tensor of a set, by the peer's name."""
    found = json.loads((SETS / f"{name}.expected.json").read_text())
    return found.get("tensors") or found["leaves"]


def find_paths(found: ckpt.Checkpoint) -> dict[str, str]:
    """Return the path of each leaf by the names that a peer may call it by.

    Keys joined by dots, or by slashes; where a checkpoint has several items, within
    one of them.
    """
    names: dict[str, str] = {}
    for path in (*found.keys(), *found.manifest.structure.ties):
        keys = [unquote(key.strip("'")) for key in path.split("/")]
        for part in (keys, keys[1:]):
            names.setdefault(".".join(part), path)
            names.setdefault("/".join(part), path)
    return names


def is_expected(values: np.ndarray[Any, Any], wanted: dict[str, Any]) -> bool:
    """Tell whether values are those that a peer read."""
    digest = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
    if (str(values.dtype), digest) != (wanted["dtype"], wanted["sha256"]):
        return False
    # DeepSpeed's universal files of stage 3 are flat: here they have their real shape.
    return list(values.shape) == wanted["shape"] or [values.size] == wanted["shape"]


def list_differences(name: str) -> list[str]:
    """Return what of a set is not as its peer read it."""
    found = ckpt.open(SETS / name)
    paths = find_paths(found)
    wrong = [
        tensor
        for tensor, wanted in read_expected(name).items()
        if tensor not in paths
        or not is_expected(np.asarray(found[paths[tensor]][...]), wanted)
    ]
    return wrong if ckpt.verify(found).ok else [*wrong, "verify"]


def main() -> int:
    """Compare all sets; 1 where one differs, 2 where a peer is installed."""
    there = [name for name in PEERS if importlib.util.find_spec(name)]
    if there:
        print(f"Expected none of the peers, found {', '.join(there)}", file=sys.stderr)
        return 2
    wrong = {name: list_differences(name) for name in list_sets()}
    for name, tensors in wrong.items():
        print(f"{name}: {', '.join(tensors) or 'all tensors equal'}")
    return int(any(wrong.values()) or not wrong)


if __name__ == "__main__":
    sys.exit(main())
