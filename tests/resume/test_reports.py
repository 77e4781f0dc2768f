"""A report says the same to people, notebooks, scrapers and machines."""

import json
import re
from pathlib import Path

import pytest

from ckpt._store import open_store
from ckpt.cli import main
from ckpt.resume import Goodput, goodput, prometheus
from tests.resume._logs import event, write_log
from tests.resume._trainers import KINDS

EVENTS = [
    event(0, "start"),
    event(30, "resume", step=0, seconds=10),
    *(event(40 + 10 * n, "step", step=n) for n in range(1, 9)),
    event(125, "save", step=8, stall=5),
    event(130, "saved", step=8),
]
LABEL = r'[a-z_]+="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"(ckpt_[a-z_]+)\{{{LABEL}(?:,{LABEL})?\}} (\S+)")


@pytest.fixture
def run(memory_run: Path) -> str:
    write_log(open_store(memory_run), 10**12, EVENTS)
    return str(memory_run)


def report_of_odd_name() -> Goodput:
    run = open_store('memory://"a"<b>\\$x$')
    if not run.list("events"):
        write_log(run, 10**12, EVENTS)
    return goodput(run.url)


def test_report_is_a_table_with_shares(run: str) -> None:
    lines = str(goodput(run)).splitlines()
    assert lines[0].startswith("goodput 61.5% of 2 min 10 s: 8 steps, 1 start, 0 fail")
    rows = {line.split()[0]: line.split()[-2:] for line in lines[1:-1]}
    assert list(rows) == list(KINDS)
    assert rows["productive"] == ["61.54%", "#" * 15]
    assert lines[-1].split() == ["wall", "2", "min", "10", "s"]


def test_report_in_a_notebook_is_html_without_foreign_tags() -> None:
    html = report_of_odd_name()._repr_html_()
    assert "&lt;b>" in html
    assert "<b>" not in html
    assert html.count("<tr>") == 1 + len(KINDS)


def test_prometheus_text_keeps_to_the_format_whatever_the_run_is_called() -> None:
    report = report_of_odd_name()
    text = prometheus(report)
    assert text.endswith("\n")
    found: dict[tuple[str, str], float] = {}
    typed: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            typed[name] = kind
        elif not line.startswith("# HELP "):
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            name, label, kind, value = sample.groups()
            assert re.sub(r"\\(.)", r"\1", label) == report.url
            found[name, kind or ""] = float(value)
    assert {name for name, _ in found} == set(typed)
    assert {k for n, k in found if n == "ckpt_seconds"} == set(KINDS)
    assert found["ckpt_goodput_ratio", ""] == report.goodput
    assert found["ckpt_seconds", "productive"] == 80
    assert found["ckpt_last_commit_timestamp_seconds", ""] == 1e9 + 130
    assert found["ckpt_last_event_timestamp_seconds", ""] == 1e9 + 130
    assert typed["ckpt_failures_total"] == "counter"
    assert prometheus(report.url) == text


def test_prometheus_has_no_control_characters(tmp_path: Path) -> None:
    odd = tmp_path / "a\x1b[31m\nb\x7f"
    write_log(open_store(odd), 10**12, EVENTS)
    assert all(c.isprintable() or c == "\n" for c in prometheus(odd))
    assert "a\ufffd[31m\\nb\ufffd" in prometheus(odd)


def test_command_says_it_as_text_json_and_prometheus(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = goodput(run)
    assert main(["goodput", run]) == 0
    assert capsys.readouterr().out == f"{report}\n"
    assert main(["goodput", run, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == report.to_json()
    assert (told["productive"], told["wall"], told["steps"]) == (80.0, 130.0, 8)
    assert main(["goodput", run, "--prometheus"]) == 0
    assert capsys.readouterr().out == prometheus(report)


def test_command_returns_2_where_there_are_no_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["goodput", str(tmp_path)]) == 2
    assert "expected event logs" in capsys.readouterr().err


def test_plot_is_written_as_a_picture(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image", reason="needs the extra plot")
    # matplotlib would read what stands between two dollars as a formula.
    run = open_store(tmp_path / "$\\bad$")
    write_log(run, 10**12, EVENTS)
    for began in range(1, 4):
        back = [event(200 * began + n, "step", step=4 + n) for n in range(9)]
        write_log(run, 10**12 + began, back)
    goodput(run.url).plot(tmp_path / "run.png")
    pixels = image.imread(tmp_path / "run.png")
    assert pixels.shape[0] > 400
    assert pixels.shape[1] > 1000
    # Blue for what was kept, red for what was lost.
    for colour in ((42, 120, 194), (209, 73, 91)):
        near = abs(pixels[..., :3] * 255 - colour).max(axis=-1) < 3
        assert near.sum() > 1000
