"""The fault campaigns in full size; prints a line of figures for each."""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from tests._harness.crashpoint import Mode
from tests._harness.forkserver import ForkServer
from tests._harness.jobs import JobServer
from tests.faults import _flips
from tests.faults._power import OPERATIONS, UNSAFE, cut_power
from tests.faults._races import race_for_a_step, race_on_a_run
from tests.faults._reuse import race as race_reusing, sweep_beside
from tests.faults._sweeps import (
    MODULES,
    first_save,
    overwriting,
    pruning,
    run_sweep,
    second_save,
)
from tests.jobs._kills import How, strike_saves
from tests.jobs._matrix import MODULES as JOB_MODULES, run_matrix
from tests.jobs._reuse import STOPPED, STOPS, stop_beside
from tests.jobs._trees import KINDS
from tests.resume._soak import MODULES as SOAK_MODULES, soak as strike_training
from tests.stores._campaign import stores
from tests.stores._drains import drains

Line = tuple[str, str, tuple[str, ...]]
"""What was done, its figures, and complaints."""


def in_memory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir="/dev/shm")


def sweep(modes: tuple[Mode, ...]) -> Iterator[Line]:
    saves = (first_save, second_save, overwriting)
    kinds = [(make, more) for make in saves for more in ((), ("wide", "zstd"))]
    with ForkServer(*MODULES, devices=2) as server:
        for mode in modes:
            for make, more in kinds:
                with in_memory() as folder:
                    work = make(Path(folder), more=more)
                    found = run_sweep(server, work, mode, Path(folder))
                name = f"{mode}, {make.__name__} {' '.join(more)}".rstrip()
                yield name, str(found), found.complaints
            with in_memory() as folder:
                found = run_sweep(server, pruning(Path(folder)), mode, Path(folder))
            yield f"{mode}, pruning", str(found), found.complaints


def kill() -> Iterator[Line]:
    return sweep(("kill", "torn", "short"))


def errors() -> Iterator[Line]:
    return sweep(("eio", "enospc", "full"))


def power() -> Iterator[Line]:
    for filesystem in ("ext4", "xfs"):
        with in_memory() as folder:
            found = cut_power(
                OPERATIONS,
                Path(folder),
                filesystem=filesystem,
                subsets=4,
                thorough=True,
            )
        complaints = tuple(failure.complaint for failure in found.failures)
        figures = f"{found.images} power cuts, {len(complaints)} complaints"
        yield filesystem, figures, complaints
        with in_memory() as folder:
            found = cut_power(UNSAFE, Path(folder), filesystem=filesystem)
        figures = f"{found.images} power cuts, {len(found.failures)} lose a save"
        missed = () if found.failures else ("no loss was noticed",)
        yield f"{filesystem}, without fsync", figures, missed


def damage() -> Iterator[Line]:
    for codec in (None, "zstd"):
        with in_memory() as folder:
            run = Path(folder) / "run"
            _flips.make_checkpoint(run, codec=codec)
            kinds = {
                "1,000 bit flips": _flips.flips(run, count=1000),
                "cut, longer, deleted": _flips.losses(run),
                "swapped files": _flips.swaps(run),
            }
            if codec is None:
                # Compressed, no two chunks of these trees are of one size.
                kinds["swapped chunks"] = _flips.chunk_swaps(run)
            for name, damages in kinds.items():
                found = _flips.do_damages(run, damages)
                wrong = found.silent + found.unreported
                yield f"{name}, codec {codec}", str(found), wrong


def races() -> Iterator[Line]:
    with ForkServer(*MODULES) as server, in_memory() as folder:
        found = race_for_a_step(server, Path(folder), rounds=20)
        yield "6 writers x 20 rounds", str(found), found.complaints
        found = race_on_a_run(server, Path(folder), saves=200)
        yield "200 saves beside a pruner, two readers", str(found), found.complaints


def jobs() -> Iterator[Line]:
    shapes = [(processes, devices) for processes in (1, 2, 4) for devices in (1, 2, 4)]
    with JobServer(*JOB_MODULES) as server:
        for kind in (kind for kind in KINDS if kind != "tiny"):
            with in_memory() as folder:
                found = run_matrix(
                    server,
                    Path(folder),
                    saved_by=shapes,
                    restored_by=shapes,
                    kinds=[kind],
                    ways=("relay", "replicate"),
                )
            yield f"{kind}, 9 x 9 jobs", str(found), found.complaints
        hows: tuple[How, ...] = ("kill", "stop")
        for how in hows:
            with in_memory() as folder:
                struck = strike_saves(server, Path(folder), how, instants=20)
            yield f"{how} one of three at 20 instants", str(struck), struck.complaints
        with in_memory() as folder:
            struck = strike_saves(
                server, Path(folder), "kill", instants=20, saver="save_seed_async"
            )
        yield "kill in a background save", str(struck), struck.complaints


def reuse() -> Iterator[Line]:
    saved = [{1: 1, 2: 2}, {1: 1, 2: 2, 3: 3}]
    pruned = [{1: 1, 2: 2}, {2: 2}]
    both = [*saved, *pruned, {2: 2, 3: 3}, {3: 3}]
    save, prune = ("save", [3]), ("prune", [])
    modes: tuple[Mode, ...] = ("kill", "eio", "enospc")
    with ForkServer(*MODULES) as server:
        for mode in modes:
            for struck, beside, legal in (
                (save, None, saved),
                (prune, None, pruned),
                (save, prune, both),
                (prune, save, both),
            ):
                with in_memory() as folder:
                    found = sweep_beside(
                        server,
                        Path(folder),
                        killed=struck,
                        beside=beside,
                        legal=legal,
                        mode=mode,
                    )
                name = f"{mode}, {struck[0]} beside {beside[0] if beside else 'none'}"
                yield name, str(found), found.complaints
        with in_memory() as folder:
            raced = race_reusing(server, Path(folder), saves=60)
        yield "60 saves beside two prunes", str(raced), raced.complaints
    with JobServer(*JOB_MODULES) as jobs_server:
        for name, (stopped, other) in STOPS.items():
            with in_memory() as folder:
                raced = stop_beside(
                    jobs_server,
                    Path(folder),
                    stopped=stopped,
                    beside=other,
                    legal=STOPPED,
                    stride=2,
                )
            yield f"stopped: {name}", str(raced), raced.complaints


def soak() -> Iterator[Line]:
    with JobServer(*SOAK_MODULES) as server, in_memory() as folder:
        found = strike_training(server, Path(folder), strikes=60, seed=5)
    yield "60 kills and preemptions of one training", str(found), found.complaints


CAMPAIGNS: dict[str, Callable[[], Iterator[Line]]] = {
    "kill": kill,
    "errors": errors,
    "power": power,
    "damage": damage,
    "races": races,
    "jobs": jobs,
    "stores": stores,
    "drains": drains,
    "soak": soak,
    "reuse": reuse,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(CAMPAIGNS))
    names: list[str] = parser.parse_args().names or list(CAMPAIGNS)
    if unknown := set(names) - set(CAMPAIGNS):
        parser.error(f"expected {', '.join(CAMPAIGNS)}, found {', '.join(unknown)}")
    # A terminated campaign unwinds too, and so unmounts what it has mounted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    failed = 0
    for name in names:
        start = time.monotonic()
        for what, figures, complaints in CAMPAIGNS[name]():
            seconds = time.monotonic() - start
            print(f"{name:7} {what}: {figures} [{seconds:.0f} s]", flush=True)
            for complaint in complaints[:5]:
                print(f"        {complaint}", flush=True)
            failed += len(complaints)
            start = time.monotonic()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
