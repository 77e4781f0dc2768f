"""`python -m ckpt`: demo, ls, show, verify, plan, diff, copy, export, drain ..."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

from jax.sharding import PartitionSpec

import ckpt
import pytree

from .._checkpoint import describe
from ..formats._detect import FORMATS
from ..resume import goodput, prometheus
from ._completion import SHELLS, print_script
from ._progress import show_progress


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 when a problem was found, 2 when it went wrong."""
    arguments = _parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            # Not one's own line of code, and names from files are in them too.
            warnings.showwarning = _show_warning
            warnings.simplefilter("default", UserWarning)
            return arguments.work(arguments)
    except (ckpt.CkptError, ValueError) as error:
        _complain(str(error))
        return 2
    except BrokenPipeError:
        return 0


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _complain(str(message))


def _complain(text: str) -> None:
    print(f"ckpt: {_safe(text)}", file=sys.stderr)


_VERSION = f"ckpt-jax {ckpt.__version__}"
_PATH = "a run, one checkpoint's directory, or another library's folder or file"


def _parser(program: str = "python -m ckpt") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description=f"Checkpoints of JAX trees, and of others: {FORMATS}.",
    )
    parser.add_argument("--version", action="version", version=_VERSION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, work: Any, text: str, *, paths: int = 1) -> Any:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(work=work)
        for path in ("path", "other")[:paths]:
            command.add_argument(path, help=_PATH)
        if paths:
            command.add_argument("--json", action="store_true", help="for machines")
        return command

    demo = add("demo", _demo, "train, save, be killed, resume, find a bit", paths=0)
    demo.add_argument("--dir", help="where to work (default: a temporary folder)")
    demo.add_argument("--keep", action="store_true", help="leave the folder behind")
    add("ls", _ls, "list the committed steps of a run")
    show = add("show", _show, "show the leaves of a checkpoint")
    show.add_argument("glob", nargs="*", help="only these paths, e.g. 'params/**'")
    verify = add("verify", _verify, "read every byte and report what is damaged")
    plan = add("plan", _plan, "say what a restore on a mesh would read")
    plan.add_argument("--mesh", required=True, help="e.g. data=4,model=2")
    plan.add_argument("--processes", type=int, help="how many hosts read")
    plan.add_argument("--select", action="append", help="only these paths (a glob)")
    text = "how arrays lie, e.g. 'layers.*=data,model'; no axis, or - : not cut"
    plan.add_argument("--spec", action="append", metavar="GLOB=AXES", help=text)
    plan.add_argument("--cast", choices=["lossy"], help="as restore's cast=")
    for command in (show, verify, plan):
        command.add_argument("--step", type=int, help="default: the newest")
    diff = add("diff", _diff, "compare two checkpoints, values bit by bit", paths=2)
    for side in ("left", "right"):
        diff.add_argument(f"--{side}-step", type=int, help="default: the newest")
    copy = add("copy", _copy, "copy a run's steps into another run", paths=0)
    copy.add_argument("source", help=_PATH)
    copy.add_argument("target", help="the run to copy into")
    text = "default: all (of another library's steps the newest)"
    copy.add_argument("--step", type=int, help=text)
    copy.add_argument("--overwrite", action="store_true", help="replace other commits")
    export = add("export", _export, "write safetensors files of a checkpoint", paths=0)
    export.add_argument("source", help=_PATH)
    export.add_argument("out", help="the folder for the files")
    export.add_argument("--step", type=int, help="default: the newest")
    export.add_argument("--select", action="append", help="only these paths (a glob)")
    text = "give paths other names, e.g. '*/fp32=*'"
    export.add_argument("--rename", action="append", metavar="OLD=NEW", help=text)
    text = "the most of one file (default: 5000000000)"
    export.add_argument(
        "--max-shard-bytes", type=int, default=5_000_000_000, metavar="N", help=text
    )
    export.add_argument("--overwrite", action="store_true", help="replace a set")
    drain = add("drain", _drain, "finish what saves with mirror= have left", paths=0)
    drain.add_argument("path", help="the run that was saved to")
    drain.add_argument("mirror", help="where its steps are copied")
    drain.add_argument("--keep-local", type=int, default=2, help="default: 2")
    report = add("goodput", _goodput, "say what a run's time went to", paths=0)
    report.add_argument("path", help="a run, as ckpt.Run was given it")
    form = report.add_mutually_exclusive_group()
    form.add_argument("--prometheus", action="store_true", help="for a scraper")
    form.add_argument("--json", action="store_true", help="for machines")
    for command in (copy, drain, export):
        command.add_argument("--json", action="store_true", help="for machines")
    shells = add("completion", _complete, "print a script for a shell", paths=0)
    shells.add_argument("shell", choices=SHELLS)
    return parser


def _complete(arguments: Any) -> int:
    return print_script(_parser("ckpt-jax"), arguments.shell)


def _safe(text: str) -> str:
    """Return text with control characters escaped: names come from files."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def _print(arguments: Any, value: Any, text: str) -> None:
    print(json.dumps(_plain(value)) if arguments.json else _safe(text))


def _plain(value: Any) -> Any:
    """Return a value without the numbers that JSON lacks: they become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in cast("list[Any]", value)]
    return value


def _demo(arguments: Any) -> int:
    try:
        from ._demo import run_demo
    except ImportError as error:
        text = f"ckpt: the demo needs {error.name}: pip install 'ckpt-jax[demo]'"
        print(text, file=sys.stderr)
        return 2
    return run_demo(arguments.dir, keep=arguments.keep)


def _ls(arguments: Any) -> int:
    rows: list[dict[str, Any]] = []
    found = _steps(arguments.path)
    for step in found:
        try:
            rows.append(_row(ckpt.open(arguments.path, step=step)))
        except ckpt.CkptError as error:
            rows.append({"step": step, "error": str(error)})
    if not found:
        try:
            rows.append(_row(ckpt.open(arguments.path)))
        except ckpt.NotFound as error:
            # No failure: a run may begin there yet.
            _complain(str(error))
    head = f"{'step':>10} {'saved (UTC)':19} {'leaves':>8} {'bytes':>16}  metrics"
    lines = [head] if rows else []
    for row in rows:
        shown = ", ".join(f"{k}={v}" for k, v in row.get("metrics", {}).items())
        # One line a step, whatever the names of its metrics hold.
        told = row.get("error") or (
            f"{_saved_or_format(row):19} {row['leaves']:>8,} {row['bytes']:>16,}  "
            f"{shown}"
        )
        lines.append(f"{row['step']:>10} {told}".rstrip().replace("\n", "\\n"))
    _print(arguments, rows, "\n".join(lines))
    return int(any("error" in row for row in rows))


def _steps(path: str) -> list[int]:
    """Return a run's steps, [] for a file, which is another library's."""
    return [] if os.path.isfile(path) else ckpt.steps(path)


def _saved_or_format(row: dict[str, Any]) -> str:
    """Return when a step was saved; other libraries do not say it."""
    return row["saved"] or ("?" if row["format"] == "ckpt" else f"({row['format']})")


def _row(found: ckpt.Checkpoint) -> dict[str, Any]:
    row = {"step": found.step, "leaves": len(found), "bytes": found.nbytes}
    told = {"saved": _saved(found), "metrics": found.metrics}
    return row | told | {"format": found.format}


def _saved(found: ckpt.Checkpoint) -> str | None:
    """Return when a save began, in UTC; None where the checkpoint says no time."""
    began = found.manifest.meta.get("began")
    if not isinstance(began, (int, float)):
        return None
    try:
        return f"{datetime.fromtimestamp(began, UTC):%Y-%m-%d %H:%M:%S}"
    except (OSError, OverflowError, ValueError):
        return None


def _show(arguments: Any) -> int:
    found = ckpt.open(arguments.path, step=arguments.step)
    chosen = pytree.compile_globs(arguments.glob or ["**"])
    leaves = [leaf for leaf in found.manifest.leaves if chosen(leaf.path)]
    if arguments.glob and not leaves:
        raise ValueError(
            f"expected globs that match a leaf, found none for "
            f"{', '.join(map(repr, arguments.glob))} - in {found.url}: leave them out "
            "to see all"
        )
    rows = [
        {"path": x.path, "kind": x.kind, "dtype": x.dtype, "shape": x.shape}
        | {"layout": describe(x), "bytes": x.nbytes}
        for x in leaves
    ]
    width = max((len(x.path) for x in leaves), default=0)
    lines = [str(found)]
    lines += [f"{x.path:<{width}} {x.nbytes:>16,}  {describe(x)}" for x in leaves]
    lines += [
        f"{a:<{width}} {'tied':>16}  {b}"
        for a, b in found.manifest.structure.ties.items()
    ]
    _print(arguments, rows, "\n".join(lines))
    return 0


def _verify(arguments: Any) -> int:
    try:
        report = ckpt.verify(arguments.path, step=arguments.step)
    except ckpt.Damaged as error:
        if arguments.json:
            # So damaged that nothing of it opens: a report all the same.
            told = {"ok": False, "step": arguments.step, "objects": 0, "bytes": 0}
            lists = {"damaged": [str(error)], "missing": [], "orphans": []}
            _print(arguments, told | lists, "")
        else:
            _complain(str(error))
        return 1
    value = {
        "ok": report.ok,
        "step": report.step,
        "objects": report.objects,
        "bytes": report.bytes,
        "damaged": [str(p) for p in report.damaged],
        "missing": [str(p) for p in report.missing],
        "orphans": report.orphans,
    }
    _print(arguments, value, str(report))
    return int(not report.ok)


def _plan(arguments: Any) -> int:
    mesh: dict[str, int] = {}
    for item in arguments.mesh.split(","):
        name, _, size = item.partition("=")
        if not size.isdigit():
            raise ValueError(f"expected --mesh as data=4,model=2, found {item!r}")
        if name in mesh:
            raise ValueError(
                f"expected --mesh with each axis once, found {name!r} twice"
            )
        mesh[name] = int(size)
    plan = ckpt.plan(
        arguments.path,
        mesh,
        step=arguments.step,
        processes=arguments.processes,
        specs=_specs(arguments.spec or []) or None,
        select=arguments.select,
        cast=arguments.cast or False,
    )
    value = {
        "step": plan.step,
        "mesh": mesh,
        "stored": plan.stored,
        "bytes": plan.bytes,
        "amplification": plan.amplification,
        "peak_host_bytes": plan.peak_host_bytes,
        "processes": [[p.process, p.bytes, p.requests] for p in plan.processes],
        "fallbacks": plan.fallbacks,
        "opening": plan.opening,
        "puts": plan.puts,
    }
    _print(arguments, value, str(plan))
    return 0


def _specs(rules: list[str]) -> dict[str, PartitionSpec]:
    """Return specs by glob; an axis that is several is written `data+model`."""
    specs: dict[str, PartitionSpec] = {}
    for rule in rules:
        glob, _, axes = rule.rpartition("=")
        if not glob:
            raise ValueError(f"expected --spec as GLOB=data,model, found {rule!r}")
        parts = [tuple(x.split("+")) for x in axes.split(",")] if axes else []
        specs[glob] = PartitionSpec(
            *(
                None if x in (("",), ("-",)) else x[0] if len(x) == 1 else x
                for x in parts
            )
        )
    return specs


def _diff(arguments: Any) -> int:
    found = ckpt.diff(
        arguments.path,
        arguments.other,
        left_step=arguments.left_step,
        right_step=arguments.right_step,
    )
    rows = [
        {"path": c.path, "kind": c.kind, "left": c.left, "right": c.right}
        | {"count": c.count, "max_abs": c.max_abs}
        for c in found.changes
    ]
    _print(arguments, rows, str(found))
    return int(bool(found))


def _copy(arguments: Any) -> int:
    with show_progress(f"copy to {_safe(arguments.target)}") as progress:
        found = ckpt.copy(
            arguments.source,
            arguments.target,
            step=arguments.step,
            overwrite=arguments.overwrite,
            progress=progress,
        )
    rows = [{"step": ck.step, "url": ck.url, "digest": ck.digest} for ck in found]
    text = "\n".join(f"step {ck.step} is in {ck.url}" for ck in found)
    _print(arguments, rows, text)
    return 0


def _export(arguments: Any) -> int:
    with show_progress(f"export to {_safe(arguments.out)}") as progress:
        names = ckpt.save_safetensors(
            arguments.source,
            arguments.out,
            step=arguments.step,
            select=arguments.select,
            rename=_rename(arguments.rename or []),
            max_shard_bytes=arguments.max_shard_bytes,
            overwrite=arguments.overwrite,
            progress=progress,
        )
    _print(arguments, {"files": names}, "\n".join(names))
    return 0


def _rename(rules: list[str]) -> dict[str, str]:
    pairs = [rule.rpartition("=") for rule in rules]
    if wrong := [new for old, _, new in pairs if not old]:
        raise ValueError(f"expected --rename as OLD=NEW, found {wrong[0]!r}")
    return {old: new for old, _, new in pairs}


def _drain(arguments: Any) -> int:
    with show_progress(f"drain to {_safe(arguments.mirror)}") as progress:
        copied = ckpt.drain(
            arguments.path,
            arguments.mirror,
            keep_local=arguments.keep_local,
            progress=progress,
        )
    shown = ", ".join(map(str, copied)) or "none were left"
    _print(arguments, {"copied": copied}, f"steps copied: {shown}")
    return 0


def _goodput(arguments: Any) -> int:
    report = goodput(arguments.path)
    if arguments.prometheus:
        # Escaped already, in the format's own way.
        print(prometheus(report), end="")
    else:
        _print(arguments, report.to_json(), str(report))
    return 0
