"""Each command says what the public functions say, for people and for machines."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P
from safetensors.numpy import save_file

import ckpt
from ckpt.cli import main

PEERS = Path(__file__).parents[1] / "data" / "peers"
Text = pytest.CaptureFixture[str]


@pytest.fixture
def run(memory_run: Path) -> str:
    mesh = jax.make_mesh((2,), ("data",), (jax.sharding.AxisType.Auto,))
    w = jax.device_put(jnp.zeros((512, 512)), NamedSharding(mesh, P("data")))
    for step in (3, 7):
        state = {"w": w, "tie": w, "n": step}
        ckpt.save(state, mesh, memory_run, step=step, metrics={"loss": step / 2})
    return str(memory_run)


def ask(capsys: Text, *arguments: str) -> tuple[int, Any]:
    status = main([*arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


def damage(run: str) -> str:
    directory = Path(ckpt.open(run).url)
    files = [p for p in directory.rglob("*") if p.is_file()]
    victim = max(files, key=lambda p: p.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[1000] ^= 1
    victim.write_bytes(data)
    return str(victim.relative_to(directory))


def test_ls_lists_the_steps_with_time_size_and_metrics(run: str, capsys: Text) -> None:
    status, rows = ask(capsys, "ls", run)
    assert status == 0
    assert [(r["step"], r["leaves"], r["bytes"]) for r in rows] == [
        (3, 2, 512 * 512 * 4),
        (7, 2, 512 * 512 * 4),
    ]
    assert [r["metrics"] for r in rows] == [{"loss": 1.5}, {"loss": 3.5}]
    assert main(["ls", run]) == 0
    text = capsys.readouterr().out
    assert "loss=3.5" in text
    assert rows[0]["saved"] in text


def test_ls_goes_on_behind_a_damaged_step_and_returns_1(run: str, capsys: Text) -> None:
    record = Path(run) / "steps" / "3.json"
    record.write_bytes(record.read_bytes().replace(b"ckpt-commit", b"ckpt-cammit"))
    status, rows = ask(capsys, "ls", run)
    assert status == 1
    assert [("error" in r, r["step"]) for r in rows] == [(True, 3), (False, 7)]


def test_show_lists_the_leaves_that_globs_match(run: str, capsys: Text) -> None:
    status, rows = ask(capsys, "show", run, "[tw]*", "--step", "3")
    assert status == 0
    assert [(r["shape"], r["dtype"]) for r in rows] == [([512, 512], "float32")]
    assert main(["show", run]) == 0
    assert "P('data') (data=2)" in capsys.readouterr().out


def test_verify_returns_1_and_names_the_damaged_object(run: str, capsys: Text) -> None:
    assert ask(capsys, "verify", run)[1]["ok"] is True
    name = damage(run)
    status, report = ask(capsys, "verify", run)
    assert (status, report["ok"], len(report["damaged"])) == (1, False, 1)
    assert name in report["damaged"][0]
    assert main(["verify", run, "--step", "3"]) == 0
    assert "step 3 is ok" in capsys.readouterr().out


def test_plan_says_what_each_process_reads(run: str, capsys: Text) -> None:
    status, plan = ask(capsys, "plan", run, "--mesh", "data=4", "--processes", "2")
    assert (status, plan["mesh"], plan["stored"]) == (0, {"data": 4}, 512 * 512 * 4)
    assert [p[0] for p in plan["processes"]] == [0, 1]


def test_plan_prints_ten_changed_layouts_and_counts_the_rest(
    memory_run: Path, capsys: Text
) -> None:
    mesh = jax.make_mesh((2,), ("data",), (jax.sharding.AxisType.Auto,))
    x = jax.device_put(np.zeros(2, np.float32), NamedSharding(mesh, P("data")))
    ckpt.save([x + n for n in range(13)], mesh, memory_run)
    assert main(["plan", str(memory_run), "--mesh", "model=2"]) == 0
    text = capsys.readouterr().out
    assert text.count("changed: ") == 10
    assert "(+3 more changed)" in text


def test_diff_returns_1_where_values_differ(run: str, capsys: Text) -> None:
    old, new = (ckpt.open(run, step=s).url for s in (3, 7))
    status, rows = ask(capsys, "diff", old, new)
    assert (status, [(r["path"], r["kind"]) for r in rows]) == (1, [("n", "value")])
    assert ask(capsys, "diff", old, old) == (0, [])


def test_ls_and_show_say_what_another_library_wrote(capsys: Text) -> None:
    for name, found in (("ox_v0_manager", [1, 2]), ("flax_msgpack/state.msgpack", [0])):
        status, rows = ask(capsys, "ls", str(PEERS / name))
        assert (status, [r["step"] for r in rows]) == (0, found)
        assert rows[0]["format"] == name[:2].replace("ox", "orbax").replace(
            "fl", "flax"
        )
        assert main(["ls", str(PEERS / name)]) == 0
        assert f"({rows[0]['format']})" in capsys.readouterr().out
        assert main(["show", str(PEERS / name)]) == 0
        assert capsys.readouterr().out.startswith(f"Checkpoint({rows[0]['format']}")


def test_ls_says_that_nothing_is_there(tmp_path: Path, capsys: Text) -> None:
    assert main(["ls", str(tmp_path / "typo"), "--json"]) == 0
    found = capsys.readouterr()
    assert (found.out, "nothing has that name" in found.err) == ("[]\n", True)


def test_plan_takes_what_a_restore_would_need(capsys: Text) -> None:
    arguments = ["plan", str(PEERS / "flax_msgpack"), "--mesh", "data=4"]
    assert main(arguments) == 2
    assert 'cast="lossy"' in capsys.readouterr().err
    assert ask(capsys, *arguments, "--cast", "lossy")[0] == 0
    status, plan = ask(capsys, *arguments, "--select", "params/dense/kernel")
    assert (status, plan["stored"]) == (0, 12 * 8 * 4)


def test_export_renames(tmp_path: Path, capsys: Text) -> None:
    source, out = str(PEERS / "ds_zero2_dp2"), str(tmp_path / "out")
    arguments = ["export", source, out, "--select", "*/fp32", "--rename"]
    assert main([*arguments, "fp32"]) == 2
    assert "expected --rename as OLD=NEW" in capsys.readouterr().err
    assert ask(capsys, *arguments, "*/fp32=*")[0] == 0
    assert "a.weight" in ckpt.open(out)


def test_warnings_are_one_message_without_control_characters(
    tmp_path: Path, capsys: Text
) -> None:
    for name in ("model", "a\x1b]0;owned\x07"):
        save_file({"w": np.zeros(2)}, tmp_path / f"{name}.safetensors")
    assert main(["show", str(tmp_path)]) == 0
    text = capsys.readouterr().err
    assert text.startswith("ckpt: not all in ")
    assert all(line.isprintable() for line in text.splitlines())


@pytest.mark.parametrize(
    "arguments",
    [["show", "RUN", "--step", "4"], ["plan", "RUN", "--mesh", "x"], ["verify", "no"]],
)
def test_what_cannot_be_done_returns_2_and_says_why(
    run: str, arguments: list[str], capsys: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(run).parent)
    assert main([a.replace("RUN", run) for a in arguments]) == 2
    found = capsys.readouterr()
    assert (found.out, found.err[:15]) == ("", "ckpt: expected ")


def test_wrong_arguments_exit_with_2(capsys: Text) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["polish"])
    assert "invalid choice" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["ls", "show"])
def test_hostile_names_do_not_reach_the_terminal(
    memory_run: Path, capsys: Text, command: str
) -> None:
    evil = "\x1b[2J\x9b31m\n\r\u202e"
    state = {evil: "\x1b]0;owned\x07"}
    ckpt.save(state, None, memory_run, metrics={evil: 1, "note": evil})
    assert main([command, str(memory_run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


def test_the_demo_without_its_extra_says_so_in_one_line(
    capsys: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_demo", "_model", "_train"):
        monkeypatch.delitem(sys.modules, f"ckpt.cli.{name}", raising=False)
        monkeypatch.delattr(f"ckpt.cli.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "flax", None)
    assert main(["demo"]) == 2
    text = capsys.readouterr().err
    assert text == "ckpt: the demo needs flax: pip install 'ckpt-jax[demo]'\n"


def test_copy_copies_all_steps_or_one(run: str, tmp_path: Path, capsys: Text) -> None:
    status, rows = ask(capsys, "copy", run, str(tmp_path / "all"))
    assert status == 0
    assert [row["step"] for row in rows] == ckpt.steps(tmp_path / "all") == [3, 7]
    assert [row["digest"] for row in rows] == [
        ckpt.open(run, step=step).digest for step in (3, 7)
    ]
    assert main(["copy", run, str(tmp_path / "one"), "--step", "3"]) == 0
    assert "step 3 is in" in capsys.readouterr().out
    assert ckpt.steps(tmp_path / "one") == [3]
    ckpt.save({"n": 1}, None, tmp_path / "one", step=7)
    assert main(["copy", run, str(tmp_path / "one")]) == 2
    assert "another commit" in capsys.readouterr().err
    assert main(["copy", run, str(tmp_path / "one"), "--overwrite"]) == 0
    assert ckpt.diff(run, tmp_path / "one").changes == ()


def test_drain_copies_what_is_owed(tmp_path: Path, capsys: Text) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    far.write_text("no folder")
    for step in (1, 2):
        with pytest.warns(UserWarning, match="saved without"):
            ckpt.save({"n": step}, None, near, step=step, mirror=far)
        assert main(["drain", str(near), str(far)]) == 2
    assert "Not a directory" in capsys.readouterr().err
    far.unlink()
    status, told = ask(capsys, "drain", str(near), str(far), "--keep-local", "1")
    assert (status, told) == (0, {"copied": [1, 2]})
    assert (ckpt.steps(near), ckpt.steps(far)) == ([2], [1, 2])
    assert main(["drain", str(near), str(far)]) == 0
    assert "none were left" in capsys.readouterr().out


def test_long_work_shows_a_bar_on_a_terminal(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Text
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for name, rich in (("bar", True), ("line", False)):
        if not rich:
            monkeypatch.setitem(sys.modules, "rich.progress", None)
        assert main(["copy", run, str(tmp_path / name)]) == 0
        told = capsys.readouterr()
        assert "step 7 is in" in told.out
        assert "copy to" in told.err
        assert "100" in told.err or rich


def test_bash_completes_commands_flags_and_files(tmp_path: Path, capsys: Text) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "my-run").mkdir()

    def complete(*words: str) -> list[str]:
        """Return what bash offers for the last of the words."""
        given = " ".join(map(repr, ("ckpt-jax", *words)))
        text = (
            f"source ./script; COMP_WORDS=({given}); COMP_CWORD={len(words)}; "
            '_shtab_ckpt_jax; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "-c", text], cwd=tmp_path, capture_output=True, check=True
        )
        return done.stdout.decode().split()

    assert complete("ver") == ["verify"]
    assert complete("completion", "z") == ["zsh"]
    assert "--mesh" in complete("plan", "--m")
    assert complete("ls", "my") == ["my-run"]


def test_other_shells_have_scripts_too(capsys: Text) -> None:
    for shell in ("zsh", "tcsh"):
        assert main(["completion", shell]) == 0
        assert "goodput" in capsys.readouterr().out
