"""The same samples by every kind of data pipeline: 48, 8 a batch over all hosts.

Each pipeline shuffles, and yields batches of what one host has: {"index": [..]}.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from ckpt.resume import Batches, Stream, shuffle_indices

SAMPLES, BATCH, SEED = 48, 8, 3


def make_features(indices: Any) -> dict[str, np.ndarray]:
    """Return the samples of these numbers, each a function of its own."""
    index = np.asarray(indices, np.int64).reshape(-1)
    x = np.stack([np.sin(index * (k + 1.0)) for k in range(4)], axis=1)
    return {
        "x": x.astype(np.float32),
        "y": x.sum(axis=1, keepdims=True).astype(np.float32),
        "index": index.astype(np.int32),
    }


def from_batches(process: int, processes: int) -> Any:
    def make(seed: int, step: int) -> Any:
        indices = shuffle_indices(SAMPLES, BATCH, seed=seed, step=step)
        return indices[process::processes]

    return Batches(make, seed=SEED, batch_size=BATCH, name="samples")


def from_grain_dataset(process: int, processes: int) -> Any:
    import grain

    samples = grain.MapDataset.range(SAMPLES).shuffle(seed=SEED).repeat()
    local = samples[process::processes].to_iter_dataset()
    loader = local.batch(BATCH // processes, drop_remainder=True)
    return Stream(loader, seed=SEED, batch_size=BATCH, name="samples")


def from_grain_loader(process: int, processes: int) -> Any:
    import grain

    sampler = grain.samplers.IndexSampler(
        SAMPLES, shuffle=True, seed=SEED, num_epochs=None
    )
    loader = grain.DataLoader(
        data_source=cast("Any", grain.sources.RangeDataSource(0, SAMPLES, 1)),
        sampler=sampler,
        shard_options=grain.sharding.ShardOptions(process, processes),
        operations=[grain.transforms.Batch(BATCH // processes, drop_remainder=True)],
        worker_count=0,
    )
    return Stream(loader, seed=SEED, batch_size=BATCH, name="samples")


def from_torchdata(process: int, processes: int) -> Any:
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    assert processes == 1
    loader = StatefulDataLoader(
        range(SAMPLES),  # pyright: ignore[reportArgumentType]
        batch_size=BATCH,
        shuffle=True,
        generator=torch.Generator().manual_seed(SEED),
    )
    return Stream(loader, seed=SEED, batch_size=BATCH, name="samples")


def from_datasets(process: int, processes: int) -> Any:
    import datasets

    assert processes == 1
    rows = datasets.Dataset.from_dict({"index": list(range(SAMPLES))}).shuffle(SEED)
    stream = rows.to_iterable_dataset(num_shards=4).batch(BATCH)
    return Stream(stream, seed=SEED, batch_size=BATCH, name="samples")


def from_datasets_map(process: int, processes: int) -> Any:
    import datasets

    assert processes == 1
    rows = datasets.Dataset.from_dict({"index": list(range(SAMPLES))})
    return Stream(rows, seed=SEED, batch_size=BATCH, name="samples")


class Counting(Iterator[Any]):
    """An iterator as many write one: a generator of numpy, and get_state, set_state."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(SEED)

    def __next__(self) -> Any:
        return self.rng.integers(0, SAMPLES, BATCH)

    def get_state(self) -> Any:
        return self.rng.bit_generator.state

    def set_state(self, state: Any) -> None:
        self.rng.bit_generator.state = state


class Walking:
    """A loader with state_dict and load_state_dict, which ends after an epoch."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < SAMPLES // BATCH:
            self.at += 1
            yield np.arange((self.at - 1) * BATCH, self.at * BATCH)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


SOURCES: dict[str, Callable[[int, int], Any]] = {
    "batches": from_batches,
    "grain-dataset": from_grain_dataset,
    "grain-loader": from_grain_loader,
    "torchdata": from_torchdata,
    "datasets": from_datasets,
    "datasets-map": from_datasets_map,
    "get_state": lambda process, processes: Counting(),
    "state_dict": lambda process, processes: Walking(),
}

ELASTIC = ("batches", "grain-dataset", "grain-loader")


def read_indices(batch: Any) -> np.ndarray:
    """Return the sample numbers of a batch, whatever the pipeline makes of them."""
    found = batch["index"] if isinstance(batch, dict) else batch
    return np.asarray(found, np.int64).reshape(-1)
