"""Which steps a run has, here and in its mirror."""

from __future__ import annotations

import warnings

from ._catalog import PathLike, committed_steps, locate, path_or_default
from ._errors import StoreError
from ._foreign import is_file, list_foreign_steps
from ._store import Store
from ._store_options import GivenOptions


def steps(
    path: PathLike | None = None,
    *,
    mirror: PathLike | None = None,
    store_options: GivenOptions | None = None,
) -> list[int]:
    """Return the committed steps of a run, ascending; with `mirror` those of both.

    A save that is under way, failed or was killed is never listed. Where there is none
    of ours, the finished steps of a run that Orbax or flax wrote.
    """
    found = own_steps(path, mirror=mirror, store_options=store_options)
    if found or mirror is not None or is_file(locate(path, store_options)):
        return found
    return list_foreign_steps(path_or_default(path), store_options)


def own_steps(
    path: PathLike | None = None,
    *,
    mirror: PathLike | None = None,
    store_options: GivenOptions | None = None,
) -> list[int]:
    """Return the steps of a run that this library committed, ascending."""
    run = locate(path, store_options)
    if mirror is None:
        return committed_steps(run)
    here, there = steps_of_both(run, locate(mirror, store_options))
    return sorted({*here, *there})


def steps_of_both(near: Store, far: Store) -> tuple[list[int], list[int]]:
    """Return the steps of a run and of its mirror; when one is silent, with a warning.

    Where the near run has steps, the mirror is given a few seconds.
    """
    found: list[list[int]] = []
    failed: list[StoreError] = []
    for store in (near, far):
        try:
            hurry = store is far and any(found)
            found.append(committed_steps(store.hurried() if hurry else store))
        except StoreError as error:
            found.append([])
            failed.append(error)
    if failed and not any(found):
        raise failed[0]
    for error in failed:
        warnings.warn(
            f"expected to see the steps of two places, found one silent ({error}) - "
            "only the other is looked at",
            stacklevel=4,
        )
    return found[0], found[1]


def latest(
    path: PathLike | None = None,
    *,
    mirror: PathLike | None = None,
    store_options: GivenOptions | None = None,
) -> int | None:
    """Return the newest of `steps`, None where there is none."""
    return max(steps(path, mirror=mirror, store_options=store_options), default=None)
