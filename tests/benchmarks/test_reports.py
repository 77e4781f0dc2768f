from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks._acceptance import Figure, format_figures, judge_summaries
from benchmarks._campaign import Record
from benchmarks._cases import select_cases
from benchmarks._overlap import COPY, LOST, RETURN, STALLED
from benchmarks._summary import (
    Summary,
    format_table,
    largest_share,
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


def test_a_share_is_even_when_all_processes_move_the_same() -> None:
    assert largest_share([5.0, 5.0, 5.0, 5.0]) == 1.0
    assert largest_share([9.0, 1.0]) == 1.8
    assert largest_share([3.0]) is None
    assert largest_share([0.0, 0.0]) is None


def test_each_process_of_a_job_has_its_own_median() -> None:
    rows = [(9, 9), (1, 5), (3, 4), (2, 6)]
    records = [
        replace(_record(n), process_written_bytes=list(row))
        for n, row in enumerate(rows)
    ]
    (summary,) = summarize_records(records)
    assert summary.process_written_bytes == [2.0, 5.0]
    text = format_table([replace(summary, case="j2")], quick=True)
    assert "MiB each process wrote" in text


def test_a_job_is_judged_by_its_peer_its_shares_and_its_reads() -> None:
    restored = _summary(case="j4", operation="restore 4->2", read=104.0)
    figures = judge_summaries(
        [
            _summary(case="j4", process_written_bytes=[60.0, 20.0, 20.0, 20.0]),
            replace(restored, process_read_bytes=[50.0, 54.0]),
            replace(restored, contender="orbax v0", seconds=4.0),
        ],
        quick=True,
    )
    found = {x.label: (x.value, x.verdict) for x in figures}
    assert found == {
        "tmpfs (j4) save: largest / even share written": (2.0, "MISSED"),
        "tmpfs (j4) restore 4->2: ckpt / orbax v0": (0.25, "met"),
        "tmpfs (j4) restore 4->2: largest / even share read": (54 / 52, "met"),
        "tmpfs (j4) restore 4->2: bytes read / stored": (1.04, "met"),
    }


def test_a_background_save_is_judged_by_a_copy_and_by_its_peer() -> None:
    ours = {COPY: 0.2, RETURN: 0.1, LOST: 0.3, STALLED: 0.4}
    theirs = {COPY: 0.1, RETURN: 0.2, LOST: 0.2, STALLED: 0.4}
    rows = [
        _summary(case="s1", operation=operation, seconds=seconds, contender=name)
        for name, parts in (("ckpt", ours), ("orbax v0", theirs))
        for operation, seconds in parts.items()
    ]
    found = {x.label: x for x in judge_summaries(rows, quick=True)}
    assert len(found) == 3
    returned = found[f"tmpfs (s1) {RETURN}: / plain copy"]
    assert (returned.value, returned.verdict) == (0.5, "met")
    lost = found[f"tmpfs (s1) {LOST}: ckpt / orbax v0"]
    assert (round(lost.value, 9), lost.verdict) == (1.5, "MISSED")
    assert found[f"tmpfs (s1) {STALLED}: ckpt / orbax v0"].value == 1.0


def test_steps_that_lost_nothing_are_no_worse_than_the_peers() -> None:
    rows = [
        _summary(case="s1", operation=LOST, seconds=-0.2),
        _summary(case="s1", operation=LOST, seconds=-0.1, contender="orbax v0"),
    ]
    (figure,) = judge_summaries(rows, quick=True)
    assert (figure.value, figure.verdict) == (1.0, "met")
    assert format_table(rows, quick=True).count("-0.2000")


def test_a_letter_selects_its_cases_and_an_unknown_one_is_refused() -> None:
    assert [x.name for x in select_cases("j")] == ["j4", "j2", "j1"]
    assert [x.name for x in select_cases("s2")] == ["s2"]
    with pytest.raises(ValueError, match="found 'z'"):
        main(["--cases", "z"])


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
    process_written_bytes: Sequence[float] = (),
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
        process_written_bytes=list(process_written_bytes),
    )
