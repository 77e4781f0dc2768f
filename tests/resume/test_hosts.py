"""On another number of hosts no sample of an epoch is lost and none comes twice."""

from collections import Counter as Count
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ckpt
from ckpt.resume import Batches, Stream, shuffle_indices

from . import _sources
from ._sources import plain, quiet, through_json

LENGTH = 64
Make = Callable[[int, int, int], Stream]


def of_source(make: Callable[..., Any], **options: Any) -> Make:
    def stream(host: int, hosts: int, batch: int) -> Stream:
        source = make(host, hosts, batch, length=LENGTH)
        return Stream(source, process=host, processes=hosts, **options)

    return stream


def of_elastic(host: int, hosts: int, batch: int) -> Stream:
    source = _sources.grain_elastic(host, hosts, batch * hosts, length=LENGTH)
    return Stream(source, process=host, processes=hosts)


def of_batches(host: int, hosts: int, batch: int) -> Stream:
    size = batch * hosts

    def make(seed: int, step: int) -> Any:
        return shuffle_indices(LENGTH, size, seed=seed, step=step)[host::hosts]

    source = Batches(make, seed=4, batch_size=size)
    return Stream(source, process=host, processes=hosts)


def of_rows(host: int, hosts: int, batch: int) -> Stream:
    return Stream(
        np.arange(LENGTH),
        seed=2,
        batch_size=batch * hosts,
        elastic=True,
        process=host,
        processes=hosts,
    )


def of_single_rows(host: int, hosts: int, batch: int) -> Stream:
    assert batch
    source = range(LENGTH)
    return Stream(source, elastic=True, process=host, processes=hosts)


class Strided:
    """Every hosts-th number from one's own on, in batches, whose state is one number.

    That number counts batches, this host's samples or those of all hosts.
    """

    def __init__(self, host: int, hosts: int, batch: int, *, unit: str) -> None:
        self.share, self.batch, self.taken = (host, hosts), batch, 0
        self.unit = {"batches": hosts * batch, "own": hosts, "all": 1}[unit]

    def __iter__(self) -> "Strided":
        return self

    def __next__(self) -> Any:
        host, hosts = self.share
        size = hosts * self.batch
        self.taken += size
        return np.arange(self.taken - size, self.taken)[host::hosts] % LENGTH

    def state_dict(self) -> dict[str, Any]:
        assert self.taken % self.unit == 0
        return {"is": True, "place": [self.taken // self.unit], "name": "x"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken = state["place"][0] * self.unit


def of_strided(unit: str, says: Any) -> Make:
    def stream(host: int, hosts: int, batch: int) -> Stream:
        return Stream(
            Strided(host, hosts, batch, unit=unit),
            batch_size=batch * hosts,
            elastic=says,
            process=host,
            processes=hosts,
        )

    return stream


KINDS: dict[str, Make] = {
    "Batches": of_batches,
    "rows": of_rows,
    "grain DataLoader": of_source(_sources.grain_loader),
    "grain MapDataset": of_source(_sources.grain_dataset),
    "grain IterDataset": of_source(_sources.grain_iter_dataset),
    "grain ElasticIterator": of_elastic,
    "torchdata distributed": of_source(_sources.torch_distributed),
    "state in batches": of_strided("batches", True),
    "state in samples of a host": of_strided("own", "samples"),
    "state in samples": of_strided("all", "global"),
}
EVERY = pytest.mark.parametrize("name", KINDS)


def start(make: Make, hosts: int, batch: int) -> list[Stream]:
    with quiet():
        return [make(host, hosts, batch) for host in range(hosts)]


def go_on(old: list[Stream], make: Make, hosts: int, batch: int) -> list[Stream]:
    saved = [through_json(stream.position()) for stream in old]
    new = start(make, hosts, batch)
    with quiet():
        return [
            stream.restored(saved, process=host, processes=hosts)
            for host, stream in enumerate(new)
        ]


def run(streams: list[Stream], steps: int) -> list[int]:
    """Return the samples of all hosts, step by step."""
    with quiet():
        got = [plain(next(stream)) for _ in range(steps) for stream in streams]
    return np.ravel(got).tolist()


def once_each(samples: list[int]) -> bool:
    return Count(samples) == Count(range(LENGTH))


@EVERY
def test_an_epoch_on_four_two_and_one_hosts_has_every_sample_once(name: str) -> None:
    make = KINDS[name]
    streams = start(make, 4, 2)
    got = run(streams, 3)
    streams = go_on(streams, make, 2, 4)
    got += run(streams, 2)
    streams = go_on(streams, make, 2, 4)
    got += run(streams, 1)
    streams = go_on(streams, make, 1, 8)
    got += run(streams, 1)
    assert [stream.batches for stream in streams] == [7]
    streams = go_on(streams, make, 4, 2)
    got += run(streams, 1)
    assert once_each(got)


@EVERY
def test_the_batch_of_a_host_may_stay_while_that_of_all_changes(name: str) -> None:
    make = KINDS[name]
    streams = start(make, 4, 4)
    got = run(streams, 1)
    streams = go_on(streams, make, 2, 4)
    got += run(streams, 2)
    streams = go_on(streams, make, 2, 8)
    got += run(streams, 1)
    streams = go_on(streams, make, 1, 4)
    got += run(streams, 4)
    assert once_each(got)


@EVERY
def test_hosts_may_change_between_epochs(name: str) -> None:
    make = KINDS[name]
    streams = start(make, 2, 4)
    first = run(streams, 8)
    if name == "grain DataLoader":
        # Its sampler ends with the epoch, and the next one begins like the first.
        assert once_each(first)
    streams = go_on(streams, make, 4, 2)
    streams = go_on(streams, make, 4, 2)
    assert once_each(first)
    assert once_each(run(streams, 8))


def test_single_rows_are_shared_by_any_number_of_hosts() -> None:
    streams = start(of_single_rows, 4, 1)
    got = run(streams, 5)
    streams = go_on(streams, of_single_rows, 1, 1)
    got += run(streams, 4)
    streams = go_on(streams, of_single_rows, 2, 1)
    assert got + run(streams, 20) == list(range(LENGTH))


def test_what_does_not_divide_is_refused_with_its_numbers() -> None:
    streams = start(of_batches, 2, 3)
    run(streams, 3)
    with pytest.raises(ckpt.DataMismatch) as caught:
        go_on(streams, of_batches, 2, 4)
    assert str(caught.value) == (
        "expected the 18 samples that were taken to be whole batches of 8, found a "
        "rest of 2: choose a number of hosts and a batch size that divide 18"
    )


@pytest.mark.parametrize("options", [{}, {"elastic": False}])
def test_hosts_whose_order_is_not_known_do_not_change(options: dict[str, Any]) -> None:
    def make(host: int, hosts: int, batch: int) -> Stream:
        source = Strided(host, hosts, batch, unit="own")
        return Stream(source, batch_size=8, process=host, processes=hosts, **options)

    streams = start(make, 4, 2)
    run(streams, 3)
    with pytest.raises(
        ckpt.DataMismatch, match="4 hosts with batch_size 8 for 2 with 8"
    ):
        go_on(streams, make, 2, 4)


@pytest.mark.parametrize("unit", ["own", "all"])
def test_a_number_that_may_count_two_things_is_not_guessed(unit: str) -> None:
    streams = start(of_strided(unit, True), 1, 4)
    run(streams, 3)
    with pytest.raises(ckpt.DataMismatch) as caught:
        go_on(streams, of_strided(unit, True), 2, 2)
    assert str(caught.value) == (
        "expected to know what the position 12 counts, found that it may be samples or "
        "global: pass that as elastic= to ckpt.resume.Stream "
        '("samples": those of each host, "global": those of all hosts)'
    )


def test_a_number_that_counts_something_else_is_refused() -> None:
    streams = start(of_strided("own", "batches"), 4, 4)
    run(streams, 3)
    with pytest.raises(ckpt.DataMismatch, match="position 12 of 4 hosts to count batc"):
        go_on(streams, of_strided("own", "batches"), 2, 8)


def test_hosts_that_took_different_amounts_do_not_change() -> None:
    streams = start(of_batches, 2, 2)
    run(streams, 2)
    next(streams[1])
    with pytest.raises(ckpt.DataMismatch, match="all hosts to have taken as much"):
        go_on(streams, of_batches, 1, 4)


def shuffle_each_host(host: int, hosts: int, batch: int, length: int) -> Any:
    grain = _sources.need("grain")
    order = grain.MapDataset.source(_sources.records(length))[host::hosts]
    return order.shuffle(seed=3).batch(batch)


def cut_in_parts(host: int, hosts: int, batch: int, length: int) -> Any:
    grain = _sources.need("grain")
    part = slice(host * length // hosts, (host + 1) * length // hosts)
    return grain.MapDataset.source(_sources.records(length))[part].batch(batch)


def filter_rows(host: int, hosts: int, batch: int, length: int) -> Any:
    grain = _sources.need("grain")
    order = grain.MapDataset.source(_sources.records(length))[host::hosts]
    return order.to_iter_dataset().filter(lambda x: x > 5).batch(batch)


def sample_in_parts(host: int, hosts: int, batch: int, length: int) -> Any:
    grain = _sources.need("grain.python")
    share = grain.ShardOptions(host, hosts, drop_remainder=True)
    return _sources.grain_loader(host, hosts, batch, length, shard_options=share)


@pytest.mark.parametrize(
    "make", [shuffle_each_host, cut_in_parts, filter_rows, sample_in_parts]
)
@pytest.mark.parametrize("hosts", [(2, 1), (1, 2)])
def test_grain_hosts_with_orders_of_their_own_do_not_change(
    make: Callable[..., Any], hosts: tuple[int, int]
) -> None:
    before, after = hosts
    streams = start(of_source(make), before, 4)
    run(streams, 2)
    with pytest.raises(ckpt.DataMismatch):
        go_on(streams, of_source(make), after, 4)


def test_rows_of_each_host_s_own_do_not_change() -> None:
    def make(host: int, hosts: int, batch: int) -> Stream:
        rows = range(host, LENGTH, hosts)
        return Stream(rows, batch_size=batch * hosts, process=host, processes=hosts)

    streams = start(make, 2, 4)
    assert once_each(run(streams, 8))
    with pytest.raises(ckpt.DataMismatch, match="elastic=True"):
        go_on(streams, make, 1, 8)
    streams = start(make, 1, 4)
    with pytest.raises(ckpt.DataMismatch, match="elastic=True"):
        go_on(streams, make, 2, 2)
