"""The libraries that are compared, each behind the same three functions."""

from benchmarks.contenders._table import (
    CONTENDERS as CONTENDERS,
    Contender as Contender,
    DescribingLibrary as DescribingLibrary,
    Library as Library,
    OverlappingLibrary as OverlappingLibrary,
    find_contender as find_contender,
    load_library as load_library,
    why_absent as why_absent,
)

__all__ = [
    "CONTENDERS",
    "Contender",
    "DescribingLibrary",
    "Library",
    "OverlappingLibrary",
    "find_contender",
    "load_library",
    "why_absent",
]
