"""What differs, cannot be resumed or has no position is said, never worked around."""

import itertools
import logging
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ckpt
from ckpt.resume import Batches, Stream
from ckpt.resume._fingerprint import compare_fingerprints

from . import _sources
from ._sources import Case, Counter, quiet, resume, take, through_json


def fingerprint(source: Any, **options: Any) -> dict[str, Any]:
    with quiet():
        return Stream(source, process=0, processes=1, **options).fingerprint()


def batches(**options: Any) -> Any:
    defaults: Any = {"seed": 0, "batch_size": 4}
    return Batches(_sources.take_batch, **(defaults | options))


CHANGES: dict[str, tuple[Any, Any, list[str]]] = {
    "Batches seed": (batches, {"seed": 1}, ["seed: expected 0 (saved), found 1"]),
    "Batches batch size": (
        *(batches, {"batch_size": 8}, ["batch_size: expected 4 (saved), found 8"]),
    ),
    "Batches name": (
        *(batches, {"name": "c4"}, ["name: expected None (saved), found 'c4'"]),
    ),
    "grain DataLoader seed": (
        _sources.grain_loader,
        {"seed": 4},
        [
            "sampler: expected 'IndexSampler(num_records=20, shuffle=True, "
            "num_epochs=1, seed=3)' (saved), found 'IndexSampler(num_records=20, "
            "shuffle=True, num_epochs=1, seed=4)'"
        ],
    ),
    "grain DataLoader batch size": (
        _sources.grain_loader,
        {"batch": 5},
        ["batch_size: expected 4 (saved), found 5"],
    ),
    "grain Dataset seed": (
        *(_sources.grain_dataset, {"seed": 6}),
        ["seeds: expected [5] (saved), found [6]"],
    ),
    "grain Dataset batch size": (
        *(_sources.grain_dataset, {"batch": 5}),
        ["batch_size: expected 4 (saved), found 5"],
    ),
    "grain Dataset source": (
        *(_sources.grain_dataset, {"length": 24}),
        ["records: expected 20 (saved), found 24"],
    ),
    "torchdata seed": (
        *(_sources.torch_loader, {"seed": 2}),
        ["generator_seed: expected 1 (saved), found 2"],
    ),
    "torchdata batch size": (
        *(_sources.torch_loader, {"batch": 5}),
        ["batch_size: expected 4 (saved), found 5"],
    ),
    "torchdata sampler seed": (
        *(_sources.torch_distributed, {"seed": 2}),
        ["sampler_seed: expected 1 (saved), found 2"],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_line_names_what_of_a_pipeline_was_changed(name: str) -> None:
    make, change, lines = CHANGES[name]
    saved = fingerprint(make())
    assert compare_fingerprints(saved, fingerprint(make())) == []
    assert compare_fingerprints(saved, fingerprint(make(**change))) == lines


def test_tables_and_their_shuffles_are_told_apart() -> None:
    table = _sources.table()
    other = table.select(range(1, 20))
    lines = compare_fingerprints(fingerprint(table), fingerprint(other))
    assert [line.split(":")[0] for line in lines] == ["records", "fingerprint"]
    rows = _sources.rows_of_table()
    seeds = [rows.shuffle(seed=seed, buffer_size=1) for seed in (1, 2)]
    lines = compare_fingerprints(*map(fingerprint, seeds))
    assert [line.split(":")[0] for line in lines] == ["shuffles"]


def test_what_the_user_says_is_compared_for_every_source() -> None:
    saved = fingerprint(Counter(), seed=1, batch_size=8, name="web")
    now = fingerprint(Counter(), seed=2, batch_size=16)
    assert compare_fingerprints(saved, now) == [
        "name: expected 'web' (saved), found None",
        "seed: expected 1 (saved), found 2",
        "batch_size: expected 8 (saved), found 16",
    ]


def test_fingerprints_are_equal_on_all_hosts() -> None:
    for make in (
        *(_sources.grain_loader, _sources.grain_dataset, _sources.grain_elastic),
        *(_sources.grain_iter_dataset, _sources.torch_distributed),
    ):
        with quiet():
            one, two = (
                Stream(make(host, 2, 4), process=host, processes=2).fingerprint()
                for host in range(2)
            )
        assert one == two
        assert one["batch_size"] == (4 if make is _sources.grain_elastic else 8)


def test_a_batch_size_that_the_source_contradicts_is_refused() -> None:
    stream = Stream(
        _sources.grain_dataset(1, 2, 4), batch_size=4, process=1, processes=2
    )
    with pytest.raises(ValueError, match=r"expected batch_size=8, .* found 4"):
        stream.fingerprint()


@pytest.mark.parametrize("change", [{"batch": 5}, {"length": 24}])
def test_a_changed_grain_pipeline_is_not_resumed_at_another_sample(change: Any) -> None:
    case = Case(_sources.grain_dataset, {})
    stream = case.stream()
    assert take(stream, 3) == case.read(3)
    changed = Case(lambda: _sources.grain_dataset(**change), {})
    if "batch" in change:
        with pytest.raises(
            ckpt.DataMismatch, match=r"12 samples .* whole batches of 5"
        ):
            resume(changed.stream(), stream.position())
    else:
        lines = compare_fingerprints(
            stream.fingerprint(), changed.stream().fingerprint()
        )
        assert lines == ["records: expected 20 (saved), found 24"]


def test_another_kind_of_source_is_refused() -> None:
    stream = Stream([1, 2, 3])
    with pytest.raises(ckpt.DataMismatch, match=r"of kind rows .*, found .* iterator"):
        resume(Stream(Counter()), stream.position())


def test_what_a_source_raises_at_its_state_is_told() -> None:
    stream = Case(_sources.grain_loader, {}).stream()
    take(stream, 2)
    with pytest.raises(ckpt.DataMismatch, match="Sampler in checkpoint does not match"):
        resume(
            Case(lambda: _sources.grain_loader(seed=4), {}).stream(), stream.position()
        )


@pytest.mark.parametrize("wrong", [{}, [], {"state": 3}, None, {"kind": "rows"}])
def test_what_is_no_position_is_refused(wrong: Any) -> None:
    with pytest.raises(ckpt.DataMismatch, match="expected the position of a"):
        Stream([1]).restored([wrong], process=0, processes=1)
    with pytest.raises(ckpt.DataMismatch, match="found none"):
        Stream([1]).restored([], process=0, processes=1)


class Forgetful(Counter):
    """Starts again whatever state is set."""

    def set_state(self, state: Any) -> None:
        self.number = 0 if state["at"][0] else self.number


class Frozen(Counter):
    """Goes on, but says for ever where it was set."""

    told: Any = None

    def get_state(self) -> Any:
        return super().get_state() if self.told is None else self.told

    def set_state(self, state: Any) -> None:
        super().set_state(state)
        self.told = state


class Stuck(Frozen):
    """Goes on, and says for ever where it began."""

    def set_state(self, state: Any) -> None:
        self.told = Counter().get_state()
        self.number = state["at"][0]


@pytest.mark.parametrize(
    ("kind", "good", "what"),
    [(Forgetful, 0, "starts again"), (Frozen, 0, "stays"), (Stuck, 1, "stays")],
)
def test_a_source_that_does_not_go_on_is_found_out(
    kind: Any, good: int, what: str
) -> None:
    stream = Stream(kind())
    take(stream, 5)
    later = resume(Stream(kind()), through_json(stream.position()))
    assert take(later, good) == [5, 6][:good]
    with pytest.raises(ckpt.DataMismatch, match=f"found that it {what}"):
        next(later)


def test_a_torch_loader_that_was_iterated_before_goes_on_all_the_same() -> None:
    case = Case(_sources.torch_loader, {})
    stream = case.stream()
    take(stream, 3)
    used = case.stream()
    take(used, 1)
    assert take(resume(used, stream.position()), 2) == case.read(5)[3:]


def test_the_rows_that_a_shuffle_buffer_loses_are_warned_of() -> None:
    shuffled = _sources.rows_of_table().shuffle(seed=1, buffer_size=8)
    with pytest.warns(UserWarning, match="loses up to 8 rows"):
        Stream(shuffled.batch(2))


def test_nodes_that_restart_are_warned_of_and_found_out() -> None:
    with pytest.warns(UserWarning, match="pass it restart_on_stop_iteration=False"):
        stream = Stream(_sources.torch_nodes())
    take(stream, 5)
    with pytest.warns(UserWarning, match="restart_on_stop_iteration"):
        later = resume(stream, stream.position())
    with pytest.raises(ckpt.DataMismatch, match="stays where it is"):
        take(later, 1)


@pytest.mark.parametrize(
    ("package", "source", "old", "new"),
    [
        ("torchdata", _sources.torch_loader, "0.10.1", "0.11"),
        ("datasets", _sources.rows_of_table, "5.0.0", "5.1"),
    ],
)
def test_versions_that_were_seen_to_resume_wrongly_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, package: str, source: Any, old: str, new: str
) -> None:
    made = source()
    Stream(made)
    monkeypatch.setattr(sys.modules[package], "__version__", old)
    with pytest.warns(UserWarning, match=f"{package} {old} .*: use {package}>={new}"):
        Stream(made)


def numbers() -> Iterator[int]:
    yield from itertools.count()


def torch_plain() -> Any:
    return _sources.need("torch.utils.data").DataLoader(range(4))


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (numbers, "make each batch a function of its number, ckpt.resume.Batches"),
        (lambda: iter([1]), "ckpt.resume.Batches"),
        (lambda: map(abs, [1]), "ckpt.resume.Batches"),
        (torch_plain, "use torchdata.stateful_dataloader.StatefulDataLoader"),
        (lambda: 3, "found builtins.int"),
        (lambda: "text", "found builtins.str"),
        (lambda: {"x": 1}, "found builtins.dict"),
        (lambda: None, "found builtins.NoneType"),
    ],
)
def test_what_has_no_position_is_refused_with_advice(make: Any, advice: str) -> None:
    with pytest.raises(TypeError, match="expected a grain DataLoader or") as caught:
        Stream(make())
    assert advice in str(caught.value)


def test_a_state_that_is_no_plain_value_is_named() -> None:
    class Odd(Counter):
        def get_state(self) -> Any:
            return {"a": [1, {"b": object()}]}

    with pytest.raises(TypeError, match=r"found builtins.object at state.a\[1\].b"):
        Stream(Odd()).position()
    with pytest.raises(TypeError, match="Python objects at state"):
        Stream(numbers_of(np.array([None]))).position()


def numbers_of(state: Any) -> Any:
    class Odd(Counter):
        def get_state(self) -> Any:
            return state

    return Odd()


def test_an_iterator_that_ends_ends_the_stream() -> None:
    stream = Stream(Counter(2))
    assert [*stream] == [0, 1]
    assert (stream.batches, stream.epoch) == (2, 0)
    with pytest.raises(StopIteration):
        next(stream)


def test_a_source_that_is_empty_ends_the_stream() -> None:
    class Empty(Counter):
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    case: Any = Empty(0)
    assert [*Stream(case)] == []
    assert [*Stream([], batch_size=4, seed=1)] == []


def test_rows_that_hosts_cannot_share_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="found 5 for 2"):
        next(Stream([1, 2], batch_size=5, elastic=False, process=0, processes=2))


@pytest.fixture(autouse=True)
def _quiet_datasets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="datasets")
