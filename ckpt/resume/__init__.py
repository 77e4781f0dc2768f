"""Training that resumes as if nothing had happened, and what its time went to."""

from ._batches import Batches as Batches, shuffle_indices as shuffle_indices
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
from ._run import REQUEUE as REQUEUE, Run as Run
from ._stream import Stream as Stream

__all__ = [
    "REQUEUE",
    "Batches",
    "EventLog",
    "Every",
    "Goodput",
    "Interval",
    "Last",
    "Policy",
    "Run",
    "Stream",
    "choose_interval",
    "daly",
    "estimate_mtbf",
    "every",
    "goodput",
    "prometheus",
    "shuffle_indices",
    "young_daly",
]
