"""A run whose commit record is damaged, or strange, can still be worked on."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ckpt


def make_run(path: Path) -> None:
    for step in range(4):
        metrics = {"loss": 4.0 - step}
        ckpt.save({"w": np.full(3, step)}, None, path, step=step, metrics=metrics)


def test_a_step_with_a_damaged_record_can_be_dropped_with_its_data(
    tmp_path: Path,
) -> None:
    make_run(tmp_path)
    (tmp_path / "steps" / "1.json").write_bytes(b"garbage\n")
    removed = ckpt.prune(tmp_path, drop=[1])
    assert [(r.step, r.orphan) for r in removed] == [(1, False)]
    assert removed[0].bytes > 0
    assert ckpt.steps(tmp_path) == [0, 2, 3]
    assert not list(tmp_path.glob("1-*"))
    assert ckpt.verify(tmp_path).orphans == ()
    ckpt.save({"w": np.full(3, 9)}, None, tmp_path, step=1)
    np.testing.assert_array_equal(ckpt.restore(tmp_path, step=1)["w"], np.full(3, 9))


def test_a_rule_removes_a_step_with_a_damaged_record_like_any_other(
    tmp_path: Path,
) -> None:
    make_run(tmp_path)
    (tmp_path / "steps" / "0.json").write_bytes(b"")
    removed = ckpt.prune(tmp_path, keep=ckpt.Keep(last=2))
    assert [r.step for r in removed] == [0, 1]
    assert ckpt.steps(tmp_path) == [2, 3]


def test_dropping_a_damaged_step_leaves_an_attempt_at_it_alone(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / "steps" / "1.json").write_bytes(b"garbage\n")
    (tmp_path / "steps" / "1-00000000deadbeef.attempt").write_bytes(b"")
    (tmp_path / "1-00000000deadbeef").mkdir()
    ckpt.prune(tmp_path, drop=[1])
    assert (tmp_path / "1-00000000deadbeef").is_dir()


def test_a_name_past_the_last_step_is_no_step(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / "steps" / f"{1 << 63}.json").write_bytes(b"")
    assert ckpt.steps(tmp_path) == [0, 1, 2, 3]
    assert ckpt.save({"w": 1}, None, tmp_path).step == 4


def test_a_metric_that_no_step_has_removes_nothing(tmp_path: Path) -> None:
    make_run(tmp_path)
    with pytest.warns(UserWarning, match="'los' in a step, found it in none"):
        assert ckpt.prune(tmp_path, keep=ckpt.Keep(best=("los", "min", 1))) == []
    assert ckpt.steps(tmp_path) == [0, 1, 2, 3]


def test_a_run_of_nothing_but_attempts_is_not_ok(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "1-00000000deadbeef.attempt").write_bytes(b"")
    report = ckpt.verify(tmp_path)
    assert not report.ok
    assert report.orphans == ("1-00000000deadbeef",)
    assert "no step is committed" in str(report)


def test_a_path_given_first_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"expected save\(state, mesh, path\)"):
        ckpt.save(tmp_path, {"a": 1})
    with pytest.raises(TypeError, match=r"expected save\(state, mesh, path\)"):
        ckpt.save_async(str(tmp_path), {"a": 1})


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(ValueError, match="found an empty text"):
        ckpt.save({"a": 1}, None, "")


def test_a_plan_refuses_what_a_restore_refuses(tmp_path: Path) -> None:
    make_run(tmp_path)
    with pytest.raises(ValueError, match="expected missing"):
        ckpt.plan(tmp_path, {"x": 2}, missing="bogus")
    with pytest.raises(ValueError, match="at least 1 position"):
        ckpt.plan(tmp_path, {"x": 0})
    with pytest.raises(TypeError, match="as mesh"):
        ckpt.plan(tmp_path, {"x": [2]})


def test_specs_that_are_none_are_refused(tmp_path: Path) -> None:
    ckpt.save({"w": jnp.ones(4)}, None, tmp_path)
    mesh = jax.make_mesh((2,), ("x",))
    with pytest.raises(TypeError, match="expected PartitionSpecs"):
        ckpt.restore(tmp_path, mesh, specs={"w": ["x"]})


def test_a_diff_names_containers_and_ties_that_differ(tmp_path: Path) -> None:
    x = np.arange(3)
    tied = {"a": [1, 2], "e": {}, "t": x, "u": x}
    loose = {"a": (1, 2), "e": None, "t": x, "u": x.copy()}
    ckpt.save(tied, None, tmp_path / "tied")
    ckpt.save(loose, None, tmp_path / "loose")
    found = ckpt.diff(tmp_path / "tied", tmp_path / "loose")
    assert [(c.path, c.kind, c.left, c.right) for c in found.changes] == [
        ("a", "structure", "list", "tuple"),
        ("e", "structure", "dict", "None"),
        ("u", "structure", "tied to `t`", "not tied"),
    ]
    assert not ckpt.diff(tmp_path / "tied", tmp_path / "tied")
