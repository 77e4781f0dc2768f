"""Times of contenders as lines to read: medians, and how they compare with ours."""

import statistics
from collections.abc import Mapping, Sequence


def format_ratios(title: str, times: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a line for each contender, its time over that of "KIND: ckpt".

    Times are in seconds, and named "KIND: CONTENDER".

    >>> print("\\n".join(format_ratios("disk", {"a: ckpt": [1, 2, 3], "a: b": [5]})))
    disk                                       median  ratio to ckpt
      a: ckpt                                  2.000s           1.00
      a: b                                     5.000s           2.50
    """
    lines = [f"{title:<40} {'median':>8} {'ratio to ckpt':>14}"]
    for turn, seconds in times.items():
        ours = statistics.median(times[f"{turn.partition(':')[0]}: ckpt"])
        median = statistics.median(seconds)
        lines.append(f"  {turn:<38} {median:>7.3f}s {median / ours:>14.2f}")
    return lines
