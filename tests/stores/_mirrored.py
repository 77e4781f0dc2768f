"""What the members of a job with a mirror do, each in its own process."""

import shutil
import warnings

import jax

import ckpt
from tests.faults._trees import flat, make_tree, same_bits
from tests.jobs._work import place_seed

BARRIER_SECONDS = 20.0


def save(near: str, far: str, step: int) -> None:
    """Save the tree of a seed, and wait until the mirror has it."""
    state, mesh = place_seed(step)
    ckpt.save(
        *(state, mesh, near), step=step, mirror=far, barrier_timeout=BARRIER_SECONDS
    )
    ckpt.drain(near, far, barrier_timeout=BARRIER_SECONDS)


def restore(near: str, far: str, step: int) -> list[str]:
    """Restore a step together; say what is not of its seed, and what was warned of."""
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        found = ckpt.restore(
            near, mesh, step=step, mirror=far, barrier_timeout=BARRIER_SECONDS
        )
    expected = flat(make_tree(step, "wide"))
    wrong = [
        f"{path} {shard.index}"
        for path, leaf in flat(found).items()
        for shard in leaf.addressable_shards
        if not same_bits(shard.data, expected[path][shard.index])
    ]
    told = {"it is read from" for one in raised if "it is read from" in str(one)}
    return wrong + sorted(told)


def restore_private(near: str, kept: str, far: str, step: int) -> list[str]:
    """Restore where process 0 has a near run of its own, and the others none."""
    if jax.process_index() == 0:
        shutil.copytree(kept, near, dirs_exist_ok=True)
    return restore(near, far, step)
