from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks._measure import measure_call

_MIB = 1 << 20


def test_memory_that_is_touched_is_counted() -> None:
    sample, result = measure_call(lambda: np.ones(64 * _MIB, np.uint8))
    assert result.size == 64 * _MIB
    assert 63 * _MIB <= sample.added_bytes <= 72 * _MIB


def test_memory_that_is_freed_again_within_the_call_is_counted() -> None:
    sample, total = measure_call(lambda: int(np.ones(64 * _MIB, np.uint8).sum()))
    assert total == 64 * _MIB
    assert 63 * _MIB <= sample.added_bytes <= 72 * _MIB


def test_an_earlier_peak_is_not_counted() -> None:
    assert np.ones(64 * _MIB, np.uint8).sum() == 64 * _MIB
    sample, _ = measure_call(lambda: None)
    assert sample.added_bytes < 4 * _MIB


def test_heap_freed_earlier_does_not_hide_new_use() -> None:
    def fill_heap() -> list[bytes]:
        # Below the threshold of mmap, so that this memory comes from the heap.
        return [b"x" * 60_000 for _ in range(1000)]

    fill_heap()
    sample, blocks = measure_call(fill_heap)
    assert len(blocks) == 1000
    assert sample.added_bytes > 50 * _MIB


def test_bytes_read_and_written_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "data"
    wrote, _ = measure_call(lambda: path.write_bytes(bytes(8 * _MIB)))
    read, data = measure_call(path.read_bytes)
    assert len(data) == 8 * _MIB
    assert 8 * _MIB <= wrote.written_bytes < 9 * _MIB
    assert 8 * _MIB <= read.read_bytes < 9 * _MIB
