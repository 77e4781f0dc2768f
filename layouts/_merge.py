"""Proof that the parts of a checkpoint, together, hold each cell exactly once.

The processes that write do not see each other's parts: before the commit, one process
merges them and compares what was written with what was planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._errors import InvalidLayout, LayoutError, show, show_path
from ._expect import expect_fields, expect_int, expect_list
from ._leaf import Chunked, Leaf
from ._manifest import Manifest, check_part_bytes
from ._name import part_name
from ._pack import PackRow, piece_sizes, place_pieces
from ._part import (
    PACK_FIELDS,
    chunk_counts,
    compare_columns,
    parse_body,
    parse_columns,
    parse_crcs,
    parse_files,
    parse_lengths,
    parse_references,
)
from ._reused import Reused, merge_reused

Numbers = NDArray[np.int64]
_NONE = np.array([], np.int64)


class _Cells(NamedTuple):
    """All cells of a tree, numbered through in the order of the leaves.

    `first` has the number of each leaf's first cell, and of all; `sizes` the chunks of
    each object and the bytes of each packed piece; `planned` the writers.
    """

    first: Numbers
    chunked: NDArray[np.bool_]
    sizes: Numbers
    planned: Numbers


class _Claim(NamedTuple):
    """What one part says: its process, its cells, its files, and what it reused.

    `reused` are its other directories and the leaves with objects there, and how many.
    """

    process: int
    cells: Numbers
    files: frozenset[str]
    reused: Reused


def check_parts(manifest: Manifest, parts: Iterable[tuple[int, bytes]]) -> None:
    """Prove that (process, bytes) of all parts are what the manifest implies.

    Each has the bytes and SHA-256 of its reference (a manifest made of what the
    processes claim will do, before it is written); each describes cells of its process
    in order, with all that a reader will compare; and together they have every cell
    of every leaf exactly once. Takes O(n log n) of the cells; parts are not kept.

    Raises LayoutError, naming the part and the leaf.
    """
    cells = _list_cells(manifest.leaves)
    claims: dict[int, _Claim] = {}
    for process, data in parts:
        expect_int(process, "a process with a part", below=manifest.processes)
        if process in claims:
            raise InvalidLayout(f"expected {part_name(process)} once, found it twice")
        check_part_bytes(manifest, process, data)
        try:
            claims[process] = _read_claim(manifest, cells, process, data)
        except LayoutError as error:
            raise type(error)(f"{error} - in {part_name(process)}") from None
    absent = [p for p in range(manifest.processes) if p not in claims]
    if absent:
        raise InvalidLayout(
            f"expected the parts of {manifest.processes} processes, "
            f"found none of {show(absent)}"
        )
    _prove_coverage(manifest.leaves, cells, list(claims.values()))
    _check_distinct_files(list(claims.values()))
    _check_reused(manifest, [claims[p].reused for p in range(manifest.processes)])


def _list_cells(leaves: Sequence[Leaf]) -> _Cells:
    counts: list[int] = []
    sizes: list[Numbers] = []
    planned: list[Numbers] = []
    for leaf in leaves:
        found = _NONE
        if isinstance(leaf.store, Chunked):
            found = chunk_counts(leaf)
        elif leaf.store:
            found = piece_sizes(leaf)
        writers = leaf.store.writers if leaf.store else None
        if writers and writers.length != len(found):
            raise InvalidLayout(
                f"expected writers of {len(found)} cells, found those of "
                f"{writers.length} - at `{show_path(leaf.path)}`"
            )
        counts.append(len(found))
        sizes.append(found)
        planned.append(writers.spelled if writers else np.zeros_like(found))
    return _Cells(
        np.cumsum([0, *counts]),
        np.array([isinstance(leaf.store, Chunked) for leaf in leaves], np.bool_),
        np.concatenate([_NONE, *sizes]),
        np.concatenate([_NONE, *planned]),
    )


def _read_claim(manifest: Manifest, cells: _Cells, process: int, data: bytes) -> _Claim:
    body = parse_body(manifest, process, data)
    columns = parse_columns(manifest, body)
    objects = _numbers(manifest.leaves, cells, "objects", columns, "object")
    counts = cells.sizes[objects].tolist()
    parse_crcs(columns["crc32c"], sum(counts))
    parse_lengths(manifest, columns["leaf"], counts, columns["lengths"])
    packs = expect_fields(body["packs"], PACK_FIELDS, "the packs")
    pieces = _numbers(manifest.leaves, cells, "packs", packs, "piece")
    sizes: list[int] = cells.sizes[pieces].tolist()
    places = list(place_pieces(sizes, limit=manifest.pack_bytes))
    expected = [
        packs["leaf"],
        packs["piece"],
        [pack for pack, _ in places],
        [offset for _, offset in places],
        sizes,
    ]
    named = dict(zip(PackRow._fields, expected, strict=True))
    compare_columns(manifest, "packs", packs, named)
    parse_crcs(packs["crc32c"], len(sizes))
    files = frozenset(file.name.casefold() for file in parse_files(body["files"]))
    _, sources = parse_references(manifest, body, columns, len(objects))
    leaves = [leaf for leaf, s in zip(columns["leaf"], sources, strict=True) if s]
    reused = Reused(tuple(set(sources) - {""}), tuple(set(leaves)), (len(leaves),))
    return _Claim(process, np.concatenate([objects, pieces]), files, reused)


def _numbers(
    leaves: Sequence[Leaf], cells: _Cells, what: str, columns: dict[str, Any], name: str
) -> Numbers:
    """Return the numbers of the cells that two columns name, which must ascend."""
    leaf = _column(columns, what, "leaf", below=len(leaves))
    cell = _column(columns, what, name, below=1 << 62)
    if len(leaf) != len(cell):
        raise InvalidLayout(
            f"expected columns of {len(leaf)} {what}, found {len(cell)} in {name!r}"
        )
    first, last = cells.first[leaf], cells.first[leaf + 1]
    wrong = (cells.chunked[leaf] != (what == "objects")) | (cell >= last - first)
    numbers = first + cell
    wrong[1:] |= numbers[1:] <= numbers[:-1]
    if wrong.any():
        row = int(wrong.argmax())
        path = leaves[int(leaf[row])].path
        raise InvalidLayout(
            f"expected the {what} of leaves in order, each once, found {name} "
            f"{cell[row]} in row {row} - at `{show_path(path)}`"
        )
    return numbers


def _column(columns: dict[str, Any], what: str, name: str, *, below: int) -> Numbers:
    where = f"numbers in the {what}' column {name!r}"
    found = expect_list(columns[name], where)
    sound = set(map(type, found)) <= {int}
    if found and not (sound and min(found) >= 0 and max(found) < below):
        for number in found:
            expect_int(number, where, below=below)
    return np.array(found, np.int64)


def _prove_coverage(
    leaves: Sequence[Leaf], cells: _Cells, claims: Sequence[_Claim]
) -> None:
    """Refuse cells that several parts have, that none has, or that another should."""
    numbers = np.concatenate([claim.cells for claim in claims])
    process = np.repeat(
        [claim.process for claim in claims], [len(claim.cells) for claim in claims]
    )
    order = np.argsort(numbers, kind="stable")
    numbers, process = numbers[order], process[order]
    twice = np.flatnonzero(numbers[1:] == numbers[:-1])
    if twice.size:
        at = int(twice[0])
        one, other = part_name(int(process[at])), part_name(int(process[at + 1]))
        cell = _show_cell(leaves, cells, int(numbers[at]))
        raise InvalidLayout(
            f"expected {cell} in one part, found it in {one} and {other}"
        )
    if len(numbers) != len(cells.planned):
        # Ascending and distinct: the first that is greater than its place has a gap.
        gaps = np.flatnonzero(numbers != np.arange(len(numbers)))
        gap = int(gaps[0]) if gaps.size else len(numbers)
        raise InvalidLayout(
            f"expected {part_name(int(cells.planned[gap]))} with "
            f"{_show_cell(leaves, cells, gap)}, found it in no part"
        )
    foreign = np.flatnonzero(process != cells.planned)
    if foreign.size:
        at = int(foreign[0])
        raise InvalidLayout(
            f"expected {part_name(int(cells.planned[at]))} alone with "
            f"{_show_cell(leaves, cells, at)}, found {part_name(int(process[at]))}"
        )


def _show_cell(leaves: Sequence[Leaf], cells: _Cells, number: int) -> str:
    leaf = int(np.searchsorted(cells.first, number, side="right")) - 1
    kind = "object" if cells.chunked[leaf] else "piece"
    cell = number - int(cells.first[leaf])
    return f"{kind} {cell} of `{show_path(leaves[leaf].path)}`"


def _check_distinct_files(claims: Sequence[_Claim]) -> None:
    owners: dict[str, int] = {}
    for claim in claims:
        for name in claim.files:
            other = owners.setdefault(name, claim.process)
            if other != claim.process:
                raise InvalidLayout(
                    f"expected {name} in one part, found it in {part_name(other)} and "
                    f"{part_name(claim.process)}"
                )


def _check_reused(manifest: Manifest, parts: Sequence[Reused]) -> None:
    if manifest.reused is not None and merge_reused(parts) != manifest.reused:
        raise InvalidLayout(
            f"expected what the parts reuse, {show(merge_reused(parts).to_json())}, "
            f"found {show(manifest.reused.to_json())} in the manifest"
        )
