"""The command line: one thin layer over the public functions."""

from ._main import main as main

__all__ = ["main"]
