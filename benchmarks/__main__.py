"""The command: `python -m benchmarks [--quick] [--only NAME ...]`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._acceptance import format_figures, judge_summaries
from benchmarks._campaign import Failure, Record, plan_turns, run_turns
from benchmarks._cases import CASES, Case, describe_case, select_cases
from benchmarks._environment import describe_environment
from benchmarks._media import find_file_system, find_medium
from benchmarks._pool import Pool
from benchmarks._summary import format_table, summarize_records
from benchmarks.contenders import CONTENDERS, find_contender, why_absent

_ANSWER_SECONDS = 600.0
_BUSY_LOAD = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    if options.redraw:
        results = json.loads(options.redraw.read_text(encoding="utf-8"))
    else:
        # Leave nothing behind in memory or on the disk when stopped.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        results = _measure(options)
    _write_reports(results, out=options.out)
    return 1 if results["failures"] or results["settings"]["interrupted"] else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    names = [contender.name for contender in CONTENDERS]
    add("--quick", action="store_true", help="small trees and one round, for CI")
    add("--only", nargs="+", default=names, metavar="NAME", help=", ".join(names))
    add("--media", nargs="+", default=["tmpfs", "disk"], choices=["tmpfs", "disk"])
    add("--cases", nargs="+", metavar="CASE", help=" ".join(x.name for x in CASES))
    add("--rounds", type=int, help="measured rounds (default 7, quick 1)")
    add("--out", type=Path, default=Path("benchmark-results"), metavar="FOLDER")
    add("--seed", type=int, default=0, help="of the order of the rounds")
    add("--pause", type=float, help="seconds of rest before a part on disk")
    add(
        "--disk",
        type=Path,
        metavar="FOLDER",
        help="default: where temporary files go, or here",
    )
    add("--tmpfs", type=Path, default=Path("/dev/shm"), metavar="FOLDER")
    add("--redraw", type=Path, metavar="JSON", help="only report earlier results")
    options = parser.parse_args(arguments)
    options.only = [find_contender(name) for name in options.only]
    # An unknown name is refused before anything runs.
    options.cases = [x for name in options.cases or [] for x in select_cases(name)]
    if options.rounds is None:
        options.rounds = 1 if options.quick else 7
    if options.pause is None:
        options.pause = 0.0 if options.quick else 2.0
    if options.disk is None:
        temporary = Path(tempfile.gettempdir())
        on_disk = find_file_system(temporary) != "tmpfs"
        options.disk = temporary if on_disk else Path.cwd()
    if options.rounds < 1:
        parser.error(f"expected --rounds of at least 1, found {options.rounds}")
    return options


def _choose_cases(options: argparse.Namespace, *, medium: str) -> list[Case]:
    if options.cases:
        return options.cases
    if not options.quick:
        return list(CASES)
    # Quick mode has no time for workers with 64 devices, nor for all cases twice.
    names = "arbcdjs" if medium == "tmpfs" else "a"
    return [case for name in names for case in select_cases(name)]


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    options.out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    if load > _BUSY_LOAD:
        _say(f"the machine is busy (load {load:.1f}): expect wrong times")
    absent = {x.name: why for x in options.only if (why := why_absent(x))}
    for name, why in absent.items():
        _say(f"left out: {name} ({why})")
    media: dict[str, Any] = {}
    results: list[Record | Failure] = []
    interrupted = False
    try:
        for result in _run_media(options, media=media):
            results.append(result)
    except (KeyboardInterrupt, SystemExit):
        # Hours of rounds are worth a report when the last of them is cut short.
        interrupted = True
    records = [dataclasses.asdict(x) for x in results if isinstance(x, Record)]
    failures = [dataclasses.asdict(x) for x in results if isinstance(x, Failure)]
    return {
        "environment": describe_environment(load_before=load),
        "settings": {
            "quick": options.quick,
            "rounds": options.rounds,
            "seed": options.seed,
            "media": media,
            "absent": absent,
            "interrupted": interrupted,
        },
        "records": records,
        "failures": failures,
    }


def _run_media(
    options: argparse.Namespace, *, media: dict[str, Any]
) -> Iterator[Record | Failure]:
    present = [x for x in options.only if not why_absent(x)]
    with contextlib.ExitStack() as stack:
        log = options.out / "workers.log"
        log.unlink(missing_ok=True)
        pool = stack.enter_context(Pool(log, timeout=_ANSWER_SECONDS))
        for name in options.media:
            parent = options.tmpfs if name == "tmpfs" else options.disk
            folder = tempfile.TemporaryDirectory(dir=parent, prefix="ckpt-bench-")
            place = Path(stack.enter_context(folder)).resolve()
            # No worker may still write into the folder while it is removed.
            stack.callback(pool.stop_all)
            medium = find_medium(name, folder=place, pause=options.pause)
            media[name] = {
                "file_system": medium.file_system,
                "page_cache_dropped": medium.drops_cache,
                "pause_seconds": medium.pause,
            }
            if name == "disk" and not medium.drops_cache:
                _say("not root: the page cache stays, so disk reads come from memory")
            for case in _choose_cases(options, medium=name):
                turns = plan_turns(
                    case, contenders=present, rounds=options.rounds, seed=options.seed
                )
                title = describe_case(case, quick=options.quick)
                _say(f"{name} {title}, {len(turns)} turns")
                able = dict.fromkeys(x.contender.name for x in turns)
                pool.start(job for name in able for job in case.jobs(name))
                yield from run_turns(
                    turns, medium=medium, pool=pool, quick=options.quick, report=_say
                )
                if not options.quick:
                    pool.stop_all()


def _write_reports(results: dict[str, Any], *, out: Path) -> None:
    records = [Record(**fields) for fields in results["records"]]
    summaries = summarize_records(records)
    quick = results["settings"]["quick"]
    figures = judge_summaries(summaries, quick=quick)
    results["summaries"] = [dataclasses.asdict(summary) for summary in summaries]
    results["acceptance"] = [
        {**dataclasses.asdict(figure), "verdict": figure.verdict} for figure in figures
    ]
    text = format_table(summaries, quick=quick) + "\n" + format_figures(figures) + "\n"
    if results["settings"]["interrupted"]:
        text += "interrupted: later rounds and cases are missing\n"
    for failure in results["failures"]:
        text += (
            f"failed: {failure['medium']} ({failure['case']}) {failure['contender']}"
            f" {failure['operation']}: {failure['reason']}\n"
        )
    out.mkdir(parents=True, exist_ok=True)
    document = json.dumps(results, indent=1)
    (out / "results.json").write_text(document, encoding="utf-8")
    (out / "table.txt").write_text(text, encoding="utf-8")
    print(text, end="")
    try:
        from benchmarks._plots import draw_plots
    except ModuleNotFoundError as error:
        _say(f"no plots: {error}")
        return
    for path in draw_plots(records, summaries, out=out):
        _say(f"wrote {path}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
