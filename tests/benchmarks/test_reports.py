from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks._acceptance import Figure, format_figures, judge_summaries
from benchmarks._campaign import Record
from benchmarks._summary import (
    Summary,
    format_table,
    read_amplification,
    summarize_records,
)

_MIB = 1 << 20


def test_medians_leave_the_warm_up_round_out() -> None:
    seconds = [9.0, 1.0, 4.0, 2.0, 3.0]
    records = [_record(n, seconds=x) for n, x in enumerate(seconds)]
    (summary,) = summarize_records(records)
    assert summary.rounds == 4
    assert summary.seconds == np.median(seconds[1:])
    assert (summary.fastest, summary.slowest) == (1.0, 4.0)


def test_added_memory_is_the_largest_of_the_rounds() -> None:
    records = [_record(n, added=x * _MIB) for n, x in enumerate((90, 10, 70, 20))]
    (summary,) = summarize_records(records)
    assert summary.added_bytes == 70 * _MIB


def test_reads_from_the_device_count_where_files_are_mapped() -> None:
    assert read_amplification(_summary(read=100.0)) == 1.0
    assert read_amplification(_summary(read=0.0, device=150.0)) == 1.5
    assert read_amplification(_summary(read=0.0)) is None


def test_ratios_are_those_of_the_medians() -> None:
    figures = judge_summaries(
        [_summary(seconds=1.0), _summary(seconds=4.0, contender="orbax v0")],
        quick=True,
    )
    found = {x.label: x.value for x in figures}
    assert found["tmpfs (a) save: ckpt / orbax v0"] == 0.25


def test_a_remesh_is_judged_by_the_same_mesh_restore_of_its_case() -> None:
    figures = judge_summaries(
        [
            _summary(case="d", operation="restore same", seconds=2.0, read=100.0),
            _summary(case="d", operation="restore 8x1", seconds=3.0, read=120.0),
        ],
        quick=True,
    )
    found = {x.label: (x.value, x.verdict) for x in figures}
    assert found["tmpfs (d) restore 8x1: / same mesh"][0] == 1.5
    read = found["tmpfs (d) restore 8x1: bytes read / stored"]
    assert read == (1.2, "MISSED")


def test_memory_of_a_restore_is_counted_over_the_data() -> None:
    data = 4 * 512 * 512 * 4
    restored = _summary(operation="restore same", added=data + 256 * _MIB)
    saved = _summary(added=65 * _MIB)
    figures = judge_summaries([restored, saved], quick=True)
    found = {x.label: (x.value, x.verdict) for x in figures}
    assert found["tmpfs (a) restore: memory added over the data"] == (256.0, "met")
    assert found["tmpfs (a) save: memory added"] == (65.0, "MISSED")


def test_a_figure_without_a_target_is_neither_met_nor_missed() -> None:
    text = format_figures([Figure("x", 2.0, "x", None)])
    assert text.splitlines()[1].endswith("no target")


def test_the_table_lists_the_fastest_first_and_the_ratio_to_ckpt() -> None:
    text = format_table(
        [_summary(seconds=2.0), _summary(seconds=1.0, contender="jax")], quick=True
    )
    rows = [line.split() for line in text.splitlines() if line.startswith("  save")]
    assert [row[1] for row in rows] == ["jax", "ckpt"]
    assert [row[-1] for row in rows] == ["0.50", "1.00"]


def test_the_command_writes_figures_table_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "--quick --only floor jax --media tmpfs --cases a --rounds 1 --out"
    assert main([*arguments.split(), str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    rows = {(x["contender"], x["operation"]) for x in results["summaries"]}
    assert rows == {
        (name, operation)
        for name in ("floor", "jax")
        for operation in ("save", "restore same")
    }
    table = (tmp_path / "table.txt").read_text()
    assert capsys.readouterr().out == table
    if importlib.util.find_spec("matplotlib"):
        data = (tmp_path / "times-tmpfs.png").read_bytes()
        assert data.startswith(b"\x89PNG")


def test_earlier_results_are_reported_again_without_measuring(tmp_path: Path) -> None:
    arguments = "--quick --only floor --media tmpfs --cases a --rounds 1 --out"
    main([*arguments.split(), str(tmp_path / "a")])
    main(["--redraw", str(tmp_path / "a" / "results.json"), "--out", str(tmp_path)])
    assert (tmp_path / "table.txt").read_text() == (
        tmp_path / "a" / "table.txt"
    ).read_text()


def test_a_campaign_that_is_stopped_reports_and_leaves_nothing_behind(
    tmp_path: Path, memory_run: Path
) -> None:
    memory = memory_run.parent
    arguments = "--quick --only floor --media tmpfs --cases a --rounds 100000 --out"
    command = [sys.executable, "-m", "benchmarks", *arguments.split(), str(tmp_path)]
    with subprocess.Popen(
        [*command, "--tmpfs", str(memory)], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "turns" in line:
                break
        while process.poll() is None and not list(memory.glob("*/a-floor")):
            time.sleep(0.05)
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode == 1
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["settings"]["interrupted"] is True
    assert list(memory.iterdir()) == []


def test_an_unknown_contender_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="found 'paper'"):
        main(["--only", "paper"])


def _record(number: int, *, seconds: float = 1.0, added: int = 0) -> Record:
    return Record(
        medium="tmpfs",
        case="a",
        contender="ckpt",
        operation="save",
        round=number,
        seconds=seconds,
        cpu_seconds=seconds,
        added_bytes=added,
        read_bytes=0,
        device_read_bytes=0,
        written_bytes=0,
        stored_bytes=100,
    )


def _summary(
    *,
    case: str = "a",
    contender: str = "ckpt",
    operation: str = "save",
    seconds: float = 1.0,
    added: int = 0,
    read: float = 0.0,
    device: float = 0.0,
) -> Summary:
    return Summary(
        medium="tmpfs",
        case=case,
        contender=contender,
        operation=operation,
        rounds=1,
        seconds=seconds,
        fastest=seconds,
        slowest=seconds,
        cpu_seconds=seconds,
        added_bytes=added,
        read_bytes=read,
        device_read_bytes=device,
        stored_bytes=100.0,
    )
