"""What the members of a job do with the files of another library."""

import hashlib
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import ckpt
from tests._harness.jobmain import count_file_bytes

SPECS = {"rows": P("x", "y"), "columns": P(None, ("x", "y")), "replicated": P()}


def restore_set(folder: str, way: str) -> dict[str, Any]:
    """Restore a set on all devices; return bytes read, bytes held, and digests."""
    half = jax.device_count() // 2
    mesh = jax.make_mesh((half, 2), ("x", "y"))
    # The first time, modules are read too.
    ckpt.restore(folder, mesh, specs={"**": SPECS[way]})
    before = count_file_bytes()[0]
    tree = ckpt.restore(folder, mesh, specs={"**": SPECS[way]})
    read = count_file_bytes()[0] - before
    boxes = {
        (name, str(shard.index)): shard.data
        for name, array in tree.items()
        for shard in array.addressable_shards
    }
    return {
        "read": read,
        "held": sum(data.nbytes for data in boxes.values()),
        "digests": {
            f"{name}{index}": hashlib.sha256(np.asarray(data).tobytes()).hexdigest()
            for (name, index), data in boxes.items()
        },
        "indices": {
            f"{name}{shard.index}": [
                list(s.indices(n)[:2])
                for s, n in zip(shard.index, array.shape, strict=True)
            ]
            for name, array in tree.items()
            for shard in array.addressable_shards
        },
    }
