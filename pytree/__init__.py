"""Trees to named leaves and back, and the structure of trees as JSON.

Pure functions: no files, threads, clock or randomness.

>>> import pytree
>>> leaves, structure = pytree.flatten({"params": {"w": 1.0, "b": 2.0}, "step": 3})
>>> leaves
{'params/w': 1.0, 'params/b': 2.0, 'step': 3}
>>> saved = pytree.Structure.from_json(structure.to_json())
>>> pytree.unflatten(saved, leaves)
{'params': {'w': 1.0, 'b': 2.0}, 'step': 3}
"""

from ._absent import ABSENT as ABSENT, Absent as Absent
from ._compare import (
    Difference as Difference,
    compare as compare,
    compare_containers as compare_containers,
)
from ._errors import (
    InvalidStructure as InvalidStructure,
    UnsupportedTree as UnsupportedTree,
)
from ._flatten import flatten as flatten
from ._glob import (
    compile_globs as compile_globs,
    match as match,
    rename_path as rename_path,
    rename_paths as rename_paths,
)
from ._graft import (
    find_nodes as find_nodes,
    graft as graft,
    take_children as take_children,
)
from ._path import Key as Key, format_path as format_path, parse_path as parse_path
from ._record import Record as Record
from ._register import register as register
from ._structure import Structure as Structure
from ._unflatten import unflatten as unflatten

__all__ = [
    "ABSENT",
    "Absent",
    "Difference",
    "InvalidStructure",
    "Key",
    "Record",
    "Structure",
    "UnsupportedTree",
    "compare",
    "compare_containers",
    "compile_globs",
    "find_nodes",
    "flatten",
    "format_path",
    "graft",
    "match",
    "parse_path",
    "register",
    "rename_path",
    "rename_paths",
    "take_children",
    "unflatten",
]
