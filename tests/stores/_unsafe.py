"""Unsafe ways to save to a store and to restore from it, each caught by some faults."""

import http.client
from collections.abc import Callable

import ckpt
from tests._harness.servers import BUCKET, Cloud
from tests.faults._trees import make_tree, restore_seed
from tests.stores._places import CloudPlace, copy_to_memory, read_objects

PATIENCE = 1.0

Doubt = Callable[[CloudPlace, str, bytes], None]


def go_on(place: CloudPlace, name: str, data: bytes) -> None:
    """Take what has failed for done."""


def clear(place: CloudPlace, name: str, data: bytes) -> None:
    """Take what has failed for half of an object, and remove it."""
    if name in place.names():
        place.delete(name)


def try_another_step(place: CloudPlace, name: str, data: bytes) -> None:
    """Take what has failed for another writer's, and save as the next step."""
    objects = read_objects(lambda url: ckpt.save(make_tree(2), None, url, step=3))
    for name, data in objects.items():
        place.put(name, data)


SAVERS: dict[str, Doubt] = {
    "go on": go_on,
    "clear": clear,
    "try another step": try_another_step,
}


def save(cloud: Cloud, how: str, url: str, step: int, seed: int) -> None:
    """Send each object once; say that all is saved whatever came of it."""
    sure = CloudPlace(cloud, _folder(url))
    place = CloudPlace(cloud.through_proxy(patience=PATIENCE), sure.folder)
    objects = read_objects(
        lambda beside: ckpt.save(make_tree(seed), None, beside, step=step)
    )
    # Sorted by name, the record is the last.
    for name, data in objects.items():
        try:
            place.put(name, data)
        except (OSError, http.client.HTTPException):
            SAVERS[how](sure, name, data)


def restore(cloud: Cloud, url: str) -> int:
    """Ask for each object of the newest step once, and take the older when in doubt."""
    sure = CloudPlace(cloud, _folder(url))
    place = CloudPlace(cloud.through_proxy(patience=PATIENCE), sure.folder)
    step = 2
    try:
        names = [n for n in place.names() if n.startswith(("2-", "steps/2."))]
        if len(names) < 2 or any(place.get(name) != sure.get(name) for name in names):
            step = 1
    except (OSError, http.client.HTTPException):
        step = 1
    return restore_seed(copy_to_memory(sure).url, step)


def _folder(url: str) -> str:
    return url.partition(f"{BUCKET}/")[2]
