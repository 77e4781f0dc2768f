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
        line = _Line(text)
        try:
            yield line.update
        finally:
            line.end()
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


class _Line:
    """One line that is written again for each percent."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.shown = -1

    def update(self, done: int, total: int) -> None:
        percent = done * 100 // total if total else 100
        if percent != self.shown:
            self.shown = percent
            line = f"\r{self.text}: {percent:3} % of {total:,} bytes"
            print(line, end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.shown >= 0:
            print(file=sys.stderr)
