"""Scripts by which shells complete the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any, cast

SHELLS = ("bash", "zsh", "tcsh")
_FILES = frozenset(("path", "other", "source", "target", "out", "mirror", "dir"))


def print_script(parser: argparse.ArgumentParser, shell: str) -> int:
    """Print the script that completes a parser's program; return the exit status.

    Commands, flags and their choices are completed, and files where a path is wanted.
    """
    try:
        import shtab
    except ImportError:
        text = "ckpt: completion needs shtab: pip install 'ckpt-jax[nice]'"
        print(text, file=sys.stderr)
        return 2
    for action in _actions(parser):
        if action.dest in _FILES:
            cast("Any", action).complete = shtab.FILE
    print(shtab.complete(parser, shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        yield action
        if isinstance(action.choices, dict):
            for inner in cast("dict[str, Any]", action.choices).values():
                yield from _actions(inner)
