"""Run the examples in a package's docstrings: `python -m tests._harness.examples NAME`.

In a process of its own, since an example may register what another test registers too.
"""

import doctest
import importlib
import pkgutil
import sys


def run_examples(package: str) -> tuple[int, int]:
    """Return how many examples of a package's modules failed, and were tried."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    folders = importlib.import_module(package).__path__
    modules = [found.name for found in pkgutil.walk_packages(folders, f"{package}.")]
    failed = tried = 0
    for name in [package, *modules]:
        if name.endswith("__main__"):
            continue
        result = doctest.testmod(importlib.import_module(name), optionflags=flags)
        failed, tried = failed + result.failed, tried + result.attempted
    return failed, tried


if __name__ == "__main__":
    failed, tried = run_examples(sys.argv[1])
    print(f"{failed} of {tried} examples failed")
    sys.exit(failed > 0 or tried == 0)
