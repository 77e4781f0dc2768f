"""An iterator of batches that knows its position, whatever it takes them from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from .._errors import DataMismatch
from ._data import find_kind
from ._kind import Host, set_epoch
from ._known_faults import warn_of_faults
from ._moves import Unit
from ._place import place
from ._position import Position
from ._rows import RowIterator, Rows
from ._state import digest, freeze, thaw


class Stream(Iterator[Any]):
    """Batches of a loader, dataset or iterator, with a position that can be saved.

    A source that can be iterated again begins its next epoch where one ends (and is
    told its number by `set_epoch` if it has that); an iterator just ends. `seed`,
    `name` and `batch_size` (samples a batch, over all hosts) are part of the
    fingerprint, as is what the source itself tells. Sources with rows by number are
    taken row by row, or in batches of `batch_size`; with a `seed`, shuffled each epoch.

    On another number of hosts, or at another batch size, a stream goes on behind the
    samples that all hosts took, if hosts are known to take one order in turns. Where
    that cannot be known, `elastic=True` says that it is so, and that rows are the same
    on every host, each of which then gets its share. Of a position that is one number,
    `elastic` may also say what it counts: "batches", "samples" of each host, or
    "global" ones, of all hosts. `elastic=False` refuses another number of hosts.

    TypeError when the source has no position that can be read.

    >>> from ckpt.resume import Stream
    >>> stream = Stream(range(10), batch_size=2)
    >>> next(stream), next(stream)
    ([0, 1], [2, 3])
    >>> later = Stream(range(10), batch_size=2)
    >>> next(later.restored([stream.position()], process=0, processes=1))
    [4, 5]
    """

    source: Any
    batches: int

    def __init__(
        self,
        source: Any,
        *,
        seed: int | None = None,
        batch_size: int | None = None,
        name: str | None = None,
        elastic: bool | Unit | None = None,
        process: int | None = None,
        processes: int | None = None,
    ) -> None:
        """Take batches from a source, as `process` of `processes` (default: JAX's)."""
        self.source = source
        self.batches = 0
        self._seed, self._said_size, self._name = seed, batch_size, name
        self._elastic: bool | Unit | None = elastic
        self._kind = find_kind(source)
        self._inner = source
        if self._kind.name == "rows":
            self._inner = Rows(source, seed, batch_size, elastic is True)
        self._told_host = (process, processes)
        self._told: dict[str, Any] | None = None
        self._iterator: Iterator[Any] | None = None
        self._epoch = 0
        self._in_epoch = 0
        self._taken: int | None = 0
        self._first: str | None = None
        self._is_set = False
        self._state: Any = None
        self._wrong: dict[str, str] = {}
        self._unproved = 0
        warn_of_faults(source)

    @property
    def epoch(self) -> int:
        """The number of the epoch of the last batch, from 0."""
        rows = self._iterator
        return rows.epoch if isinstance(rows, RowIterator) else self._epoch

    def __next__(self) -> Any:
        """Return the next batch; DataMismatch if it shows that a resume went wrong."""
        iterator = self._begin()
        try:
            batch = next(iterator)
        except StopIteration:
            batch = self._next_epoch()
        self.batches += 1
        self._in_epoch += 1
        size = self._tell()["batch_size"]
        self._taken = None if self._taken is None or not size else self._taken + size
        self._is_set = False
        self._prove()
        return batch

    def position(self) -> dict[str, Any]:
        """Return where this stands, as plain values; TypeError for a state that is not.

        Each process has its own.
        """
        # What was set is in the state of some sources only once they have gone on.
        state = self._state if self._is_set else self._read()
        prefix = self._kind.count(self._inner, thaw(state), self._host(), self._taken)
        return Position(
            kind=self._kind.name,
            batches=self.batches,
            epoch=self._epoch,
            in_epoch=self._in_epoch,
            taken=self._taken,
            batch_size=self._tell()["batch_size"],
            prefix=None if prefix is None else (prefix.count, prefix.order),
            first=self._first,
            state=state,
        ).encode()

    def fingerprint(self) -> dict[str, Any]:
        """Return what decides which batch comes next, the same on every process.

        ValueError when `batch_size` is not what the source takes over all hosts.
        """
        return dict(self._tell())

    def restored(
        self, positions: Sequence[dict[str, Any]], *, process: int, processes: int
    ) -> Stream:
        """Return a stream of this source that goes on where those of a job stood.

        `positions` are those of all processes that saved, in order. DataMismatch when
        the source cannot be set there; it says what to do.
        """
        stream = Stream(
            self.source,
            seed=self._seed,
            batch_size=self._said_size,
            name=self._name,
            elastic=self._elastic,
            process=process,
            processes=processes,
        )
        stream._set([Position.decode(position) for position in positions])
        return stream

    def _set(self, saved: list[Position]) -> None:
        host = self._host()
        placed = place(
            *(self._kind, self._inner, saved),
            host=host,
            batch_size=self._tell()["batch_size"],
            elastic=self._elastic,
        )
        mine = saved[0 if placed.is_moved else host.process]
        self.batches, self._epoch = mine.batches, mine.epoch
        self._iterator, self._taken = placed.iterator, placed.taken
        self._is_set, self._state = True, placed.state
        self._wrong, self._unproved = {digest(placed.state): "stays where it is"}, 2
        if not placed.is_moved:
            self._in_epoch, self._first = mine.in_epoch, mine.first
            if mine.first is not None:
                self._wrong = {mine.first: "starts again"} | self._wrong

    def _host(self) -> Host:
        # Asked for only when it is needed: it starts the backend, which must not be
        # before jax.distributed.initialize.
        process, processes = self._told_host
        if process is None or processes is None:
            process, processes = jax.process_index(), jax.process_count()
            self._told_host = (process, processes)
        return Host(process, processes)

    def _tell(self) -> dict[str, Any]:
        """Return the fingerprint, which is made once."""
        if self._told is None:
            told = self._kind.describe(self._inner, self._host())
            size, said = told.get("batch_size"), self._said_size
            if size is not None and said not in (None, size):
                raise ValueError(
                    f"expected batch_size={size}, which is what the source takes over "
                    f"all hosts, found {said}"
                )
            given = {"name": self._name, "seed": self._seed, "batch_size": said}
            known = {key: value for key, value in given.items() if value is not None}
            self._told = {"kind": self._kind.name, **given, **told, **known}
        return self._told

    def _begin(self) -> Iterator[Any]:
        if self._iterator is None:
            self._iterator = self._kind.begin(self._inner, self._host())
        return self._iterator

    def _read(self) -> Any:
        return freeze(self._kind.read(self._inner, self._begin()))

    def _next_epoch(self) -> Any:
        """Begin the next epoch and return its first batch."""
        if not self._kind.repeats or not (self._in_epoch or self._unproved):
            raise StopIteration
        set_epoch(self._inner, self._epoch + 1)
        iterator = self._kind.begin(self._inner, self._host())
        batch = next(iterator)
        self._iterator = iterator
        self._epoch += 1
        self._in_epoch, self._taken, self._first = 0, 0, None
        self._unproved = 0
        return batch

    def _prove(self) -> None:
        """Check that what comes after a resume is not what came before it.

        Some sources start again without a word, some say for ever where they were. So
        the state behind the first batch must be neither the one that was set nor the
        one behind an epoch's first batch, and that behind the second must be another.
        """
        if self._in_epoch > 1 and not self._unproved:
            return
        state = digest(self._read())
        if self._in_epoch == 1:
            self._first = state
        if self._unproved and state in self._wrong:
            raise DataMismatch(
                f"expected the {self._kind.name} to go on from the saved position, "
                f"found that it {self._wrong[state]}: it cannot be resumed; use "
                f"another version of it, or ckpt.resume.Batches"
            )
        self._wrong = {state: "stays where it is"}
        self._unproved = max(self._unproved - 1, 0)


def open_stream(data: Any) -> Stream:
    """Return a Stream as it is, and anything else as a Stream's source.

    TypeError that lists what can be one.
    """
    return data if isinstance(data, Stream) else Stream(data)
