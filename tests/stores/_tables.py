"""Which faults strike which requests: a few of each kind for tests, all for campaigns.

A fault that goes away must not be noticed; one that stays is an error that says so.
"""

from collections.abc import Sequence

from tests._harness.servers import Fault, Rule
from tests.stores._strikes import Strike

SAVED = ("data", "part", "manifest", "record")
READ = ("data read", "part read", "manifest read", "record read")


def answer(status: int, code: str = "SlowDown", *, count: int = 1) -> Rule:
    """Answer so many requests with a status, and as S3 names it."""
    body = f"<Error><Code>{code}</Code></Error>"
    return Rule("answer", status=status, count=count, body=body)


def once(fault: Fault, *, first: int = 1) -> Rule:
    return Rule(fault, first=first, count=1)


BUSY = (answer(503), answer(429), answer(500, "InternalError"))
CONFLICT = answer(409, "ConditionalRequestConflict")
TAKEN = answer(412, "PreconditionFailed")
DENIED = answer(403, "AccessDenied", count=1 << 40)

KEPT = ("StoreError", "StepExists")
"""How a save may end that changes nothing."""


def _doubts(on: str) -> list[Strike]:
    ways = ["clear", "try another step"] if on == "record" else ["clear"]
    faults: list[Fault] = ["lost", "fail after"]
    return [Strike(on, once(fault), unsafe=way) for fault in faults for way in ways]


def _denials(*kinds: str) -> list[Strike]:
    ends = {
        "record": ("StoreError", "CommitUnknown"),
        "removal of the note": ("returned",),
    }
    return [
        Strike(on, DENIED, ends.get(on, KEPT), "go on" if on in SAVED else "")
        for on in kinds
    ]


def save_strikes() -> Sequence[Strike]:
    """Return a few strikes of each kind."""
    return [
        Strike("data", BUSY[0], unsafe="go on"),
        Strike("manifest", BUSY[1], unsafe="go on"),
        Strike("record", BUSY[2], unsafe="go on"),
        Strike("data", once("reset"), unsafe="go on"),
        Strike("record", once("reset"), unsafe="go on"),
        *_doubts("data"),
        *_doubts("record"),
        Strike("record", once("hang"), unsafe="go on"),
        Strike("record", TAKEN, ("returned", *KEPT), "go on"),
        *_denials("note", "data", "record", "removal of the note"),
    ]


def conflict_strikes() -> list[Strike]:
    """Return those that only S3 answers so."""
    return [Strike(on, CONFLICT, unsafe="go on") for on in ("data", "record")]


def all_save_strikes() -> Sequence[Strike]:
    """Return every fault on every kind of request."""
    bursts = [answer(status, count=3) for status in (503, 429, 500)]
    passing = [*bursts, once("reset"), once("hang"), Rule("reset", count=3)]
    return [
        *(Strike(on, rule, unsafe="go on") for on in SAVED for rule in passing),
        *(strike for on in SAVED for strike in _doubts(on)),
        *(Strike(on, TAKEN, ("returned", *KEPT), "go on") for on in SAVED),
        *_denials("note", *SAVED, "removal of the note"),
        *(
            Strike(on, rule)
            for on in ("note", "removal of the note", "list")
            for rule in (*bursts, once("reset"), once("lost"))
        ),
    ]


def restore_strikes() -> Sequence[Strike]:
    """Return a few strikes of each kind."""
    return [
        Strike("data read", BUSY[0]),
        Strike("record read", BUSY[1]),
        Strike("list", BUSY[2]),
        Strike("data read", once("reset")),
        Strike("data read", once("stall")),
        Strike("record read", once("truncate")),
        Strike("data read", once("truncate", first=2)),
        Strike("manifest read", once("reset")),
    ]


def wrong_strikes() -> Sequence[Strike]:
    """Return those whose answers are whole, and wrong, for good."""
    faults: list[Fault] = ["shorten", "corrupt"]
    return [Strike(on, Rule(fault), ("Damaged",)) for on in READ for fault in faults]


def passing_wrong_strikes() -> Sequence[Strike]:
    """Return those whose answer is whole, and wrong, once."""
    faults: list[Fault] = ["shorten", "corrupt"]
    return [
        Strike(on, once(fault, first=first))
        for on, firsts in (("data read", (1, 2, 3)), ("record read", (1,)))
        for fault in faults
        for first in firsts
    ]


def all_restore_strikes() -> Sequence[Strike]:
    """Return every fault on every kind of request."""
    bursts = [answer(status, count=3) for status in (503, 429, 500)]
    faults: list[Fault] = ["reset", "stall", "truncate"]
    return [
        Strike(on, rule)
        for on in (*READ, "list")
        for rule in (*bursts, *(once(fault) for fault in faults))
    ]
