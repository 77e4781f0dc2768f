"""Restoring: compare, choose targets, plan reads, read, assemble the tree."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytree
from layouts import Manifest

from ._assemble import assemble_leaves
from ._catalog import Openable, Opened, PathLike
from ._errors import Damaged, StructureMismatch
from ._job import ALONE, BARRIER_SECONDS, Job, check_timeout, joined
from ._mirror import Places
from ._per_process import flatten_like, inside_nodes, split_paths
from ._rename import nest_by_path, number_by_like
from ._store_options import GivenOptions
from ._target import (
    Specs,
    Target,
    Wishes,
    choose_local_target,
    choose_target,
    require_devices,
    warn_changed,
)
from ._together import (
    Chosen,
    choose_together,
    read_nearest,
    spans_processes,
    withdrawing,
)
from ._written import check_budget

_SHOWN = 20


def restore(
    path: Openable | None = None,
    mesh: Any = None,
    *,
    step: int | None = None,
    like: Any = None,
    specs: Specs | None = None,
    select: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    cast: bool | str = False,
    missing: str = "error",
    extra: str = "error",
    strict: bool = False,
    max_host_bytes: int | None = None,
    expect: str | None = None,
    broadcast: bool = True,
    barrier_timeout: float = BARRIER_SECONDS,
    mirror: PathLike | None = None,
    store_options: GivenOptions | None = None,
) -> Any:
    """Restore a saved tree, every byte verified, on any mesh or on the host.

    Without `step` the newest committed one. A leaf goes where `like` says
    (NamedSharding), else where `specs` says, else its saved spec is re-laid on `mesh`;
    without any of them it comes back as numpy. `like` gives structure, types, shapes
    and dtypes, and everything that differs is listed at once. `select` reads only the
    paths its globs match, which are those after `rename`; the others are `like`'s, else
    ckpt.ABSENT. `rename` maps saved paths to like's; without `like`, to those of nested
    dicts. `cast=True` allows lossless dtype changes, "lossy" the rest, and what JAX
    would narrow. `expect` is the digest the checkpoint must have. With `mirror` the
    newest step of both places, from `path` unless it is damaged or missing there (then
    a UserWarning says so); the logger "ckpt" tells which. `store_options` say how to
    reach stores.

    In a job of several processes a restore onto a mesh (or shardings of `like`) that
    spans them is for all to call, with the same arguments. What several of them want
    is read once and spread by XLA, unless `broadcast` is False. When one fails or
    stays away for `barrier_timeout` seconds, all raise. Other restores are local.

    Raises NotFound, Damaged, StructureMismatch, Unsupported, Untrusted, LimitExceeded,
    BarrierTimeout.

    >>> import jax.numpy as jnp, ckpt
    >>> done = ckpt.save({"w": jnp.arange(3.0)}, None, "memory://doc-restore")
    >>> ckpt.restore("memory://doc-restore")
    {'w': array([0., 1., 2.], dtype=float32)}
    """
    together = spans_processes(mesh, like)
    call = joined(barrier_timeout, in_turn=True) if together else nullcontext(ALONE)
    with call as job, withdrawing(job):
        with job.refusing("begin"):
            check_options(cast, missing, extra, like)
            check_budget(max_host_bytes)
            check_timeout(barrier_timeout)
            require_devices(mesh)
        places = Places(path, mirror, store_options)
        chosen = choose_together(job, places, step, max_host_bytes)
        with job.refusing("read-0"):
            _check_digest(chosen, expect)

        def read(attempt: Job, find: Callable[[], Opened]) -> Any:
            with attempt.refusing("read-0"):
                opened = find()
                wishes = Wishes(mesh, like, specs, cast, strict)
                mine, others = split_paths(opened.manifest.structure, attempt)
                wanted = resolve(
                    opened.manifest, wishes, select, rename, missing, extra, others
                )
                told = [t for t in wanted.targets if t.notes]
                notes = [f"`{t.path}`: {'; '.join(t.notes)}" for t in told]
                warn_changed(notes, stacklevel=3)
            made = assemble_leaves(
                opened,
                wanted.targets,
                max_host_bytes=chosen.budget,
                job=attempt,
                alone=mine if broadcast else None,
            )
            leaves = {path: made[n] for path, n in wanted.places.items()}
            return pytree.unflatten(wanted.structure, wanted.kept | leaves)

        return read_nearest(job, places, chosen, read)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What restore will make: the tree's structure, its targets, and leaves to keep.

    `places` has the number of the target of every path that is restored: tied paths
    that become the same share one.
    """

    structure: pytree.Structure
    targets: tuple[Target, ...]
    places: dict[str, int]
    kept: dict[str, Any]


def check_options(cast: bool | str, missing: str, extra: str, like: Any) -> None:
    """Refuse options that mean nothing, alone or together."""
    if cast not in (False, True, "lossy"):
        raise ValueError(f'expected cast to be a bool or "lossy", found {cast!r}')
    if missing not in ("error", "keep"):
        raise ValueError(f'expected missing to be "error" or "keep", found {missing!r}')
    if extra not in ("error", "ignore"):
        raise ValueError(f'expected extra to be "error" or "ignore", found {extra!r}')
    if like is None and (missing != "error" or extra != "error"):
        raise ValueError("expected like= with missing= or extra=, found none")


def _check_digest(chosen: Chosen, expect: str | None) -> None:
    if expect is not None and expect != chosen.digest:
        raise Damaged(
            f"expected the checkpoint with digest {expect}, found {chosen.digest} "
            f"- in {chosen.url}"
        )


def resolve(
    manifest: Manifest,
    wishes: Wishes,
    select: str | Iterable[str] | None,
    rename: Mapping[str, str] | None,
    missing: str,
    extra: str,
    skipped: Container[str] = (),
) -> Wanted:
    """Match the saved leaves with the wanted ones and choose a target for each.

    Those at `skipped` paths are not read.
    """
    structure = manifest.structure
    numbers = {leaf.path: n for n, leaf in enumerate(manifest.leaves)}
    ties = dict(structure.ties)
    saved = numbers | {alias: numbers[path] for alias, path in ties.items()}
    if rename:
        renamed = pytree.rename_paths(saved, rename)
        saved = {renamed[path]: number for path, number in saved.items()}
        if wishes.like is None:
            structure = nest_by_path(saved)
    chosen = None if select is None else pytree.compile_globs(select)
    wanted = structure
    like: dict[str, Any] = {}
    if wishes.like is not None:
        # What is tied in `like` alone is not one leaf here: the saved ties decide.
        like, wanted = flatten_like(wishes.like, structure)
        like |= {alias: like[path] for alias, path in wanted.ties.items()}
        if not manifest.commit:
            saved = number_by_like(saved, like)
        _compare(manifest, saved, like, wanted, rename, missing, extra, chosen)
    matched = [
        path
        for path in wanted.positions
        if path in saved and (chosen is None or chosen(path))
    ]
    if select is not None and not matched:
        raise ValueError(f"expected select= to match a leaf, found none for {select!r}")
    picked = [path for path in matched if path not in skipped]
    own = inside_nodes(wanted)
    targets: dict[Target, int] = {}
    places: dict[str, int] = {}
    wrong: list[str] = []
    for path in picked:
        number = saved[path]
        leaf = manifest.leaves[number]
        try:
            if path in own:
                target = choose_local_target(number, path, leaf, wishes)
            else:
                target = choose_target(number, path, leaf, wishes, like.get(path))
        except StructureMismatch as error:
            wrong.append(str(error))
        else:
            places[path] = targets.setdefault(target, len(targets))
    _raise_all(wrong, manifest)
    kept = {
        path: like.get(path, pytree.ABSENT)
        for path in wanted.positions
        if path not in places
    }
    return Wanted(wanted, tuple(targets), places, kept)


def _compare(
    manifest: Manifest,
    saved: Mapping[str, int],
    like: Mapping[str, Any],
    wanted: pytree.Structure,
    rename: Any,
    missing: str,
    extra: str,
    chosen: Any,
) -> None:
    """Refuse trees that differ, listing everything wrong at once."""
    wrong: list[str] = []
    if missing == "error":
        wrong += [
            f"expected a saved leaf, found none - at `{path}`"
            for path in like
            if path not in saved and (chosen is None or chosen(path))
        ]
    if extra == "error":
        wrong += [
            f"expected no leaf, found a saved one - at `{path}`"
            for path in saved
            if path not in like and (chosen is None or chosen(path))
        ]
    if not rename:
        differences = pytree.compare(manifest.structure, wanted)
        wrong += [str(d) for d in differences if d.problem == "static"]
    _raise_all(wrong, manifest, hint='; missing="keep" and extra="ignore" allow that')


def _raise_all(wrong: Sequence[str], manifest: Manifest, *, hint: str = "") -> None:
    if not wrong:
        return
    lines = list(wrong[:_SHOWN])
    if len(wrong) > _SHOWN:
        lines.append(f"(+{len(wrong) - _SHOWN} more)")
    raise StructureMismatch(
        f"expected step {manifest.step} to match, found {len(wrong)} differences"
        f"{hint}:\n  " + "\n  ".join(lines)
    )
