import contextlib
import hashlib
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from ckpt import CkptError, Damaged, NotFound, Unsupported, Untrusted
from ckpt._store import open_store
from ckpt.formats._deepspeed import find_deepspeed
from ckpt.formats._entry import Catalogue, Folder

from ._naive import gather, tensors

PEERS = Path(__file__).parent.parent / "data" / "peers"
SETS = sorted(path.name for path in PEERS.glob("ds_*") if path.is_dir())


def find(path: Path, *, step: int | None = None) -> Catalogue | None:
    store = open_store(path)
    return find_deepspeed(Folder(store, tuple(store.list("")), step=step))


def read(path: Path) -> dict[str, Any]:
    catalogue = find(path)
    assert catalogue is not None
    return catalogue.tree


def expected(name: str) -> dict[str, Any]:
    return json.loads((PEERS / f"{name}.expected.json").read_text())["tensors"]


@pytest.mark.parametrize("name", SETS)
def test_each_parameter_has_the_values_of_the_live_engine(name: str) -> None:
    found = tensors(read(PEERS / name))
    for path, want in expected(name).items():
        array = gather(PEERS / name, found[path])
        assert array.dtype.name == want["dtype"]
        assert hashlib.sha256(array.tobytes()).hexdigest() == want["sha256"], path
        if "zero3" not in name:
            assert list(array.shape) == want["shape"]


@pytest.mark.parametrize("name", SETS)
def test_checks_of_all_files_pass_and_all_files_are_named(name: str) -> None:
    catalogue = find(PEERS / name)
    assert catalogue is not None
    assert (catalogue.format, catalogue.step, catalogue.notes) == ("deepspeed", 2, ())
    files = set((PEERS / name).rglob("*.pt"))
    assert {PEERS / name / path for path in catalogue.objects} == files
    assert len(catalogue.checks) == (0 if "legacyser" in name else len(files))
    for check in catalogue.checks:
        check.work()


@pytest.mark.parametrize("name", SETS)
def test_counters_and_options_lie_apart(name: str) -> None:
    rest = read(PEERS / name)["deepspeed"]
    assert rest["global_steps"] == 2
    assert rest["client_state"] == {"my_step": 2}
    assert rest["optimizer"]["loss_scaler"] == {"cur_scale": 1.0, "dynamic": False}
    groups = rest["optimizer"]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert groups[0]["betas"] == (0.9, 0.999)
    assert not tensors(rest)


def test_buffers_steps_and_the_weights_that_were_used_are_there() -> None:
    root = PEERS / "ds_zero2_dp2_bf16"
    tree = read(root)
    assert gather(root, tree["cnt"]["buffer"]).dtype.name == "int64"
    assert gather(root, tree["a.weight"]["step"]) == 2
    used = gather(root, tree["a.weight"]["module"])
    master = gather(root, tree["a.weight"]["fp32"])
    assert (used == master.astype(used.dtype)).all()
    assert set(tree["frozen.weight"]) == {"frozen", "module"}
    shards = read(PEERS / "ds_zero3_dp2")
    assert set(shards["buf"]) == {"buffer"}
    assert "module" not in shards["a.weight"]


def test_stage_3_has_real_shapes_in_the_universal_format() -> None:
    tree = read(PEERS / "ds_zero3_dp2_universal")
    assert tree["a.weight"]["fp32"].shape == (10, 7)


@pytest.fixture
def copy(tmp_path: Path) -> Any:
    def run(name: str) -> Path:
        return Path(shutil.copytree(PEERS / name, tmp_path / name))

    return run


def test_the_folder_of_a_tag_opens_alone() -> None:
    for name in ("ds_zero2_dp2", "ds_zero3_dp2_universal"):
        tag = PEERS / name / "global_step2"
        found = tensors(read(tag))
        for path, want in expected(name).items():
            array = gather(tag, found[path])
            assert hashlib.sha256(array.tobytes()).hexdigest() == want["sha256"]


def test_latest_or_the_newest_or_the_wanted_step_is_taken(copy: Any) -> None:
    root = copy("ds_zero1_dp2")
    shutil.copytree(root / "global_step2", root / "global_step10")
    chosen = find(root)
    assert chosen is not None
    assert chosen.objects[0].startswith("global_step2/")
    (root / "latest").unlink()
    newest, second = find(root), find(root, step=2)
    assert newest is not None
    assert second is not None
    assert newest.objects[0].startswith("global_step10/")
    assert second.objects[0].startswith("global_step2/")
    with pytest.raises(NotFound, match="step 3"):
        find(root, step=3)


def test_a_tag_that_latest_names_and_nobody_wrote_is_damage(copy: Any) -> None:
    root = copy("ds_zero1_dp2")
    (root / "latest").write_text("global_step9")
    with pytest.raises(Damaged, match="global_step9"):
        find(root)
    (root / "latest").write_text("../x")
    with pytest.raises(Untrusted):
        find(root)


@pytest.mark.parametrize("name", ["ds_zero2_dp2", "ds_zero3_dp2", "ds_zero2_dp2_bf16"])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_optimizer_file_that_is_missing_is_damage(
    copy: Any, name: str, rank: int
) -> None:
    root = copy(name)
    (lost,) = root.rglob(f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    lost.unlink()
    with pytest.raises(Damaged, match=r"optimizer files of ranks?|2 ranks, found 1"):
        find(root)


def test_a_model_file_that_is_missing_is_damage(copy: Any) -> None:
    root = copy("ds_zero3_dp2")
    (root / "global_step2" / "zero_pp_rank_1_mp_rank_00_model_states.pt").unlink()
    with pytest.raises(Damaged, match="model file"):
        find(root)
    root = copy("ds_zero2_dp2")
    (root / "global_step2" / "mp_rank_00_model_states.pt").unlink()
    with pytest.raises(Damaged, match="model"):
        find(root)


def test_a_file_of_a_larger_job_is_damage(copy: Any) -> None:
    root = copy("ds_zero2_dp2")
    name = "zero_pp_rank_{}_mp_rank_00_optim_states.pt"
    tag = root / "global_step2"
    shutil.copy(tag / name.format(1), tag / name.format(2))
    with pytest.raises(Damaged, match="of 2 ranks, found 3"):
        find(root)


def test_files_of_ranks_that_changed_places_are_damage(copy: Any) -> None:
    root = copy("ds_zero2_dp2")
    first, second = sorted(root.rglob("*optim_states.pt"))
    first.rename(root / "aside")
    second.rename(first)
    (root / "aside").rename(second)
    with pytest.raises(Damaged, match="older checkpoint"):
        find(root)


def edit(path: Path, old: bytes, new: bytes) -> None:
    """Change the pickle of a file, and say that it has no checksum."""
    data = path.read_bytes()
    assert data.count(old) == 1
    data = bytearray(data.replace(old, new))
    entry = data.index(b"PK\1\2")
    struct.pack_into("<L", data, entry + 16, 0)
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["ds_zero2_dp2", "ds_zero3_dp2"])
def test_a_model_of_other_shapes_is_damage(copy: Any, name: str) -> None:
    root = copy(name)
    for path in root.rglob("*model_states.pt"):
        shapes = path.read_bytes().index(b"param_shapes")
        dims = path.read_bytes().index(b"K\nK\x07\x86", shapes)
        found = path.read_bytes()[dims - 4 : dims + 5]
        edit(path, found, found.replace(b"K\n", b"K\x0b"))
    with pytest.raises(Damaged, match="older checkpoint"):
        find(root)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("zero_pp_rank_0_mp_rank_01_optim_states.pt", "tensor parallelism"),
        ("layer_3_expert_0_mp_rank_00_model_states.pt", "experts"),
        ("expp_rank_0_mp_rank_00_optim_states.pt", "experts"),
        ("layer_01-model_00-model_states.pt", "pipeline"),
        ("offloaded_tensors/rank00/x", "NVMe"),
    ],
)
def test_other_kinds_of_parallelism_are_unsupported(
    copy: Any, more: str, message: str
) -> None:
    root = copy("ds_zero2_dp2")
    path = root / "global_step2" / more
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    with pytest.raises(Unsupported, match=rf"{message}.*ds_to_universal"):
        find(root)


def test_a_universal_checkpoint_without_model_files_opens_as_it_is(copy: Any) -> None:
    root = copy("ds_zero3_dp2_universal")
    for path in root.rglob("*model_states.pt"):
        path.unlink()
    assert read(root)["a.weight"]["fp32"].shape == (70,)


def test_a_parameter_that_a_universal_checkpoint_lacks_is_damage(copy: Any) -> None:
    root = copy("ds_zero2_dp2_universal")
    shutil.rmtree(root / "global_step2" / "zero" / "b.bias")
    with pytest.raises(Damaged, match=r"b\.bias"):
        find(root)


def test_other_folders_are_of_another_format(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"x")
    assert find(tmp_path) is None
    assert find(PEERS / "torch_zip") is None


def test_two_files_of_one_rank_are_refused(copy: Any) -> None:
    root = copy("ds_zero2_dp2")
    tag = root / "global_step2"
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    shutil.copy(tag / name, tag / f"bf16_{name}")
    with pytest.raises(Untrusted, match="one file of a rank"):
        find(root)


@given(draw=st.data())
@settings(max_examples=25, deadline=None)
def test_changed_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    name = draw.draw(st.sampled_from(["ds_zero2_dp2", "ds_zero3_dp2"]))
    root = tmp_path_factory.mktemp("changed") / name
    shutil.copytree(PEERS / name, root)
    paths = sorted(root.rglob("*.pt"))
    path = draw.draw(st.sampled_from(paths))
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\1\2")
    struct.pack_into("<L", data, entry + 16, 0)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(30, 2000))
        data[at] = draw.draw(st.sampled_from([0, 1, 2, 0x4E, 0x5D, 0x7D, 0xFF]))
    path.write_bytes(data)
    with contextlib.suppress(CkptError):
        for tensor in tensors(read(root)).values():
            gather(root, tensor)
