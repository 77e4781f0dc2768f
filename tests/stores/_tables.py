"""Which faults strike which requests: a few of each kind for tests, all for campaigns.

A fault that goes away must not be noticed; one that stays is an error that says so.
What hangs and goes away takes nine seconds, so it is left to campaigns.
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

TIMEOUT = 2.0

KEPT = ("StoreError", "StepExists")
"""How a save may end that changes nothing."""


def _doubts(on: str) -> list[Strike]:
    ways = ["clear", "try another step"] if on == "record" else ["clear"]
    faults: list[Fault] = ["lost", "fail after"]
    return [Strike(on, once(fault), unsafe=way) for fault in faults for way in ways]


def _denials(*kinds: str) -> list[Strike]:
    ends = {
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
        Strike("record", TAKEN, unsafe="go on"),
        Strike("data", CONFLICT, unsafe="go on"),
        Strike("record", CONFLICT, unsafe="go on"),
        *_denials("note", "data", "record", "removal of the note"),
    ]


def all_save_strikes() -> Sequence[Strike]:
    """Return every fault on every kind of request."""
    bursts = [answer(status, count=3) for status in (503, 429, 500)]
    passing = [*bursts, once("reset"), once("hang"), Rule("reset", count=3)]
    return [
        *(Strike(on, rule, unsafe="go on") for on in SAVED for rule in passing),
        *(strike for on in SAVED for strike in _doubts(on)),
        *(Strike(on, TAKEN, unsafe="go on") for on in SAVED),
        *(Strike(on, CONFLICT, unsafe="go on") for on in SAVED),
        *_denials("note", *SAVED, "removal of the note"),
        *(
            Strike(on, rule)
            for on in ("note", "removal of the note", "list")
            for rule in (*bursts, once("reset"), once("lost"))
        ),
    ]


def lasting_save_strikes() -> Sequence[Strike]:
    """Return those that do not pass: a save gives up in time."""
    forever = [answer(503, count=1 << 40), Rule("hang")]
    return [
        *(
            Strike(on, rule, KEPT, "go on", TIMEOUT)
            for on in SAVED[:-1]
            for rule in forever
        ),
        *(
            Strike("record", rule, ("CommitUnknown",), "go on", TIMEOUT)
            for rule in forever
        ),
        Strike("record", Rule("late"), ("CommitUnknown",), timeout=TIMEOUT),
        Strike("data", Rule("late"), KEPT, timeout=TIMEOUT),
    ]


def lasting_restore_strikes() -> Sequence[Strike]:
    """Return those that do not pass: a restore gives up in time."""
    faults: list[Fault] = ["reset", "hang", "stall", "truncate"]
    forever = [answer(503, count=1 << 40), *(Rule(fault) for fault in faults)]
    ends = ("StoreError", "Damaged")
    return [
        Strike(on, rule, ends, timeout=TIMEOUT)
        for on in ("data read", "record read")
        for rule in forever
    ]


def restore_strikes() -> Sequence[Strike]:
    """Return a few strikes of each kind."""
    return [
        Strike("data read", BUSY[0]),
        Strike("record read", BUSY[1]),
        Strike("list", BUSY[2]),
        Strike("data read", once("reset")),
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
        for on, firsts in (("data read", (1, 2)), ("record read", (1,)))
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
