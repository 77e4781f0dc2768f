"""How often to save: pure functions of what was measured.

A save that blocks training for `stall` seconds every `interval` seconds costs the share
stall / interval; a failure, once in `mtbf` seconds on the average, costs the work since
the last save, half an interval. The sum is least at sqrt(2 * stall * mtbf).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_DAY = 86400.0

_PRIOR_FAILURES = 1.0
_PRIOR_HOST_SECONDS = 200 * _DAY
"""One failure in 200 host-days: 5 per 1000 host-days.

Published: 3.8 per 1000 host-days (Llama 3: 419 unexpected interruptions of 2,048 hosts
in 54 days), 6.5 (Kokolis et al., HPCA 2025, RSC-1).
"""


@dataclass(frozen=True, slots=True)
class Interval:
    """Every how many `seconds` to save, and what `bound` it.

    `bound` is "optimum" where nothing did, "share" (of the stall), "cap", "write" (the
    time of a save in the background) or "floor". `optimum` is what the model alone
    says, for a mean time between failures of `mtbf` seconds.
    """

    seconds: float
    bound: str
    optimum: float
    mtbf: float

    def __str__(self) -> str:
        return (
            f"every {self.seconds:.4g} s ({self.bound}; optimum {self.optimum:.4g} s "
            f"for a failure in {self.mtbf / 3600:.3g} h)"
        )


def young_daly(stall: float, mtbf: float) -> float:
    """Return the first-order optimal time between saves: sqrt(2 * stall * mtbf).

    Source: J. W. Young, "A first order approximation to the optimum checkpoint
    interval", Communications of the ACM 17(9), 1974.

    >>> round(young_daly(0.5, 3.08 * 3600))
    105
    """
    _check(stall=stall, mtbf=mtbf)
    return math.sqrt(2) * math.sqrt(stall) * math.sqrt(mtbf)


def daly(stall: float, mtbf: float) -> float:
    """Return the optimal time between saves to a higher order, for short MTBFs.

    It is the time from the end of one save to the begin of the next. Source:
    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
    dumps", Future Generation Computer Systems 22(3), 2006.

    >>> round(daly(0.5, 3.08 * 3600)), round(daly(300, 3600)), daly(50, 20)
    (105, 1276, 20)
    """
    _check(stall=stall, mtbf=mtbf)
    if stall >= 2 * mtbf:
        return mtbf
    part = stall / (2 * mtbf) if mtbf else 0.0
    return young_daly(stall, mtbf) * (1 + math.sqrt(part) / 3 + part / 9) - stall


def estimate_mtbf(failures: int, seconds: float, *, hosts: int = 1) -> float:
    """Return the mean time between failures of a job, in seconds, from what it saw.

    The rate of a host has a Gamma prior of shape 1 and mean 5 per 1000 host-days, so
    that the first hours of a run give a sensible answer; this is the inverse of the
    mean of its posterior, times the hosts.

    >>> [round(estimate_mtbf(0, 0, hosts=n) / 3600, 1) for n in (1, 1000)]
    [4800.0, 4.8]
    >>> round(estimate_mtbf(419, 54 * 86400, hosts=2048) / 3600, 2)
    3.09
    """
    _check(failures=failures, seconds=seconds)
    if hosts < 1:
        raise ValueError(f"expected hosts of 1 or more, found {hosts}")
    rate = (_PRIOR_FAILURES + failures) / (_PRIOR_HOST_SECONDS + hosts * seconds)
    return 1 / (hosts * rate)


def choose_interval(
    stall: float,
    write: float,
    *,
    failures: int,
    seconds: float,
    hosts: int = 1,
    share: float = 0.01,
    cap: float = 1800.0,
    floor: float = 10.0,
) -> Interval:
    """Return how often to save, in seconds from the begin of one save to the next.

    It is the Young/Daly optimum for the measured `stall` of a save and `failures` in
    `seconds` on `hosts`, then, each before those above it:
    1. long enough that saves block for at most `share` of the time, but no more than
       twice the optimum, beyond which lost work would cost more than that spares;
    2. no longer than `cap`, since not all that can go wrong is in the model;
    3. no shorter than a `write` in the background takes, nor than `floor`.

    >>> print(choose_interval(0.5, 20, failures=3, seconds=86400, hosts=64))
    every 298.5 s (optimum; optimum 298.5 s for a failure in 24.8 h)
    >>> choose_interval(0.01, 600, failures=50, seconds=86400, hosts=4).bound
    'write'
    """
    _check(stall=stall, write=write, share=share, cap=cap, floor=floor)
    mtbf = estimate_mtbf(failures, seconds, hosts=hosts)
    best = young_daly(stall, mtbf)
    chosen, bound = best, "optimum"
    wanted = min(stall / share if share else math.inf, 2 * best)
    if wanted > chosen:
        chosen, bound = wanted, "share"
    if chosen > cap:
        chosen, bound = cap, "cap"
    for least, name in ((write, "write"), (floor, "floor")):
        if chosen < least:
            chosen, bound = least, name
    return Interval(chosen, bound, best, mtbf)


def _check(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"expected {name} of 0 or more, finite, found {value}")
