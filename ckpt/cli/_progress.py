"""A bar on the terminal for long work: rich's where it is installed, else a line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def show_progress(text: str) -> Generator[Callable[[int, int], None] | None]:
    """Yield what takes the bytes done and all bytes; None when nobody looks on."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
    except ImportError:
        yield _print_line(text)
        print(file=sys.stderr)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_line(text: str) -> Callable[[int, int], None]:
    shown = -1

    def update(done: int, total: int) -> None:
        nonlocal shown
        percent = done * 100 // total if total else 100
        if percent != shown:
            shown = percent
            line = f"\r{text}: {percent:3} % of {total:,} bytes"
            print(line, end="", file=sys.stderr, flush=True)

    return update
