"""Which kind of source something is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from . import _datasets, _grain, _grain_dataset, _rows, _stateful, _torch
from ._batches import Batches
from ._kind import Kind, comes_from, has

SUPPORTED = (
    "a grain DataLoader or Dataset, a torchdata StatefulDataLoader, a Hugging Face "
    "dataset, a sequence or array of samples, ckpt.resume.Batches, or an iterator or "
    "loader with get_state and set_state, or state_dict and load_state_dict"
)


def find_kind(source: Any) -> Kind:
    """Return the kind of a source; TypeError says what to do with one of none."""
    if isinstance(source, Batches):
        return _stateful.BATCHES
    if has(source, "__next__"):
        return _find_iterator(source)
    if comes_from(source, "grain", "DataLoader"):
        return _grain.LOADER
    if comes_from(source, "grain") and has(source, "__iter__"):
        return _grain_dataset.DATASET
    if comes_from(source, "torchdata", "StatefulDataLoader"):
        return _torch.LOADER
    if comes_from(source, "datasets", "IterableDataset"):
        return _datasets.ITERABLE
    if _has_rows(source):
        return _rows.ROWS
    if has(source, "__iter__") and _stateful.has_state(source):
        return _stateful.LOADER
    if has(source, "__iter__") and _makes_stateful(source):
        return _stateful.ITERABLE
    raise TypeError(f"expected {SUPPORTED}, found {_advise(source)}")


def _find_iterator(source: Any) -> Kind:
    if comes_from(source, "grain", "ElasticIterator", "_ElasticMapDatasetIterator"):
        return _grain_dataset.ELASTIC
    if comes_from(source, "grain", "DataLoaderIterator"):
        return _grain.LOADER_ITERATOR
    if _stateful.has_state(source):
        return _stateful.ITERATOR
    raise TypeError(f"expected {SUPPORTED}, found {_advise(source)}")


def _has_rows(source: Any) -> bool:
    if isinstance(source, str | bytes):
        return False
    if comes_from(source, "datasets", "Dataset") or isinstance(source, Sequence):
        return True
    return (
        isinstance(source, np.ndarray) and cast("np.ndarray[Any, Any]", source).ndim > 0
    )


def _makes_stateful(source: Any) -> bool:
    # Asking for an iterator may start workers, as that of torch's DataLoader does.
    return not comes_from(source, "torch") and _stateful.has_state(iter(source))


def _advise(source: Any) -> str:
    name = f"{type(source).__module__}.{type(source).__qualname__}"
    if comes_from(source, "torch", "DataLoader", "_BaseDataLoaderIter"):
        return f"{name}: use torchdata.stateful_dataloader.StatefulDataLoader"
    if comes_from(source, "tensorflow"):
        return f"{name}: use grain, or ckpt.resume.Batches"
    if comes_from(source, "builtins", "generator") or has(source, "__next__"):
        return (
            f"{name}, whose position cannot be read: make each batch a function of its "
            f"number, ckpt.resume.Batches(make, seed=0) with make(seed, step)"
        )
    return name
