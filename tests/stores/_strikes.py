"""Faults of object stores, each on one kind of request of a save or a restore.

All strikes of a table are done at once, each on a run of its own: what they take is
mostly waiting for the next try.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import ckpt
from tests._harness.servers import Cloud, Rule
from tests.faults._trees import WrongTree, make_tree, restore_seed
from tests.stores import _unsafe
from tests.stores._places import CloudPlace, cloud_place, read_objects
from tests.stores._runs import State, find_complaint

THREADS = 12

REQUESTS: dict[str, tuple[str, str]] = {
    "note": ("PUT|POST", r"\.attempt"),
    "data": ("PUT|POST", r"(/|%2F)c(/|%2F)\d"),
    "part": ("PUT|POST", r"parts(/|%2F)\d+\.json"),
    "manifest": ("PUT|POST", r"manifest\.json"),
    "record": ("PUT|POST", r"steps(/|%2F)\d+\.json"),
    "removal of the note": ("DELETE", r"\.attempt"),
    "list": ("GET", r"list-type=2|/o\?(?!.*alt=)"),
    "data read": ("GET", r"(/|%2F)2-[0-9a-f]+(/|%2F).*(/|%2F)c(/|%2F)\d"),
    "part read": ("GET", r"(/|%2F)2-[0-9a-f]+(/|%2F)parts"),
    "manifest read": ("GET", r"(/|%2F)2-[0-9a-f]+(/|%2F)manifest\.json"),
    "record read": ("GET", r"steps(/|%2F)2\.json"),
}
"""The method and the path of each kind of request; reads are those of step 2."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault on a kind of request, and how the call may end.

    `unsafe` names an unsafe way to save that must be found out under this fault.
    """

    on: str
    rule: Rule
    ends: tuple[str, ...] = ("returned",)
    unsafe: str = ""

    def __str__(self) -> str:
        rule = self.rule
        fault = str(rule.status) if rule.fault == "answer" else rule.fault
        times = "always" if rule.count > 1000 else f"{rule.count} from {rule.first}"
        return f"{fault} ({times}) on {self.on}"

    def rule_for(self, place: CloudPlace) -> Rule:
        """Return the rule that strikes the requests of one run alone."""
        method, path = REQUESTS[self.on]
        folder = place.folder.replace("/", "(/|%2F)")
        both = rf"(?=.*{folder}(/|%2F)).*({path})"
        return replace(self.rule, method=method, path=both)


@dataclass(frozen=True, slots=True)
class Figures:
    """How the calls ended, what was found wrong, and which faults went unnoticed.

    A fault is unnoticed when it was not met, or when nothing is wrong.
    """

    ends: Counter[str]
    complaints: tuple[str, ...]
    unnoticed: tuple[str, ...]

    def __str__(self) -> str:
        ends = ", ".join(f"{name} {count}" for name, count in sorted(self.ends.items()))
        return (
            f"{self.ends.total()} strikes ({ends}), {len(self.complaints)} complaints"
        )


Call = Callable[[str], object]
Saver = Literal["safe", "unsafe"]


def strike_saves(
    cloud: Cloud, strikes: Sequence[Strike], saver: Saver = "safe"
) -> Figures:
    """Save step 2 beside step 1 under each fault, and judge what came of it."""
    old, new = {1: 1}, {1: 1, 2: 2}
    legal: dict[str, list[State]] = {"returned": [new], "CommitUnknown": [old, new]}

    def judge(strike: Strike, place: CloudPlace, end: str, message: str) -> str:
        if end not in strike.ends:
            return f"ended with {end} {message}"
        return find_complaint(place, legal.get(end, [old]), end)

    def call(strike: Strike, url: str) -> None:
        if saver == "unsafe":
            _unsafe.save(cloud, strike.unsafe, url, 2, 2)
        else:
            # Only a save that must choose its step lists them.
            step = None if strike.on == "list" else 2
            ckpt.save(make_tree(2), None, url, step=step)

    return _strike(cloud, strikes, [partial(call, s) for s in strikes], old, judge)


def strike_restores(
    cloud: Cloud, strikes: Sequence[Strike], reader: Call = restore_seed
) -> Figures:
    """Restore the newest of two steps under each fault, and judge what came back."""

    def judge(strike: Strike, place: CloudPlace, end: str, message: str) -> str:
        del place
        return "" if end in strike.ends else f"ended with {end} {message}"

    def call(url: str) -> None:
        seed = reader(url)
        if seed != 2:
            raise WrongTree(f"the tree is that of seed {seed}")

    return _strike(cloud, strikes, [call] * len(strikes), {1: 1, 2: 2}, judge)


def _strike(
    cloud: Cloud,
    strikes: Sequence[Strike],
    calls: Sequence[Call],
    before: State,
    judge: Callable[[Strike, CloudPlace, str, str], str],
) -> Figures:
    places = [cloud_place(cloud) for _ in strikes]
    objects = read_objects(partial(_save_all, before))
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(partial(_put_all, objects), places))
        rules = [s.rule_for(p) for s, p in zip(strikes, places, strict=True)]
        cloud.take_log()
        cloud.break_with(*rules)
        try:
            ends = list(pool.map(_end_of, calls, [place.url for place in places]))
        finally:
            cloud.break_with()
        struck = [r.path.replace("%2F", "/") for r in cloud.take_log() if r.fault]
        found = list(pool.map(judge, strikes, places, *zip(*ends, strict=True)))
    complaints: list[str] = []
    unnoticed: list[str] = []
    for strike, place, complaint in zip(strikes, places, found, strict=True):
        name = f"{cloud.kind}, {strike}"
        met = any(f"{place.folder}/" in path for path in struck)
        if complaint or not met:
            complaints.append(f"{name}: {complaint or 'the fault was not met'}")
        if not complaint or not met:
            unnoticed.append(name)
    counts = Counter(end for end, _ in ends)
    return Figures(counts, tuple(complaints), tuple(unnoticed))


def _save_all(state: State, url: str) -> None:
    for step, seed in state.items():
        ckpt.save(make_tree(seed), None, url, step=step)


def _put_all(objects: dict[str, bytes], place: CloudPlace) -> None:
    for name, data in objects.items():
        place.put(name, data)


def _end_of(call: Call, url: str) -> tuple[str, str]:
    try:
        call(url)
    except (ckpt.CkptError, WrongTree) as error:
        return type(error).__name__, str(error)
    return "returned", ""
