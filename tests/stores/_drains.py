"""Kill trainers at any instant of a drain; the next process brings all that is left.

What the mirror holds after the kill must not be sent again. That is stricter than what
had been acknowledged: requests that were in flight are waited for, and then seen.
"""

import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

import ckpt
from tests._harness.jobs import Job, JobServer, Setup, wait_until
from tests._harness.servers import (
    BUCKET,
    Cloud,
    Kind,
    Request,
    Rule,
    environment,
    serve_clouds,
)
from tests.faults._trees import WrongTree, make_tree, restore_seed
from tests.jobs._matrix import MODULES
from tests.stores._places import CloudPlace, FilePlace, cloud_place, copy_to_memory
from tests.stores._runs import committed_folders
from tests.stores._trainers import KEEP

FIRST, LAST = 1, 2
KILLS = 20
SECONDS = 60.0

Finish = Literal["drain", "save", "copy", "start over"]


@dataclass(frozen=True, slots=True)
class Instant:
    """When a trainer is killed: as its n-th write to the mirror hangs, or by time."""

    write: int = 0
    delay: float = 0.0

    def __str__(self) -> str:
        return f"write {self.write}" if self.write else f"{1000 * self.delay:.0f} ms"


@dataclass(frozen=True, slots=True)
class Figures:
    """What was left to the next process, and what was found wrong."""

    kills: int
    left: Counter[str]
    again: int
    complaints: tuple[str, ...]

    def __str__(self) -> str:
        left = ", ".join(f"{name} {count}" for name, count in sorted(self.left.items()))
        return (
            f"{self.kills} kills, left: {left or 'nothing'}; {self.again} objects sent "
            f"again, {len(self.complaints)} complaints"
        )


def strike_drains(
    server: JobServer,
    cloud: Cloud,
    folder: Path,
    *,
    instants: int,
    finishes: Sequence[Finish] = ("drain", "save"),
    seed: int = 0,
) -> Figures:
    """Kill a trainer at random instants, each in a run of its own, and judge."""
    chosen = random.Random(seed)
    seconds, writes = measure(server, cloud, folder / "measured")
    left: Counter[str] = Counter()
    complaints: list[str] = []
    again = 0
    for number in range(instants):
        if number % 2:
            instant = Instant(delay=chosen.uniform(0, seconds))
        else:
            instant = Instant(write=chosen.randint(1, writes))
        finish = finishes[(number + number // 2) % len(finishes)]
        found = strike(server, cloud, folder / str(number), instant, finish=finish)
        left.update(found.left)
        again += found.again
        complaints += found.complaints
    return Figures(instants, left, again, tuple(complaints))


def drains() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield what was done, its figures, and complaints."""
    with serve_clouds() as clouds:
        os.environ.update(environment(clouds))
        for kind, cloud in clouds.items():
            with (
                JobServer(*MODULES) as server,
                tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
            ):
                found = strike_drains(server, cloud, Path(folder), instants=KILLS)
            yield f"{kind}, kill -9 in a drain", str(found), found.complaints


def measure(server: JobServer, cloud: Cloud, folder: Path) -> tuple[float, int]:
    """Return how many seconds a trainer takes, and how often it writes afar."""
    far = cloud_place(cloud)
    with start(server, "train", folder, far) as job:
        begun = time.monotonic()
        (answer,) = job.collect(timeout=SECONDS)
        seconds = time.monotonic() - begun
    if answer.status != "returned":
        raise RuntimeError(f"Expected a trainer to end, found {answer}")
    return seconds, len(writes_to(far, cloud.take_log()))


def start(server: JobServer, trainer: str, folder: Path, far: CloudPlace) -> Job:
    """Start a trainer in a process of its own."""
    folder.mkdir()
    job = server.start(Setup(1))
    job.begin(
        f"tests.stores._trainers:{trainer}",
        *(str(folder / "run"), far.url, str(folder / "ledger"), FIRST, LAST),
    )
    return job


def strike(
    server: JobServer,
    cloud: Cloud,
    folder: Path,
    instant: Instant,
    *,
    trainer: str = "train",
    finish: Finish = "drain",
) -> Figures:
    """Kill one trainer, let the next process finish, and judge what both left."""
    far, near = cloud_place(cloud), FilePlace(folder / "run")
    log: list[Request] = []

    def hangs() -> bool:
        log.extend(cloud.take_log())
        return any(request.fault for request in log)

    try:
        if instant.write:
            within = far.folder.replace("/", "(/|%2F)")
            rule = Rule("hang", within, "PUT|POST", first=instant.write)
            cloud.break_with(rule)
        with start(server, trainer, folder, far) as job:
            if instant.write:
                wait_until(hangs, timeout=SECONDS)
            else:
                time.sleep(instant.delay)
            job.kill(0)
    finally:
        cloud.break_with()
    log += cloud.take_log()
    held = settle(far, log)
    acknowledged = read_ledger(folder / "ledger") | committed_steps(near)
    left = Counter({"steps": len(acknowledged - committed_steps(far))})
    left["objects of a step that was under way"] = len(held - committed_names(far))
    complaint, again = "", {""}
    try:
        FINISHES[finish](near, far)
        again = {n for n in writes_to(far, cloud.take_log()) if n in held}
        complaint = find_complaint(near, far, acknowledged)
    except (ckpt.CkptError, WrongTree, TimeoutError) as error:
        complaint = f"{type(error).__name__}: {error}"
    complaints = [complaint] * bool(complaint)
    complaints += [f"sent again: {sorted(again)}"] * bool(again)
    where = f"{cloud.kind}, {trainer} killed at {instant}, then {finish}"
    wrong = tuple(f"{where}: {complaint}" for complaint in complaints)
    return Figures(1, +left, len(again), wrong)


def settle(far: CloudPlace, log: Sequence[Request]) -> set[str]:
    """Wait until what was in flight has come, and return the names of all objects.

    Notes of attempts are left out: they are renewed, and removed.
    """
    sent = {n for n in writes_to(far, [r for r in log if not r.fault]) if is_kept(n)}
    wait_until(lambda: sent <= set(far.names()), timeout=SECONDS)
    return {name for name in far.names() if is_kept(name)}


def is_kept(name: str) -> bool:
    """Tell whether an object, once written, stays as it is."""
    return not name.endswith(".attempt")


def writes_to(far: CloudPlace, log: Sequence[Request]) -> list[str]:
    """Return the names of the objects that were sent to a run, in order."""
    names = [object_name(far.kind, request) for request in log if request.writes]
    prefix = f"{far.folder}/"
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def object_name(kind: Kind, request: Request) -> str:
    """Return the name of the object that a request is about."""
    url = urlsplit(request.path)
    if kind == "gs" and request.method == "POST":
        return parse_qs(url.query).get("name", [""])[0]
    return unquote(url.path).partition(f"/{BUCKET}/")[2]


def read_ledger(ledger: Path) -> set[int]:
    """Return the steps whose saves have returned; a torn last line is none."""
    text = ledger.read_text() if ledger.exists() else ""
    return {int(line) for line in text.split("\n")[:-1]}


def names_of(near: FilePlace, suffix: str) -> set[str]:
    """Return the names of files in `steps` with a suffix, without it."""
    found = (near.root / "steps").glob(f"*{suffix}")
    return {path.name.removesuffix(suffix) for path in found}


def names_waiting(near: FilePlace) -> set[str]:
    """Return the folders that the mirror is still to have, as their notes say."""
    found = set[str]()
    for path in (near.root / "steps").glob("*.mirror"):
        with suppress(FileNotFoundError):
            if '"done":false' in path.read_text():
                found.add(path.stem)
    return found


def committed_steps(place: FilePlace | CloudPlace) -> set[int]:
    return set(committed_folders(place))


def committed_names(far: CloudPlace) -> set[str]:
    """Return the names of records and of what is in the folders that they name."""
    folders = committed_folders(far)
    records = {f"steps/{step}.json" for step in folders}
    names = {name for name in far.names() if name.partition("/")[0] in folders.values()}
    return names | records


def find_complaint(near: FilePlace, far: CloudPlace, steps: set[int]) -> str:
    """Say what is wrong with a run and its mirror, "" if nothing is.

    The mirror has all these steps and those that are here, of the same commits and
    nothing else but, after a kill between the two, the note of one that is committed;
    here are at most a few, and no step waits any more.
    """
    here, there = committed_folders(near), committed_folders(far)
    if lost := (steps | here.keys()) - there.keys():
        return f"the mirror lacks {sorted(lost)}"
    if here.items() - there.items():
        return f"found {here} here, {there} in the mirror"
    if waiting := names_waiting(near) & set(here.values()):
        return f"{sorted(waiting)} wait after all was done"
    if len(here) > KEEP:
        return f"found {sorted(here)} here, expected at most {KEEP}"
    stale = {f"steps/{folder}.attempt" for folder in there.values()}
    if extra := set(far.names()) - committed_names(far) - stale:
        return f"found {sorted(extra)} in the mirror"
    copied = copy_to_memory(far)
    for url, found in ((near.url, here), (copied.url, there)):
        for step in found:
            if restore_seed(url, step) != step or not ckpt.verify(url, step=step).ok:
                return f"step {step} of {url} is not whole"
    return ""


def finish_by_drain(near: FilePlace, far: CloudPlace) -> None:
    # An unsafe trainer may have left nothing at all.
    with suppress(ckpt.NotFound):
        ckpt.drain(near.root, far.url, keep_local=KEEP)


def finish_by_save(near: FilePlace, far: CloudPlace) -> None:
    """Save the next step as a new trainer does; its drain does the rest."""
    tree, step = make_tree(LAST + 1, "wide"), LAST + 1
    orphans = names_of(near, ".attempt")
    ckpt.save(tree, None, near.root, step=step, mirror=far.url, keep_local=KEEP)

    def is_done() -> bool:
        # What is removed is noted until it is gone.
        waiting = names_waiting(near) - orphans
        removed = len(names_of(near, ".json")) <= KEEP
        return not waiting and removed and names_of(near, ".attempt") <= orphans

    wait_until(is_done, timeout=SECONDS)


def finish_by_copy(near: FilePlace, far: CloudPlace) -> None:
    """Copy all that is here, then keep little of it."""
    ckpt.copy(near.root, far.url)
    ckpt.prune(near.root, keep=ckpt.Keep(last=KEEP))


def start_over(near: FilePlace, far: CloudPlace) -> None:
    """Unsafe: removes what a killed drain has sent, and sends it all again."""
    ckpt.prune(far.url, orphan_age=0)
    finish_by_drain(near, far)


FINISHES: Mapping[Finish, Callable[[FilePlace, CloudPlace], None]] = {
    "drain": finish_by_drain,
    "save": finish_by_save,
    "copy": finish_by_copy,
    "start over": start_over,
}
