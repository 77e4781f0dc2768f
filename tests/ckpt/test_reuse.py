"""What is equal to the newest step's is written once, and comes back all the same."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import zarr
from jax.sharding import NamedSharding, PartitionSpec as P

import ckpt

FROZEN = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def make_tree(step: int) -> dict[str, Any]:
    """Make a frozen base, an adapter of a large and a small leaf, and a value."""
    return {
        "base": {"w": FROZEN, "v": FROZEN[::-1].copy()},
        "adapter": np.full((512, 1024), step, np.float32),
        "bias": np.arange(step + 3),
        "step": step,
    }


def save(run: Path, step: int, **options: Any) -> ckpt.Checkpoint:
    return ckpt.save(make_tree(step), None, run, step=step, reuse=True, **options)


def same(found: Any, step: int) -> bool:
    expected = make_tree(step)
    pairs = [(found[x], expected[x]) for x in ("adapter", "bias")]
    pairs += [(found["base"][x], expected["base"][x]) for x in ("w", "v")]
    return found["step"] == step and all(np.array_equal(a, b) for a, b in pairs)


def files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def count_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


def folder_of(run: Path, step: int) -> Path:
    """Return the folder that a step's record names."""
    body = (run / "steps" / f"{step}.json").read_bytes().splitlines()[1]
    return run / json.loads(body)["directory"]


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_a_frozen_base_is_written_once(run: Path, codec: str | None) -> None:
    for step in (1, 2, 3):
        save(run, step, codec=codec)
    frozen = 2 * FROZEN.nbytes
    first, *others = [count_bytes(folder_of(run, step)) for step in (1, 2, 3)]
    assert first > 0.8 * frozen
    assert all(size < first - 0.8 * frozen for size in others)
    for step in (1, 2, 3):
        assert same(ckpt.restore(run, step=step), step)
        assert ckpt.verify(run, step=step)
        # Sources are flat: the third step names the first, not the second.
        others = [folder_of(run, 1).name] if step > 1 else []
        reused = ckpt.open(run, step=step).manifest.reused
        assert reused is not None
        assert list(reused.directories) == others


def test_only_objects_that_changed_are_written(run: Path) -> None:
    tree: dict[str, Any] = {"w": FROZEN.copy(), "x": np.float32(1)}
    ckpt.save(tree, None, run, step=1, max_host_bytes=4 << 20, reuse=True)
    tree["w"][700, 1000] += 1
    ckpt.save(tree, None, run, step=2, max_host_bytes=4 << 20, reuse=True)
    written = list(files(folder_of(run, 2) / "w"))
    whole = list(files(folder_of(run, 1) / "w" / "c"))
    assert (len(written), len(whole)) == (1, 4)
    assert np.array_equal(ckpt.restore(run)["w"], tree["w"])


def test_the_last_bit_of_a_late_chunk_counts(run: Path) -> None:
    for codec in (None, "zstd"):
        tree = {"w": FROZEN.copy()}
        ckpt.save(tree, None, run, step=1, codec=codec, reuse=True, overwrite=True)
        tree["w"].view(np.uint32)[-1, -1] ^= 1
        ckpt.save(tree, None, run, step=2, codec=codec, reuse=True, overwrite=True)
        assert np.array_equal(ckpt.restore(run)["w"], tree["w"])


def test_equal_bytes_of_another_type_or_shape_are_written(run: Path) -> None:
    ckpt.save({"w": FROZEN}, None, run, step=1, reuse=True)
    others = [FROZEN.view(np.int32), FROZEN.reshape(512, 2048)]
    for step, values in enumerate(others, 2):
        done = ckpt.save({"w": values}, None, run, step=step, reuse=True)
        assert done.manifest.reused is not None
        assert done.manifest.reused.directories == ()
        assert np.array_equal(ckpt.restore(run)["w"], values)


def test_another_codec_is_written_anew(run: Path) -> None:
    save(run, 1)
    save(run, 2, codec="zstd")
    assert count_bytes(folder_of(run, 2)) > FROZEN.nbytes
    assert same(ckpt.restore(run), 2)


def test_meshes_read_what_others_wrote_and_reused(run: Path) -> None:
    def place(devices: int) -> dict[str, Any]:
        mesh = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices])
        rows = NamedSharding(mesh, P("x"))
        return {"w": jax.device_put(FROZEN, rows), "n": np.arange(devices)}

    sizes: list[int] = []
    for step, devices in enumerate((2, 2, 4, 1), 1):
        ckpt.save(place(devices), None, run, step=step, reuse=True)
        sizes.append(count_bytes(folder_of(run, step)))
    # A mesh that cuts the array otherwise writes it anew.
    assert [size > FROZEN.nbytes for size in sizes] == [True, False, True, True]
    for step in (1, 2, 3, 4):
        for devices in (1, 4, 8):
            mesh = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices])
            found = ckpt.restore(run, mesh, step=step)
            assert np.array_equal(found["w"], FROZEN)


def test_a_save_in_the_background_reuses(run: Path) -> None:
    for step in (1, 2):
        tree = make_tree(step)
        ckpt.save_async(tree, None, run, step=step, reuse=True).result()
    assert count_bytes(folder_of(run, 2)) < FROZEN.nbytes
    assert same(ckpt.restore(run), 2)


def test_zarr_lists_no_array_that_is_not_wholly_there(run: Path) -> None:
    for step in (1, 2):
        save(run, step)
    first: Any = zarr.open_group(str(folder_of(run, 1)), mode="r")
    assert np.array_equal(first["base/w"][...], FROZEN)
    second: Any = zarr.open_group(str(folder_of(run, 2)), mode="r")
    assert np.array_equal(second["adapter"][...], make_tree(2)["adapter"])
    assert "base/w" not in second
    assert not list(folder_of(run, 2).glob("base/**/zarr.json"))


def test_without_reuse_nothing_is_said_of_it(run: Path, tmp_path: Path) -> None:
    save(run, 1)
    for place, step in ((run, 2), (tmp_path / "plain", 1)):
        ckpt.save(make_tree(step), None, place, step=step)
        folder = folder_of(place, step)
        manifest, part = folder / "manifest.json", folder / "parts" / "0.json"
        for path in (manifest, part, place / "steps" / f"{step}.json"):
            header, body = path.read_bytes().splitlines()
            assert json.loads(header)["requires"] == []
            assert b"reuse" not in body
            assert b"hash" not in body
        assert not list((place / "steps").glob(f"{step}-*"))
        assert count_bytes(folder) > 2 * FROZEN.nbytes
    # A step without hashes ends the reuse.
    assert count_bytes(folder_of(run, save(run, 3).step)) > 2 * FROZEN.nbytes


def test_a_checkpoint_is_opened_by_its_folder(run: Path, tmp_path: Path) -> None:
    for step in (1, 2):
        save(run, step)
    link = tmp_path / "link"
    link.symlink_to(folder_of(run, 2))
    for path in (folder_of(run, 2), link):
        assert same(ckpt.restore(path), 2)
        assert ckpt.verify(path)
    moved = tmp_path / "moved" / "here"
    shutil.copytree(folder_of(run, 2), moved)
    with pytest.raises(ckpt.Damaged, match=r"no such object - at `base/.`"):
        ckpt.restore(moved)
    assert len(ckpt.verify(moved).missing) == 2


def test_a_copy_holds_all_that_its_original_needs(run: Path, tmp_path: Path) -> None:
    done = [save(run, step) for step in (1, 2)]
    (alone,) = ckpt.copy(run, tmp_path / "one", step=2)
    both = ckpt.copy(run, tmp_path / "both")
    shutil.rmtree(run)
    for copied, original in zip((alone, *both), (done[1], *done), strict=True):
        assert copied.digest == original.digest
        assert same(ckpt.restore(copied), copied.step)
        assert ckpt.verify(copied)
    ckpt.prune(tmp_path / "both", drop=[1])
    assert [p.name for p in (tmp_path / "both").iterdir() if p.name != "steps"] == [
        folder_of(tmp_path / "both", 2).name
    ]
    assert same(ckpt.restore(both[1].url), 2)
    # What the copy has can be reused in its turn.
    save(tmp_path / "both", 3)
    assert count_bytes(folder_of(tmp_path / "both", 3)) < FROZEN.nbytes
    ckpt.prune(tmp_path / "both", drop=[2])
    assert same(ckpt.restore(tmp_path / "both"), 3)
    assert ckpt.verify(tmp_path / "both").orphans == ()


def test_damage_elsewhere_names_leaf_object_and_folder(run: Path) -> None:
    for step in (1, 2):
        save(run, step)
    (victim,) = files(folder_of(run, 1) / "base" / "w" / "c")
    data = bytearray(victim.read_bytes())
    data[1000] ^= 1
    victim.write_bytes(data)
    where = f"at `base/w`.*object base/w/c/0/0, in {folder_of(run, 1)}"
    with pytest.raises(ckpt.Damaged, match=where):
        ckpt.restore(run)
    (problem,) = ckpt.verify(run, step=2).damaged
    assert problem.object == f"{folder_of(run, 1).name}/base/w/c/0/0"
    # It is not looked into before it is reused, but one that is cut is written anew.
    victim.write_bytes(data[:-1])
    save(run, 3)
    assert same(ckpt.restore(run), 3)
    assert len(list(files(folder_of(run, 3) / "base" / "w" / "c"))) == 1
    assert not list(files(folder_of(run, 3) / "base" / "v"))
    victim.unlink()
    assert len(ckpt.verify(run, step=2).missing) == 1


def test_a_base_that_cannot_be_read_is_warned_of(run: Path) -> None:
    save(run, 1)
    (folder_of(run, 1) / "parts" / "0.json").write_bytes(b"")
    with pytest.warns(
        UserWarning, match=r"expected to reuse.*Damaged.*all are written"
    ):
        save(run, 2)
    assert same(ckpt.restore(run), 2)
    assert ckpt.verify(run)


def test_differences_and_followers_see_all(run: Path) -> None:
    done = [save(run, step) for step in (1, 2)]
    assert [c.path for c in ckpt.diff(done[0], done[1]).changes] == [
        "adapter",
        "bias",
        "step",
    ]
    found = [
        ck.step for ck in ckpt.follow(run, after=0, timeout=0) if ck["base/w"][0, 0]
    ]
    assert found == [1, 2]
