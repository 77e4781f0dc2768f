"""Data sources of every kind, each made anew at each call, and how they are read."""

import contextlib
import functools
import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ckpt.resume import Batches, Stream, shuffle_indices

LENGTH = 20


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let the libraries warn of what they themselves do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")
        warnings.filterwarnings("ignore", "This process .* is multi-threaded")
        yield


def need(package: str) -> Any:
    """Import a package of the extra "data"; where it is not installed, skip."""
    with quiet():
        return pytest.importorskip(package)


class Records:
    """Samples that are their numbers, with the address that a plain repr has."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        if number >= self.length:
            raise IndexError(number)
        return np.int64(number)


class Counter:
    """An iterator whose state is a number, under either pair of names."""

    def __init__(self, length: int = 10**9) -> None:
        self.number = 0
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.number == self.length:
            raise StopIteration
        self.number += 1
        return self.number - 1

    def get_state(self) -> Any:
        return {"at": (self.number, {3: b"\x00\xff"})}

    def set_state(self, state: Any) -> None:
        assert state["at"][1] == {3: b"\x00\xff"}
        self.number = state["at"][0]


class Epochs:
    """A loader with the state of its last iterator, and epochs of their own order."""

    def __init__(self) -> None:
        self.epoch = self.number = 0
        self.loaded: dict[str, int] | None = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.number, self.loaded = (self.loaded or {"number": 0})["number"], None
        while self.number < 7:
            self.number += 1
            yield 100 * self.epoch + self.number - 1

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number if self.loaded is None else self.loaded["number"]}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded = state


class Cells:
    """Makes an iterator with a state for each epoch."""

    def __iter__(self) -> Iterator[Any]:
        return Counter(6)


def records(length: int) -> Any:
    return Records(length)


def take_batch(seed: int, step: int, size: int = 4) -> Any:
    return shuffle_indices(LENGTH, size, seed=seed, step=step)


def few_threads() -> Any:
    return need("grain").ReadOptions(num_threads=1, prefetch_buffer_size=3)


def grain_loader(
    host: int = 0, hosts: int = 1, batch: int = 4, length: int = LENGTH, **options: Any
) -> Any:
    grain = need("grain.python")
    settings: Any = {"shuffle": True, "seed": 3, "num_epochs": 1} | options
    return grain.DataLoader(
        data_source=records(length),
        sampler=grain.IndexSampler(length, **settings),
        operations=[grain.Batch(batch)],
        worker_count=0,
        read_options=few_threads(),
        shard_options=grain.ShardOptions(host, hosts, drop_remainder=True),
    )


def grain_dataset(
    host: int = 0, hosts: int = 1, batch: int = 4, seed: int = 5, length: int = LENGTH
) -> Any:
    grain = need("grain")
    order = grain.MapDataset.source(records(length)).shuffle(seed=seed)
    return order[host::hosts].batch(batch)


def grain_iter_dataset(
    host: int = 0, hosts: int = 1, batch: int = 4, seed: int = 5, length: int = LENGTH
) -> Any:
    grain = need("grain")
    order = grain.MapDataset.source(records(length)).seed(seed).shuffle().repeat(None)
    return (
        order[host::hosts].map(lambda x: x).to_iter_dataset(few_threads()).batch(batch)
    )


def grain_elastic(
    host: int = 0, hosts: int = 1, batch: int = 4, length: int = LENGTH
) -> Any:
    grain = need("grain")
    order = grain.MapDataset.source(records(length)).shuffle(seed=5).repeat(None)
    share = grain.sharding.ShardOptions(host, hosts)
    return grain.experimental.ElasticIterator(
        order, batch, share, read_options=few_threads()
    )


def torch_loader(workers: int = 0, batch: int = 4, seed: int = 1) -> Any:
    torch, stateful = need("torch"), need("torchdata.stateful_dataloader")
    with quiet():
        return stateful.StatefulDataLoader(
            range(LENGTH),
            batch_size=batch,
            shuffle=True,
            num_workers=workers,
            generator=torch.Generator().manual_seed(seed),
        )


def torch_distributed(
    host: int = 0, hosts: int = 1, batch: int = 4, seed: int = 1, length: int = LENGTH
) -> Any:
    stateful = need("torchdata.stateful_dataloader")
    samplers = need("torchdata.stateful_dataloader.sampler")
    rows = range(length)
    with quiet():
        sampler = samplers.StatefulDistributedSampler(
            rows, num_replicas=hosts, rank=host, seed=seed
        )
        return stateful.StatefulDataLoader(rows, batch_size=batch, sampler=sampler)


@functools.cache
def table() -> Any:
    return need("datasets").Dataset.from_dict({"x": list(range(LENGTH))})


def rows_of_table() -> Any:
    return table().to_iterable_dataset(num_shards=4)


@dataclass(frozen=True)
class Case:
    """How a source is made and streamed; `bare` ones are read without a Stream."""

    make: Callable[[], Any]
    options: dict[str, Any]
    bare: bool = True

    def stream(self, **more: Any) -> Stream:
        with quiet():
            return Stream(self.make(), **self.options, **more)

    def read(self, count: int) -> list[Any]:
        """Return the batches of an uninterrupted run, from the source alone."""
        source = self.make()
        with quiet():
            return [plain(b) for b in itertools.islice(run_epochs(source), count)]


def run_epochs(source: Any) -> Iterator[Any]:
    for epoch in itertools.count():
        if epoch and hasattr(source, "__next__"):
            return
        parts: list[Any] = [source, getattr(source, "sampler", None)]
        for part in parts:
            if epoch and hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        yield from source


def plain(batch: Any) -> Any:
    """Return a batch as lists."""
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    return np.asarray(batch).tolist()


CASES = {
    "Batches": Case(lambda: Batches(take_batch, seed=3, batch_size=4, name="b"), {}),
    "get_state": Case(Counter, {}),
    "state_dict": Case(Epochs, {}),
    "iterable": Case(Cells, {}),
    "grain DataLoader": Case(grain_loader, {}),
    "grain DataLoader iterator": Case(lambda: iter(grain_loader(num_epochs=9)), {}),
    "grain MapDataset": Case(grain_dataset, {}),
    "grain IterDataset": Case(grain_iter_dataset, {}),
    "grain DatasetIterator": Case(lambda: iter(grain_iter_dataset()), {}),
    "grain ElasticIterator": Case(grain_elastic, {}),
    "torchdata": Case(torch_loader, {}),
    "torchdata distributed": Case(torch_distributed, {}),
    "datasets rows": Case(table, {}),
    "datasets iterable": Case(rows_of_table, {}),
    "datasets shuffled": Case(
        lambda: rows_of_table().shuffle(seed=3, buffer_size=1).batch(3), {}
    ),
    "datasets batches": Case(lambda: rows_of_table().batch(3), {}),
}


def through_json(position: dict[str, Any]) -> dict[str, Any]:
    """Return a position that was text in between."""
    return from_text(to_text(position))


def to_text(position: dict[str, Any]) -> str:
    def encode(value: Any) -> Any:
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if isinstance(value, np.ndarray):
            return {"array": value.tolist(), "dtype": value.dtype.str}
        raise TypeError(f"{type(value)} in a position")

    return json.dumps(position, default=encode)


def from_text(text: str) -> dict[str, Any]:
    def decode(found: dict[str, Any]) -> Any:
        if found.keys() == {"bytes"}:
            return bytes.fromhex(found["bytes"])
        if found.keys() == {"array", "dtype"}:
            return np.array(found["array"], found["dtype"])
        return found

    return json.loads(text, object_hook=decode)


def resume(stream: Stream, position: dict[str, Any]) -> Stream:
    with quiet():
        return stream.restored([position], process=0, processes=1)


def take(stream: Stream, count: int) -> list[Any]:
    with quiet():
        return [plain(next(stream)) for _ in range(count)]


def answer() -> None:
    """Go on from positions in a process of its own, and print the batches."""
    for name, text, count in map(json.loads, sys.stdin):
        print(json.dumps(take(resume(CASES[name].stream(), from_text(text)), count)))
    # Workers are forked, which JAX forbids once it has a backend: none is made here.
    case = Case(lambda: torch_loader(workers=2), {})
    stream = case.stream(process=0, processes=1)
    got = take(stream, 7)
    later = resume(case.stream(), through_json(stream.position()))
    print(json.dumps([got + take(later, 7), case.read(14)]))
