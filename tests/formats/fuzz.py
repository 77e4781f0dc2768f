"""`scripts/fuzz [--minutes 10]`: changed files of every peer, opened and read.

Whatever the bytes, what comes back is values or a CkptError, within a second and a
little memory, and no module is imported that was not there. An input that does
otherwise is kept, with the seed that makes it again.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import ckpt
from tests.formats.bare import SETS, list_sets

SECONDS = 1.0
"""What one input may take, of this process's own time."""

GROWTH = 200 << 20
"""What all inputs together may add to the memory of the process."""

_EDGES = (b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\xff" * 8, b"\x00" * 8, b"..", b"/")


def list_files(name: str) -> list[Path]:
    """Return the files of a set, smallest first."""
    files = [path for path in (SETS / name).rglob("*") if path.is_file()]
    return sorted(files, key=lambda path: (path.stat().st_size, path))


def change(data: bytes, chosen: random.Random) -> bytes:
    """Return bytes that differ in some places: flipped, cut, doubled or replaced."""
    raw = bytearray(data)
    for _ in range(chosen.choice((1, 1, 1, 2, 4, 16))):
        at = chosen.randrange(len(raw) + 1)
        match chosen.randrange(7):
            case 0 if at < len(raw):
                raw[at] ^= 1 << chosen.randrange(8)
            case 1 if at < len(raw):
                raw[at] = chosen.randrange(256)
            case 2:
                del raw[at:]
            case 3:
                del raw[at : at + chosen.randrange(1, 64)]
            case 4:
                raw[at:at] = raw[at : at + chosen.randrange(1, 64)]
            case 5:
                other = chosen.randrange(len(raw) + 1)
                raw[at : at + 8] = raw[other : other + 8]
            case _:
                edge = chosen.choice(_EDGES)
                raw[at : at + len(edge)] = edge
    return bytes(raw)


def read_all(folder: Path) -> str:
    """Open, read and verify what lies in a folder; say how that ended."""
    try:
        found = ckpt.open(folder)
        for path in found:
            np.asarray(found[path][...])
        ckpt.verify(found)
    except ckpt.CkptError as error:
        return type(error).__name__
    return "values"


def list_inputs(seed: int) -> Iterator[tuple[str, Path, int]]:
    """Yield set, file and seed of one input after another, for ever."""
    chosen = random.Random(seed)
    names = [(name, list_files(name)) for name in list_sets()]
    while True:
        name, files = chosen.choice(names)
        yield name, chosen.choice(files), chosen.getrandbits(32)


def run(seconds: float, *, seed: int, kept: Path) -> tuple[Counter[str], list[str]]:
    """Read changed files for some time; return how that ended, and what was wrong."""
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as work:
        for name in list_sets():
            shutil.copytree(SETS / name, Path(work, name))
            read_all(Path(work, name))
        modules = set(sys.modules)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        end = time.monotonic() + seconds
        for name, file, number in list_inputs(seed):
            if time.monotonic() > end:
                break
            target = Path(work, name, file.relative_to(SETS / name))
            data = file.read_bytes()
            target.write_bytes(change(data, random.Random(number)))
            said = f"{name}/{file.relative_to(SETS / name)} with seed {number}"
            begun = time.process_time()
            signal.alarm(60)
            try:
                ends[read_all(Path(work, name))] += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                wrong.append(f"{said}: {''.join(traceback.format_exception(error))}")
            finally:
                signal.alarm(0)
            spent = time.process_time() - begun
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before
            if spent > SECONDS:
                wrong.append(f"{said}: {spent:.1f} s")
            if grown > GROWTH:
                wrong.append(f"{said}: {grown >> 20} MiB more memory")
                end = 0.0
            if more := set(sys.modules) - modules:
                wrong.append(f"{said}: imported {', '.join(sorted(more)[:5])}")
                modules |= more
            if wrong and said in wrong[-1]:
                kept.mkdir(parents=True, exist_ok=True)
                shutil.copy(target, kept / f"{name}-{target.name}-{number}")
            target.write_bytes(data)
    return ends, wrong


def main() -> int:
    """Fuzz for the minutes given; 1 where something was wrong."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.getrandbits(32))
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"))
    options = parser.parse_args()
    ends, wrong = run(60 * options.minutes, seed=options.seed, kept=options.keep)
    shown = ", ".join(f"{end} {count:,}" for end, count in ends.most_common())
    print(f"seed {options.seed}: {sum(ends.values()):,} inputs: {shown}")
    for line in wrong[:20]:
        print(f"WRONG {line}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
