"""The main job, for real: train, save, be killed, resume, change meshes, find a bit."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import ckpt
import layouts
import pytree

from ._model import Training, make_mesh, prepare_training
from ._train import resume, train

EVERY, KILLED, LAST = 4, 8, 12


class Failed(Exception):
    """A claim of the demo did not hold."""


def run_demo(
    folder: str | None = None,
    *,
    keep: bool = False,
    play: Callable[[Path], None] | None = None,
) -> int:
    """Run the demo and return its exit code: 0 when every claim held.

    It works in a new folder of its own, below `folder` if given; `play` is what is
    done there.
    """
    began = time.monotonic()
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
    base = Path(tempfile.mkdtemp(prefix="ckpt-demo-", dir=folder))
    try:
        (play or _run)(base / "run")
    except Failed as error:
        print(f"\nFAILED: {error}")
        return 1
    finally:
        if keep:
            print(f"\nLeft in {base}")
        else:
            shutil.rmtree(base, ignore_errors=True)
    print(f"\nEvery claim held, in {time.monotonic() - began:.0f} s.")
    return 0


def _run(run: Path) -> None:
    jax.config.update("jax_num_cpu_devices", 8)
    for name, value in _cache_settings(run).items():
        jax.config.update(name, value)
    training = prepare_training(make_mesh(4, 2))
    state = training.begin()
    size = sum(x.nbytes for x in pytree.flatten(state)[0].values())
    _title(
        f"1. An uninterrupted run on {_mesh(training)}: {size / 2**20:.0f} MiB of state"
    )
    expected, states = _reference(training, state)
    _title("2. The same training in a child process, killed -9 in the middle of a save")
    _kill_in_save(run, expected)
    _title("3. Resumed from the last committed step")
    _resume_same(training, run, expected)
    _title("4. The same checkpoint on other meshes")
    _picture(run)
    for shape in ((2, 2), (1, 1)):
        _resume_elsewhere(run, shape, states[ckpt.latest(run) or 0])
    _title("5. One flipped bit")
    flip_a_bit(run)


def _title(text: str) -> None:
    print(f"\n{text}")


def _mesh(training: Training) -> str:
    return str(layouts.mesh_layout(training.mesh))


def _claim(text: str, held: bool) -> None:
    print(f"   {'ok' if held else 'NO'}: {text}")
    if not held:
        raise Failed(text)


def _reference(
    training: Training, state: Any
) -> tuple[dict[int, float], dict[int, dict[str, Any]]]:
    """Train without a break; return the losses, and host copies at the saved steps."""
    losses: dict[int, float] = {}
    states: dict[int, dict[str, Any]] = {}
    for step, loss, now in train(training, state, first=0, last=LAST):
        losses[step] = loss
        if step % EVERY == 0:
            states[step] = _on_host(now)
            print(f"   step {step:3}   loss {loss:.4f}")
    return losses, states


def _on_host(state: Any) -> dict[str, Any]:
    """Return numpy copies of all leaves, typed keys as their data."""
    return {path: np.array(_plain(x)) for path, x in pytree.flatten(state)[0].items()}


def _plain(leaf: Any) -> Any:
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _cache_settings(run: Path) -> dict[str, Any]:
    """Return what lets the child find what this process has compiled already."""
    return {
        "jax_compilation_cache_dir": str(run.with_name("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }


def _kill_in_save(run: Path, expected: dict[int, float]) -> None:
    print(f"   {'step':>6} {'loss':>8}   committed")
    target = KILLED
    losses = _train_until_killed(run, target)
    while target in ckpt.steps(run) and target < LAST:
        print(f"   the save of step {target} was faster than the kill: once more")
        target += EVERY
        losses |= _train_until_killed(run, target)
    same = losses == {step: expected[step] for step in losses}
    _claim("the child's losses equal the uninterrupted run's, bit for bit", same)
    done = list(range(EVERY, target, EVERY))
    _claim(f"steps() lists {done}, not the torn step {target}", ckpt.steps(run) == done)
    orphans = ckpt.verify(run).orphans
    _claim(f"verify names what was left: {', '.join(orphans)}", len(orphans) == 1)
    freed = sum(r.bytes for r in ckpt.prune(run, orphan_age=0))
    _claim(
        f"prune(orphan_age=0) frees its {freed:,} bytes", not ckpt.verify(run).orphans
    )


def _train_until_killed(run: Path, target: int) -> dict[int, float]:
    """Train in a child; kill it once the save of `target` has written some data."""
    command = [sys.executable, "-m", "ckpt.cli._train", str(run), str(LAST), str(EVERY)]
    losses: dict[int, float] = {}
    settings = {k.upper(): str(v) for k, v in _cache_settings(run).items()}
    with _child(command, settings) as child:
        for line in child.stdout:
            step, loss = json.loads(line)
            losses[step] = float.fromhex(loss)
            print(f"   {step:6} {losses[step]:8.4f}   {ckpt.steps(run)}")
            if step == target:
                break
        while child.poll() is None and not _has_data(run, target):
            time.sleep(0.0005)
        child.send_signal(signal.SIGKILL)
        child.wait()
    print(f"   killed -9 while step {target} was being written")
    return losses


@contextlib.contextmanager
def _child(command: list[str], settings: dict[str, str]) -> Generator[Any]:
    environment = os.environ | settings
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def _has_data(run: Path, step: int) -> bool:
    """Tell whether an attempt at the step has begun to write objects."""
    return any(run.glob(f"{step}-*/**/c/*/0"))


def _resume_same(training: Training, run: Path, expected: dict[int, float]) -> None:
    began = time.monotonic()
    first, state = resume(training, str(run))
    jax.block_until_ready(jax.tree.map(_plain, state))
    seconds = time.monotonic() - began
    print(f"   {ckpt.plan(run, training.mesh).bytes:,} bytes read in {seconds:.2f} s")
    losses: dict[int, float] = {}
    for step, value, now in train(training, state, first=first, last=LAST):
        losses[step] = value
        state = now
    _claim(
        f"losses of steps {first + 1} to {LAST} equal the uninterrupted run's, "
        "bit for bit",
        losses == {s: expected[s] for s in losses} and len(losses) == LAST - first,
    )
    done = ckpt.save(
        state, training.mesh, run, step=LAST, metrics={"loss": losses[LAST]}
    )
    print(f"   saved step {done.step}: {len(done)} leaves, {done.nbytes:,} bytes")


def _picture(run: Path) -> None:
    """Show how one matrix lies on the mesh that saved it, and on the next."""
    leaf = ckpt.open(run)["0/blocks/0/up/kernel/value"].leaf
    placement = leaf.placement
    if placement is None or placement.mesh is None or placement.spec is None:
        raise Failed(f"`{leaf.path}` has no layout")
    print(f"   `{leaf.path}` {leaf.shape}, by the positions that hold each part:")
    for mesh in (placement.mesh, layouts.mesh_layout({"data": 2, "model": 2})):
        drawing = layouts.draw_layout(leaf.shape, placement.spec, mesh)
        print("\n".join(f"      {line}" for line in drawing.splitlines()))


def _resume_elsewhere(
    run: Path, shape: tuple[int, int], expected: dict[str, Any]
) -> None:
    training = prepare_training(make_mesh(*shape))
    step, state = resume(training, str(run))
    found = _on_host(state)
    same = found.keys() == expected.keys() and all(
        found[p].tobytes() == expected[p].tobytes() for p in expected
    )
    plan = ckpt.plan(run, training.mesh)
    print(f"   {_mesh(training)}: {plan.bytes:,} bytes read")
    _claim(f"the state of step {step} on {_mesh(training)} is bit-equal", same)
    for number, loss, _ in train(training, state, first=step, last=step + 1):
        print(f"   trains on: step {number}, loss {loss:.4f}")


def flip_a_bit(run: Path) -> None:
    """Flip a bit of the newest step and claim that it is found, and only there."""
    directory = Path(ckpt.open(run).url)
    victim = max(directory.glob("**/c/*/*"), key=lambda p: p.stat().st_size)
    with open(victim, "r+b") as file:
        file.seek(victim.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x10]))
    print(f"   planted in {victim.relative_to(directory)}")
    name = str(victim.relative_to(directory))
    try:
        ckpt.restore(run)
    except ckpt.Damaged as error:
        print(f"   {error}")
        _claim("restore refuses it and names the object", name in str(error))
    else:
        _claim("restore refuses it", held=False)
    report = ckpt.verify(run)
    _claim(
        f"verify names it: {report.damaged[0] if report.damaged else 'nothing'}",
        [p.object for p in report.damaged] == [name],
    )
    older = ckpt.steps(run)[-2]
    _claim(f"step {older} still verifies", ckpt.verify(run, step=older).ok)
