"""Training that resumes as if nothing had happened, and what its time went to."""

from ._events import EventLog as EventLog
from ._goodput import Goodput as Goodput, goodput as goodput
from ._interval import (
    Interval as Interval,
    choose_interval as choose_interval,
    daly as daly,
    estimate_mtbf as estimate_mtbf,
    young_daly as young_daly,
)
from ._policy import Every as Every, Last as Last, Policy as Policy, every as every
from ._prometheus import prometheus as prometheus

__all__ = [
    "EventLog",
    "Every",
    "Goodput",
    "Interval",
    "Last",
    "Policy",
    "choose_interval",
    "daly",
    "estimate_mtbf",
    "every",
    "goodput",
    "prometheus",
    "young_daly",
]
