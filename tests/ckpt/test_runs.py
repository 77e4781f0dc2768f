"""The table of meanings: paths, steps, and what is done to whole checkpoints."""

import math
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import ckpt
from tests.ckpt._faithful import make_mesh, memory_url


class Somewhere(os.PathLike[str]):
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __fspath__(self) -> str:
        return self.path


def save_steps(*steps: int, **metrics: list[float]) -> str:
    url = memory_url()
    for n, step in enumerate(steps):
        found = {name: values[n] for name, values in metrics.items()}
        ckpt.save({"x": step}, None, url, step=step, metrics=found)
    return url


def test_paths_of_every_kind_name_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "a b" / "run"
    ckpt.save({"x": 7}, None, Somewhere(run))
    names: list[Any] = [run, str(run), "a b/run", Somewhere(run), run.as_uri()]
    for name in [*names, "./a b/../a b/run/"]:
        assert ckpt.restore(name) == {"x": 7}


def test_the_default_path_is_the_one_of_the_environment_or_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CKPT_PATH", raising=False)
    ckpt.save({"x": 1})
    assert ckpt.steps(tmp_path / "checkpoints") == ckpt.steps() == [0]
    monkeypatch.setenv("CKPT_PATH", str(tmp_path / "other"))
    ckpt.save({"x": 2})
    assert ckpt.restore() == ckpt.restore(tmp_path / "other") == {"x": 2}
    assert ckpt.steps(tmp_path / "checkpoints") == [0]


@pytest.mark.parametrize("path", [3, "http://host/run", "ftp://host/run", b"run"])
def test_other_paths_are_refused(path: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        ckpt.save({"x": 1}, None, path)


def test_the_path_of_a_checkpoint_restores_it_and_takes_no_step(tmp_path: Path) -> None:
    done = ckpt.save({"x": 1}, None, tmp_path / "run", step=5)
    assert ckpt.restore(done.url) == {"x": 1}
    assert ckpt.open(done.url).step == 5
    reads: list[Any] = [ckpt.restore, ckpt.open, ckpt.plan, ckpt.verify]
    for read in reads:
        with pytest.raises(ValueError, match="step"):
            read(done.url, step=5)
    with pytest.raises(ValueError, match="run"):
        ckpt.save({"x": 1}, None, done.url, step=6)
    moved = (tmp_path / "run" / Path(done.url).name).rename(tmp_path / "moved")
    assert ckpt.restore(moved) == {"x": 1}
    assert ckpt.verify(moved)


def test_a_leaf_called_like_a_run_does_not_make_a_checkpoint_one(
    tmp_path: Path,
) -> None:
    big = np.arange(1 << 18, dtype=np.float32)
    state = {"steps": {"0.json": big, "1.json": {"c": big}}, "manifest.json": big}
    done = ckpt.save(state, None, tmp_path / "run", step=5)
    assert ckpt.open(done.url).step == 5
    np.testing.assert_array_equal(ckpt.restore(done.url)["steps"]["0.json"], big)


def test_the_default_step_is_the_newest_and_one_more() -> None:
    url = memory_url()
    assert ckpt.steps(url) == []
    assert ckpt.latest(url) is None
    assert [ckpt.save({"x": 1}, None, url).step for _ in range(2)] == [0, 1]
    ckpt.save({"x": 2}, None, url, step=10)
    assert ckpt.save({"x": 3}, None, url).step == 11
    assert ckpt.steps(url) == [0, 1, 10, 11]
    assert ckpt.latest(url) == 11
    assert ckpt.restore(url) == {"x": 3}
    assert ckpt.restore(url, step=10) == {"x": 2}


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (-1, ValueError),
        (1 << 63, ValueError),
        ("1", TypeError),
        (1.0, TypeError),
        (True, TypeError),
    ],
)
def test_what_is_no_step_is_refused(step: Any, error: Any) -> None:
    url = save_steps(1)
    with pytest.raises(error, match="step"):
        ckpt.save({"x": 1}, None, url, step=step)
    with pytest.raises(error, match="step"):
        ckpt.restore(url, step=step)


@pytest.mark.parametrize("step", [0, (1 << 63) - 1, np.int64(3)])
def test_steps_may_be_as_large_as_64_bits(step: Any) -> None:
    assert ckpt.restore(save_steps(step), step=step) == {"x": step}


def test_a_step_or_run_that_is_not_there_is_not_found() -> None:
    with pytest.raises(ckpt.NotFound, match=r"step 2.*found steps 1, 3"):
        ckpt.restore(save_steps(1, 3), step=2)
    with pytest.raises(ckpt.NotFound):
        ckpt.restore(memory_url())


def test_a_step_is_replaced_only_by_overwrite(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = ckpt.save({"x": 1}, None, run, step=3)
    with pytest.raises(ckpt.StepExists, match="overwrite"):
        ckpt.save({"x": 2}, None, run, step=3)
    assert ckpt.restore(run) == {"x": 1}
    second = ckpt.save({"x": 2}, None, run, step=3, overwrite=True)
    assert ckpt.restore(run) == {"x": 2}
    assert ckpt.steps(run) == [3]
    assert not Path(first.url).exists()
    assert Path(second.url).exists()
    ckpt.save({"x": 4}, None, run, step=4, overwrite=True)
    assert ckpt.steps(run) == [3, 4]
    with pytest.raises(ValueError, match="step="):
        ckpt.save({"x": 2}, None, run, overwrite=True)


def test_metrics_come_back_as_plain_numbers_and_text() -> None:
    metrics = {
        "loss": jnp.float32(0.5),
        "nan": math.nan,
        "inf": np.float64(-math.inf),
        "count": 1 << 70,
        "ok": np.bool_(True),
        "name": "é",
        "none": None,
    }
    done = ckpt.save({}, None, memory_url(), metrics=metrics)
    found = dict(done.metrics)
    assert math.isnan(found.pop("nan"))
    assert found == {
        "loss": 0.5,
        "inf": -math.inf,
        "count": 1 << 70,
        "ok": True,
        "name": "é",
        "none": None,
    }
    assert {type(v) for v in found.values()} == {float, int, bool, str, type(None)}


@pytest.mark.parametrize(
    "metrics",
    [{"a": [1]}, {"a": 1j}, {3: 1}, {"a": np.ones(2)}, {"a": "\ud800"}, {"\ud800": 1}],
)
def test_other_metrics_are_refused_before_anything_is_saved(metrics: Any) -> None:
    url = memory_url()
    with pytest.raises((TypeError, ValueError)):
        ckpt.save({}, None, url, metrics=metrics)
    assert ckpt.steps(url) == []


def test_an_expected_digest_is_checked() -> None:
    url = save_steps(1, 2)
    digest = ckpt.open(url, step=1).digest
    assert ckpt.restore(url, step=1, expect=digest) == {"x": 1}
    with pytest.raises(ckpt.Damaged, match=digest):
        ckpt.restore(url, step=2, expect=digest)


def test_prune_keeps_what_the_rule_says_and_always_the_newest() -> None:
    steps = (1, 2, 3, 4, 6, 7)
    loss = [5.0, 1.0, math.nan, 2.0, 4.0, 9.0]

    def left(keep: ckpt.Keep) -> list[int]:
        url = save_steps(*steps, loss=loss)
        removed = [r.step for r in ckpt.prune(url, keep=keep)]
        assert sorted(removed + ckpt.steps(url)) == list(steps)
        return ckpt.steps(url)

    assert left(ckpt.Keep(last=2)) == [6, 7]
    assert left(ckpt.Keep(every=3)) == [3, 6, 7]
    assert left(ckpt.Keep(best=("loss", "min", 2))) == [2, 4, 7]
    assert left(ckpt.Keep(best=("loss", "max", 2))) == [1, 7]
    with pytest.warns(UserWarning, match="'absent' in a step, found it in none"):
        assert left(ckpt.Keep(best=("absent", "max", 2))) == list(steps)
    assert left(ckpt.Keep(last=1, every=4, best=("loss", "min", 1))) == [2, 4, 7]


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"last": 0},
        {"every": 0},
        {"best": ("loss", "least", 1)},
        {"best": ("loss", "min", 0)},
    ],
)
def test_rules_that_mean_nothing_are_refused(rule: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        ckpt.Keep(**rule)


def test_prune_takes_a_rule_and_nothing_else() -> None:
    wrong: Any = 3
    with pytest.raises(TypeError, match="Keep"):
        ckpt.prune(save_steps(1), keep=wrong)


def test_dropped_steps_go_the_newest_too() -> None:
    url = save_steps(1, 2, 3)
    with pytest.raises(ckpt.NotFound, match="9"):
        ckpt.prune(url, drop=[2, 9])
    assert [r.step for r in ckpt.prune(url, drop=[3])] == [3]
    assert ckpt.restore(url) == {"x": 2}


def test_unfinished_attempts_go_only_when_they_are_old(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = ckpt.save({"x": np.ones(9)}, None, run, step=1)
    commit = Path(done.url).name.partition("-")[2]
    # What a writer that was killed leaves: a directory that a note names.
    (run / "steps" / "1.json").unlink()
    (run / "steps" / f"1-{commit}.attempt").write_bytes(b"")
    ckpt.save({"x": 2}, None, run, step=2)
    assert ckpt.steps(run) == [2]
    assert ckpt.prune(run) == []
    assert Path(done.url).exists()
    [removed] = ckpt.prune(run, orphan_age=0)
    assert (removed.step, removed.orphan) == (1, True)
    assert removed.bytes > 0
    assert not Path(done.url).exists()
    assert sorted(p.name for p in (run / "steps").iterdir()) == ["2.json"]


def test_verify_tells_damaged_missing_and_orphaned_objects(tmp_path: Path) -> None:
    big = np.arange(1 << 18, dtype=np.float32)
    state = {"w": big, "v": big + 1, "small": np.ones(3)}
    done = ckpt.save(state, None, tmp_path / "run")
    assert ckpt.verify(tmp_path / "run").ok
    folder = Path(done.url)
    [w], [v] = folder.glob("w/c/*"), folder.glob("v/c/*")
    data = bytearray(w.read_bytes())
    data[1000] ^= 1
    w.write_bytes(data)
    v.unlink()
    (folder / "other").write_bytes(b"x")
    report = ckpt.verify(tmp_path / "run")
    assert not report.ok
    assert [(p.leaf, p.object) for p in report.damaged] == [("w", "w/c/0")]
    assert [(p.leaf, p.object) for p in report.missing] == [("v", "v/c/0")]
    assert report.orphans == ("other",)
    for leaf in ("w", "v"):
        with pytest.raises(ckpt.Damaged, match=rf"`{leaf}`.*{leaf}/c/0"):
            ckpt.restore(tmp_path / "run", select=leaf)
    assert ckpt.restore(tmp_path / "run", select="small")["small"].tolist() == [1] * 3


def test_diff_tells_structure_type_layout_and_values() -> None:
    mesh = make_mesh()
    laid = jax.device_put(np.zeros(8, np.float32), NamedSharding(mesh, P("data")))
    moved = jax.device_put(np.zeros(8, np.float32), NamedSharding(mesh, P("model")))
    values = np.array([1.0, math.nan, -0.0, 4.0], np.float32)
    other = np.array([1.0, math.nan, 0.0, 6.5], np.float32)
    left = {"gone": 1, "t": np.zeros(2), "l": laid, "v": values, "n": 1, "same": "x"}
    right = {"t": np.zeros(3), "l": moved, "v": other, "n": 2, "same": "x", "new": 1}
    one, two = memory_url(), memory_url()
    ckpt.save(left, None, one)
    ckpt.save(right, None, two)
    found = {c.path: c for c in ckpt.diff(one, two).changes}
    assert {path: c.kind for path, c in found.items()} == {
        "gone": "removed",
        "t": "type",
        "l": "layout",
        "v": "value",
        "n": "value",
        "new": "added",
    }
    assert (found["v"].count, found["v"].max_abs) == (2, 2.5)
    assert not ckpt.diff(one, one)


def test_a_plan_needs_no_devices() -> None:
    mesh = make_mesh()
    w = jax.device_put(
        np.zeros((1024, 1024), np.float32), NamedSharding(mesh, P("data", "model"))
    )
    url = memory_url()
    ckpt.save({"w": w, "n": 1}, None, url)
    sizes = {"data": 4, "model": 2}
    one = ckpt.plan(url, mesh)
    assert one.bytes == w.nbytes
    assert one.amplification == 1.0
    for target in (sizes, AbstractMesh((4, 2), ("data", "model"))):
        assert ckpt.plan(url, target).processes == one.processes
        four = ckpt.plan(url, target, processes=4)
        assert [p.bytes for p in four.processes] == [w.nbytes // 4] * 4
        assert four.amplification == 1.0
    assert "read amplification 1.00" in str(one)
    with pytest.raises(ValueError, match="divide"):
        ckpt.plan(url, sizes, processes=3)
    with pytest.raises(ValueError, match="at least one"):
        ckpt.plan(url, sizes, processes=0)


def test_parts_of_a_leaf_are_read_by_indexing() -> None:
    values = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    done = ckpt.save({"w": values}, None, memory_url())
    stored = done["w"]
    assert (stored.shape, stored.dtype) == ((3, 4, 5), np.int16)
    index: list[Any] = [..., 1, -1, slice(1, 3), (..., 2), (0, slice(None, None, -2))]
    index += [(slice(2, 0, -1), 3), (slice(5, 9),), (1, 2, 3), slice(0, 0)]
    for i in index:
        np.testing.assert_array_equal(stored[i], values[i])
    np.testing.assert_array_equal(np.asarray(stored), values)
    with pytest.raises(IndexError):
        stored[3]
    with pytest.raises(ckpt.NotFound, match="`v`"):
        done["v"]


def test_an_async_save_keeps_what_it_was_given() -> None:
    url = memory_url()
    array, host = jnp.arange(1 << 18), np.zeros(1 << 18)
    pending = ckpt.save_async({"a": array, "h": host}, None, url, step=4)
    array.delete()
    host[:] = 1
    assert pending.result(60).step == 4
    again = ckpt.restore(url)
    np.testing.assert_array_equal(again["a"], np.arange(1 << 18))
    assert not again["h"].any()


def test_a_checkpoint_stands_for_itself_and_stays_the_commit_it_was(
    tmp_path: Path,
) -> None:
    ckpt.save({"n": 1}, None, tmp_path, step=3)
    first = ckpt.open(tmp_path)
    assert ckpt.restore(first) == {"n": 1}
    assert ckpt.verify(first).ok
    assert ckpt.plan(first).step == 3
    ckpt.save({"n": 2}, None, tmp_path, step=4)
    assert ckpt.restore(first, step=3) == {"n": 1}
    assert len(ckpt.diff(first, ckpt.open(tmp_path)).changes) == 1
    with pytest.raises(ValueError, match="found step=4"):
        ckpt.restore(first, step=4)
    with pytest.raises(TypeError, match="a path or a Checkpoint"):
        ckpt.restore({"n": 1})  # pyright: ignore[reportArgumentType]
