"""A BERT-like encoder of Hugging Face as a JAX tree on a mesh, and back.

    python examples/hugging_face.py FOLDER --out converted

`FOLDER` holds model.safetensors, or its shards and their index. A kernel in JAX is the
transpose of a weight in PyTorch: that is done on the devices, shard by shard.
"""

import argparse

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import ckpt

DENSE = {
    "attention.output.dense": "attention/out",
    "attention.self.*": "attention/*",
    "intermediate.dense": "mlp/up",
    "output.dense": "mlp/down",
}
NORMS = {"attention.output.LayerNorm": "attention/norm", "output.LayerNorm": "mlp/norm"}
NAMES = {
    f"encoder.layer.*.{old}.{kind}": f"layer_*/{new}/{name}"
    for parts, weight in ((NORMS, "scale"), (DENSE, "kernel"))
    for old, new in parts.items()
    for kind, name in (("weight", weight), ("bias", "bias"))
}
"""Names in the file, and in the tree; the first rule that fits counts, both ways."""

BACK = {new: old for old, new in NAMES.items()}


def transpose(tree: dict) -> dict:
    turn = {"kernel": jnp.transpose}
    return jax.tree.map_with_path(
        lambda path, leaf: turn.get(path[-1].key, jnp.asarray)(leaf), tree
    )


def load(folder: str, mesh: jax.sharding.Mesh) -> dict:
    specs = {"**/kernel": P("model")}
    tree = ckpt.restore(folder, mesh, rename=NAMES, specs=specs, cast="lossy")
    return jax.jit(transpose, donate_argnums=0)(tree)


def apply_layer(layer: dict, x: jax.Array, *, heads: int) -> jax.Array:
    """Encode [length, width] by one layer."""

    def dense(p: dict, x: jax.Array) -> jax.Array:
        return x @ p["kernel"] + p["bias"]

    def norm(p: dict, x: jax.Array) -> jax.Array:
        return jax.nn.standardize(x, epsilon=1e-12) * p["scale"] + p["bias"]

    at = layer["attention"]
    q, k, v = (
        dense(at[n], x).reshape(len(x), heads, -1) for n in ("query", "key", "value")
    )
    mixed = jax.nn.dot_product_attention(q[None], k[None], v[None])[0]
    x = norm(at["norm"], x + dense(at["out"], mixed.reshape(x.shape)))
    up = jax.nn.gelu(dense(layer["mlp"]["up"], x), approximate=False)
    return norm(layer["mlp"]["norm"], x + dense(layer["mlp"]["down"], up))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--out", default="converted")
    options = parser.parse_args()
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((jax.device_count(),), ("model",), auto)
    tree = load(options.folder, mesh)
    files = ckpt.save_safetensors(transpose(tree), options.out, rename=BACK)
    print(f"{len(jax.tree.leaves(tree))} arrays on {mesh}; wrote {', '.join(files)}")


if __name__ == "__main__":
    main()
