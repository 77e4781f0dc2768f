"""Paths as people have them: caches, links, names with spaces, clones, wrong ones."""

import hashlib
import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import serialization
from safetensors.numpy import load_file, save_file

import ckpt
from ckpt.cli import main
from ckpt.cli._progress import show_progress

PEERS = Path(__file__).parents[1] / "data" / "peers"
WEIGHTS = {"a.w": np.arange(64, dtype=np.float32).reshape(8, 8), "b": np.ones(3)}
POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    f"oid sha256:{'0123456789abcdef' * 4}\nsize 268435456\n"
)


def same(found: dict[str, Any], wanted: dict[str, Any] = WEIGHTS) -> bool:
    return found.keys() == wanted.keys() and all(
        np.array_equal(found[k], wanted[k]) for k in wanted
    )


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """A model as Hugging Face's cache has it: links into the blobs of the model."""
    model = tmp_path / "hub" / "models--org--name"
    snapshot = model / "snapshots" / "1a2b"
    for folder in (model / "blobs", model / "refs", snapshot / "sub"):
        folder.mkdir(parents=True)
    (model / "refs" / "main").write_text("1a2b")
    for file in (PEERS / "st_hub_sharded").iterdir():
        blob = f"blob{file.name.count('0')}{file.name[8:11]}"
        shutil.copy(file, model / "blobs" / blob)
        (snapshot / file.name).symlink_to(f"../../blobs/{blob}")
    save_file(WEIGHTS, model / "blobs" / "deep")
    (snapshot / "sub" / "model.safetensors").symlink_to("../../../blobs/deep")
    return snapshot


def test_a_snapshot_of_the_hugging_face_cache_opens(cached: Path) -> None:
    wanted = ckpt.restore(PEERS / "st_hub_sharded")
    index = cached / "model.safetensors.index.json"
    for path in (cached, index, cached.parents[1]):
        assert same(ckpt.restore(path), wanted)
    assert ckpt.verify(cached).ok
    assert same(ckpt.restore(cached / "sub"))
    assert same(ckpt.restore(cached / "sub" / "model.safetensors"))


@pytest.mark.parametrize(
    "target", ["../../../other/blobs/x", "../../blobs/../secret", "/etc/x", "../x"]
)
def test_a_link_out_of_the_blobs_is_refused(cached: Path, target: str) -> None:
    model = cached.parents[1]
    for place in ("secret", "snapshots/x", "../other/blobs/x"):
        (model / place).parent.mkdir(parents=True, exist_ok=True)
        save_file(WEIGHTS, model / place)
    for file in cached.glob("model*"):
        file.unlink()
    (cached / "model.safetensors").symlink_to(target)
    with pytest.raises(ckpt.Untrusted, match="link into blobs/ of the model"):
        ckpt.open(cached)


def test_a_blob_that_is_a_link_is_refused(cached: Path, tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "secret")
    blob = cached.parents[1] / "blobs" / "deep"
    blob.unlink()
    blob.symlink_to(tmp_path / "secret")
    with pytest.raises(ckpt.Untrusted, match=r"regular file, found a link"):
        ckpt.open(cached / "sub")


def test_blobs_that_are_a_link_are_refused(cached: Path) -> None:
    blobs = cached.parents[1] / "blobs"
    blobs.rename(blobs.with_name("moved"))
    blobs.symlink_to("moved")
    with pytest.raises(ckpt.CkptError):
        ckpt.restore(cached / "sub")


def test_elsewhere_a_link_is_followed_if_it_is_the_path_itself(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "real")
    folder = tmp_path / "folder"
    folder.mkdir()
    link = folder / "model.safetensors"
    link.symlink_to("../real")
    assert same(ckpt.restore(link))
    with pytest.raises(ckpt.Untrusted, match="found a link"):
        ckpt.open(folder)


def test_names_may_hold_spaces_and_other_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    file = folder / "größe (1).safetensors"
    save_file(WEIGHTS, file)
    (folder / "read me.txt").write_text("x")
    monkeypatch.chdir(folder)
    for path in (folder, file, file.name, f"./{file.name}", ".", file.as_uri()):
        assert same(ckpt.restore(path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert same(ckpt.restore(f"~/my models/{file.name}"))


@pytest.mark.parametrize(
    "path",
    [
        "dcp_single/.metadata",
        "dcp_single/__0_0.distcp",
        "ds_zero2_dp2/latest",
        "ox_v1/_CHECKPOINT_METADATA",
    ],
)
def test_a_file_of_a_checkpoint_stands_for_its_folder(path: str) -> None:
    assert ckpt.open(PEERS / path).digest == ckpt.open((PEERS / path).parent).digest


@pytest.mark.parametrize(
    ("made", "asked", "kind", "said"),
    [
        ("x/", "x", ckpt.NotFound, "it is an empty folder"),
        ("x/", "y", ckpt.NotFound, "nothing has that name"),
        (
            "x/a.gguf",
            "x",
            ckpt.NotFound,
            r"it holds a\.gguf, and nothing of safetensors",
        ),
        (
            "x/a.gguf",
            "x/a.gguf",
            ckpt.Unsupported,
            "a file of GGUF .*convert it first",
        ),
    ],
)
def test_what_is_no_checkpoint_is_said_to_be_what_it_is(
    tmp_path: Path, made: str, asked: str, kind: type[Exception], said: str
) -> None:
    path = tmp_path / made
    (path if made.endswith("/") else path.parent).mkdir()
    if not made.endswith("/"):
        path.write_bytes(b"GGUF" * 100)
    with pytest.raises(kind, match=said):
        ckpt.open(tmp_path / asked)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_pointer_of_git_lfs_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(POINTER)
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(ckpt.Damaged, match="git lfs pull"):
            ckpt.open(path)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.safetensors", b"<!DOCTYPE html>\n<html>401", "a page of HTML .*download"),
        ("x.safetensors", b"Entry not found", "the text 'Entry not .*download"),
        ("x.safetensors", b'{"error":"Repository"}', "the text .*error.*download"),
        ("x.safetensors", b"", "an empty file .*download it again"),
        ("x.bin", b"\n<html>401</html>", "a page of HTML .*download it again"),
        ("x.bin", b"Entry not found", "the text 'Entry not .*download"),
        ("x.msgpack", b"", "an empty file .*download it again"),
        ("x.ckpt", b"", "an empty file .*download it again"),
        ("x.pkl", pickle.dumps({"w": 1}), "a pickle that is none of torch.save's"),
        ("x.pkl", pickle.dumps({"w": 1}, 0), "a pickle that is none of torch.save's"),
        ("x.npy", b"\x93NUMPY\x01\x00v\x00", "an array of numpy .*numpy.load"),
        ("x.npz", b"PK\x03\x04" + bytes(60), "a zip archive .*unpack it first"),
        ("x.tgz", b"\x1f\x8b\x08" + bytes(60), "what gzip packed .*unpack it first"),
        ("x.h5", b"\x89HDF\r\n\x1a\n" + bytes(60), "a file of HDF5 .*convert it"),
        ("x", bytes(range(7, 90)), r"one that starts with b'\\x07"),
    ],
)
def test_what_a_file_is_instead_is_named(
    tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises((ckpt.Damaged, ckpt.Unsupported), match=f"found {said}"):
        ckpt.open(tmp_path / name)


def test_a_shard_that_is_a_page_is_named_and_not_a_whole_one(tmp_path: Path) -> None:
    shutil.copytree(PEERS / "st_hub_sharded", tmp_path, dirs_exist_ok=True)
    (tmp_path / "corpus.pt").write_text("not of the model")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    data = shard.read_bytes()
    shard.write_bytes(b"<!DOCTYPE html>\n<title>Access denied</title>")
    with pytest.raises(ckpt.Damaged, match=f"page of HTML - in .*{shard.name}"):
        ckpt.open(tmp_path)
    shard.write_bytes(data[:-1])
    with pytest.raises(ckpt.Damaged, match=f"found 1?[0-9,]+ - in .*{shard.name}"):
        ckpt.open(tmp_path)


def test_an_index_that_is_cut_off_says_what_to_do(tmp_path: Path) -> None:
    shutil.copytree(PEERS / "st_hub_sharded", tmp_path, dirs_exist_ok=True)
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(index.read_bytes()[:100])
    with pytest.raises(ckpt.Untrusted, match=r"index\.json: fetch it again"):
        ckpt.open(tmp_path)


def test_a_folder_of_several_names_those_to_choose_from(tmp_path: Path) -> None:
    for name in ("a.ckpt", "b.ckpt"):
        shutil.copy(PEERS / "torch_zip" / "model.pt", tmp_path / name)
    for name in ("checkpoint-500", "deep/checkpoint-1000"):
        shutil.copytree(PEERS / "st_hub_sharded", tmp_path / name)
    with pytest.raises(ckpt.NotFound) as caught:
        ckpt.open(tmp_path)
    told = str(caught.value)
    assert told.endswith(
        "give the path of what it holds, "
        "a.ckpt, b.ckpt, checkpoint-500, deep/checkpoint-1000"
    )


def test_a_step_that_a_format_does_not_have_is_not_found() -> None:
    assert ckpt.open(PEERS / "st_flax", step=0).format == "safetensors"
    for name in ("st_flax", "ox_v0_manager", "ds_zero2_dp2", "flax_legacy_checkpoint"):
        with pytest.raises(ckpt.NotFound, match=r"xpected .*9"):
            ckpt.open(PEERS / name, step=9)


def test_a_flax_state_fills_the_tree_that_it_was_made_of(tmp_path: Path) -> None:
    state = {"params": {"w": jnp.ones(3)}, "opt": ({"mu": jnp.zeros(3)}, (), [4.0])}
    path = tmp_path / "state.msgpack"
    path.write_bytes(serialization.to_bytes(state))
    # What is a tuple or a list in the tree is a dict of '0', '1', .. in the file.
    found = ckpt.restore(
        path, like=state, rename={"opt/'*'/'*'": "opt/*/*", "opt/'*'/*": "opt/*/*"}
    )
    assert str(found) == str(state)


def test_the_weights_of_deepspeed_become_safetensors(tmp_path: Path) -> None:
    source = PEERS / "ds_zero2_dp2"
    ckpt.save_safetensors(source, tmp_path, select="*/fp32", rename={"*/fp32": "*"})
    found = load_file(tmp_path / "model.safetensors")
    told = json.loads((PEERS / "ds_zero2_dp2.expected.json").read_bytes())["tensors"]
    wanted = {n[:-5]: t["sha256"] for n, t in told.items() if n.endswith("/fp32")}
    assert {n: hashlib.sha256(x.tobytes()).hexdigest() for n, x in found.items()} == (
        wanted
    )


def test_a_folder_that_cannot_be_listed_is_not_called_empty(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(300):
        deep = deep / "d"
    deep.mkdir(parents=True)
    with pytest.raises(ckpt.CkptError) as caught:
        ckpt.open(tmp_path)
    assert "empty" not in str(caught.value)


def test_a_notebook_shows_whose_checkpoint_it_is() -> None:
    plain = ckpt.open(PEERS / "st_flax")
    assert f"{plain!r}".startswith(f"Checkpoint(safetensors, {len(plain)} leaves")
    assert "<b>safetensors</b>" in plain._repr_html_()
    stepped = ckpt.open(PEERS / "ox_v0_manager")
    assert f"{stepped!r}".startswith(f"Checkpoint(orbax, step={stepped.step}, ")
    assert f"<b>orbax, step {stepped.step}</b>" in stepped._repr_html_()


Text = pytest.CaptureFixture[str]


def test_show_says_that_no_leaf_matches(capsys: Text) -> None:
    assert main(["show", str(PEERS / "st_flax"), "nothing*"]) == 2
    assert "found none for 'nothing*'" in capsys.readouterr().err


def test_verify_reports_what_does_not_even_open(tmp_path: Path, capsys: Text) -> None:
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(100)
    assert main(["verify", str(tmp_path)]) == 1
    assert "model.safetensors" in capsys.readouterr().err
    assert main(["verify", str(tmp_path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], "model.safetensors" in told["damaged"][0]) == (False, True)


def test_plan_takes_specs_and_no_axis_twice(tmp_path: Path, capsys: Text) -> None:
    save_file({"a.w": np.ones((8, 8), np.float32)}, tmp_path / "model.safetensors")
    plan = ["plan", str(tmp_path), "--mesh", "data=2,model=2", "--processes", "4"]
    for specs, wanted in (
        ([], 4 * 256),
        (["a.*=data,model"], 256),
        (["a.*=-,model"], 4 * 128),
        (["a.*=,model"], 4 * 128),
        (["a.*=data+model"], 256),
        (["a.*=data", "**="], 4 * 128),
    ):
        rules = [x for spec in specs for x in ("--spec", spec)]
        assert main([*plan, *rules]) == 0
        rows = capsys.readouterr().out.splitlines()[2:6]
        assert sum(int(row.split()[2]) for row in rows) == wanted
    assert main([*plan, "--spec", "a.*"]) == 2
    assert "expected --spec as GLOB=data,model" in capsys.readouterr().err
    assert main(["plan", str(tmp_path), "--mesh", "data=2,data=4"]) == 2
    assert "found 'data' twice" in capsys.readouterr().err


def test_diff_takes_a_step_of_each_side(capsys: Text) -> None:
    path = str(PEERS / "ox_v0_manager")
    assert main(["diff", path, path, "--left-step", "1", "--right-step", "1"]) == 0
    assert "step 1 -> " in capsys.readouterr().out


def test_what_goes_wrong_under_a_bar_has_its_own_line(
    tmp_path: Path, capsys: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich.progress", None)

    def fail() -> None:
        with show_progress("copy") as progress:
            assert progress is not None
            progress(1, 2)
            raise OSError("torn")

    with pytest.raises(OSError, match="torn"):
        fail()
    assert capsys.readouterr().err.endswith("50 % of 2 bytes\n")
    with show_progress("copy"):
        pass
    assert capsys.readouterr().err == ""


def test_the_version_is_told(capsys: Text) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("ckpt-jax")


@pytest.mark.parametrize("zarr3", [False, True])
def test_the_steps_of_a_run_of_orbax_are_listed(
    tmp_path: Path, zarr3: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = ocp.PyTreeCheckpointHandler(use_zarr3=zarr3)
    with ocp.CheckpointManager(
        tmp_path / "run", ocp.Checkpointer(handler), ocp.CheckpointManagerOptions()
    ) as manager:
        for step in (3, 10, 7_000):
            manager.save(step, {"w": np.full(3, step)})
            manager.wait_until_finished()
    (tmp_path / "run" / "7001.orbax-checkpoint-tmp-5").mkdir()
    assert ckpt.steps(tmp_path / "run") == [3, 10, 7_000]
    assert ckpt.latest(tmp_path / "run") == 7_000
    for step in ckpt.steps(tmp_path / "run"):
        assert ckpt.restore(tmp_path / "run", step=step)["w"][0] == step
    assert main(["ls", str(tmp_path / "run")]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        [step, "(orbax)"] for step in ("3", "10", "7000")
    ]


@pytest.mark.parametrize("prefix", ["checkpoint_", "run-"])
def test_the_steps_of_a_run_of_flax_are_listed(tmp_path: Path, prefix: str) -> None:
    for step in (5, 20):
        data = serialization.to_bytes({"w": np.full(3, step)})
        (tmp_path / f"{prefix}{step}").write_bytes(data)
    assert ckpt.steps(tmp_path) == [5, 20]
    assert ckpt.restore(tmp_path, step=5)["w"][0] == 5


def test_other_folders_have_no_steps(tmp_path: Path) -> None:
    assert ckpt.steps(tmp_path / "absent") == ckpt.steps(tmp_path) == []
    assert ckpt.steps(PEERS / "st_flax") == ckpt.steps(PEERS / "ox_v0_standard") == []
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "note.txt").write_text("no checkpoint")
    assert ckpt.steps(tmp_path) == []
    (tmp_path / "part_1").write_text("no checkpoint")
    assert ckpt.steps(tmp_path) == []


def test_a_run_begins_anew_in_a_folder_of_orbax(tmp_path: Path) -> None:
    """It resumes what it committed itself, nothing else."""
    shutil.copytree(PEERS / "ox_v0_manager", tmp_path / "run")
    with ckpt.Run(tmp_path / "run", save=ckpt.every(steps=1)) as run:
        state, _ = run.resume({"w": np.zeros(2)})
        for step in run.steps(until=1):
            run.saved(step, state)
    assert ckpt.steps(tmp_path / "run") == [1]
    assert ckpt.open(tmp_path / "run").format == "ckpt"
