"""The processes of a job restore another library's files: each reads its own part."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests._harness.jobs import JobServer, Setup

WORK = "tests.jobs._foreign"
DOCUMENTS = 64 << 10
"""What a process may read beside tensors: headers, and what the system asks."""


@pytest.mark.parametrize("way", ["rows", "columns", "replicated"])
def test_little_more_is_read_than_each_process_holds(
    server: JobServer, folder: Path, way: str
) -> None:
    rng = np.random.default_rng(0)
    tree = {f"w{n}": rng.standard_normal((1024, 512), np.float32) for n in range(4)}
    save_file(tree, folder / "model.safetensors")
    with server.start(Setup(2, devices=2)) as job:
        answers = job.run(f"{WORK}:restore_set", str(folder), way)
    values = [answer.value for answer in answers]
    for value in values:
        assert value is not None, answers
        for name, digest in value["digests"].items():
            spans = [slice(a, b) for a, b in value["indices"][name]]
            part = np.ascontiguousarray(tree[name.partition("(")[0]][tuple(spans)])
            assert hashlib.sha256(part.tobytes()).hexdigest() == digest
    whole = sum(x.nbytes for x in tree.values())
    read = [value["read"] for value in values]
    # What is replicated one process reads, for both.
    wanted = whole if way == "replicated" else sum(v["held"] for v in values)
    assert sum(read) <= 1.1 * wanted + 2 * DOCUMENTS
    assert max(read) <= 1.1 * whole / 2 + DOCUMENTS
