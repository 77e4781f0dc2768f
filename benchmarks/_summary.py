"""Medians of the records, and the table that shows them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks._campaign import Record
from benchmarks._cases import describe_case, find_case

MIB = 1 << 20
GIB = 1 << 30

# TensorStore and safetensors may map a file: system calls then read next to nothing.
_MAPPED_BELOW = 0.02


@dataclass(frozen=True, slots=True)
class Summary:
    """One operation of one contender over the measured rounds.

    Times and bytes are medians; `added_bytes` is the largest, since it is a bound.
    `process_*` has the median of each process of a job.
    """

    medium: str
    case: str
    contender: str
    operation: str
    rounds: int
    seconds: float
    fastest: float
    slowest: float
    cpu_seconds: float
    added_bytes: int
    read_bytes: float
    device_read_bytes: float
    stored_bytes: float
    process_read_bytes: list[float] = field(default_factory=list[float])
    process_written_bytes: list[float] = field(default_factory=list[float])


def summarize_records(records: Iterable[Record]) -> list[Summary]:
    """One summary for each medium, case, operation and contender; round 0 is out."""
    groups: dict[tuple[str, str, str, str], list[Record]] = {}
    for record in records:
        if record.round:
            key = (record.medium, record.case, record.operation, record.contender)
            groups.setdefault(key, []).append(record)
    return [_summarize(group) for _, group in sorted(groups.items())]


def _summarize(group: Sequence[Record]) -> Summary:
    first = group[0]
    seconds = [record.seconds for record in group]
    return Summary(
        medium=first.medium,
        case=first.case,
        contender=first.contender,
        operation=first.operation,
        rounds=len(group),
        seconds=statistics.median(seconds),
        fastest=min(seconds),
        slowest=max(seconds),
        cpu_seconds=statistics.median(record.cpu_seconds for record in group),
        added_bytes=max(record.added_bytes for record in group),
        read_bytes=statistics.median(record.read_bytes for record in group),
        device_read_bytes=statistics.median(x.device_read_bytes for x in group),
        stored_bytes=statistics.median(record.stored_bytes for record in group),
        process_read_bytes=_each_median(x.process_read_bytes for x in group),
        process_written_bytes=_each_median(x.process_written_bytes for x in group),
    )


def _each_median(rows: Iterable[Sequence[int]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def largest_share(of_processes: Sequence[float]) -> float | None:
    """The largest process's bytes over an even share; None for none or one process."""
    total = sum(of_processes)
    if len(of_processes) < 2 or not total:
        return None
    return max(of_processes) * len(of_processes) / total


def read_amplification(summary: Summary) -> float | None:
    """Bytes read over bytes stored; None when unknown, as for a mapped tmpfs file."""
    for count in (summary.read_bytes, summary.device_read_bytes):
        if count > _MAPPED_BELOW * summary.stored_bytes:
            return count / summary.stored_bytes
    return None


def format_table(summaries: Sequence[Summary], *, quick: bool) -> str:
    """A section for each medium, case and operation, its fastest contender first."""
    blocks: list[str] = []
    sections = list(dict.fromkeys((x.medium, x.case) for x in summaries))
    for medium, case in sections:
        title = describe_case(find_case(case), quick=quick)
        blocks.append(f"{medium} {title}")
        blocks.append(_HEADER)
        inside = [x for x in summaries if (x.medium, x.case) == (medium, case)]
        for operation in dict.fromkeys(x.operation for x in inside):
            rows = [x for x in inside if x.operation == operation]
            ours = next((x.seconds for x in rows if x.contender == "ckpt"), None)
            rows.sort(key=lambda x: x.seconds)
            blocks.extend(_format_row(row, ours=ours) for row in rows)
        blocks.extend(_format_shares(row) for row in inside if _is_shared(row))
        blocks.append("")
    return "\n".join(blocks)


def _is_shared(row: Summary) -> bool:
    return len(row.process_written_bytes) > 1


def _format_shares(row: Summary) -> str:
    """What each process of a job wrote, or read."""
    wrote = row.operation == "save"
    shares = row.process_written_bytes if wrote else row.process_read_bytes
    numbers = " ".join(f"{share / MIB:.1f}" for share in shares)
    verb = "wrote" if wrote else "read"
    return (
        f"  {row.operation:<19} {row.contender:<15} MiB each process {verb}: {numbers}"
    )


_HEADER = (
    f"  {'operation':<19} {'contender':<15} {'median s':>9} {'fastest':>8}"
    f" {'slowest':>8} {'GiB/s':>6} {'CPU s':>7} {'RSS +MiB':>9}"
    f" {'read/st.':>8} {'x ckpt':>7}"
)


def _format_row(row: Summary, *, ours: float | None) -> str:
    amplification = read_amplification(row)
    reads = row.operation.startswith("restore")
    moved = reads or row.operation == "save"
    speed = f"{row.stored_bytes / GIB / row.seconds:.2f}" if moved else ""
    read = ""
    if reads:
        read = "mapped" if amplification is None else f"{amplification:.2f}"
    # What a save costs the steps beside it may be lost in their noise.
    ratio = ""
    if ours is not None and ours > 0 and row.seconds > 0:
        ratio = f"{row.seconds / ours:.2f}"
    return (
        f"  {row.operation:<19} {row.contender:<15} {row.seconds:>9.4f}"
        f" {row.fastest:>8.4f} {row.slowest:>8.4f} {speed:>6} {row.cpu_seconds:>7.3f}"
        f" {row.added_bytes / MIB:>9.1f} {read:>8} {ratio:>7}"
    )
