"""What a run in an object store must be, told past the library where that goes."""

import json
import re
from collections.abc import Mapping, Sequence

import ckpt
from tests.faults._trees import WrongTree, restore_seed
from tests.stores._places import Place, copy_to_memory

State = Mapping[int, int]
"""The seed of the tree of each committed step."""


def committed_folders(place: Place) -> dict[int, str]:
    """Read from each commit record which folder it names, without the library."""
    found: dict[int, str] = {}
    for name in place.names():
        if re.fullmatch(r"steps/\d+\.json", name):
            body = json.loads(place.get(name).splitlines()[1])
            found[body["step"]] = body["directory"]
    return found


def find_complaint(place: Place, legal: Sequence[State], end: str = "") -> str:
    """Say what is wrong with a run, "" if nothing is.

    Its state must be a legal one. Every folder must be named by a record or by a note;
    after a call that returned, by a record. `prune` must remove the others. This looks
    at a copy in memory, as servers in Python take their time.
    """
    place = copy_to_memory(place)
    try:
        state = {step: restore_seed(place.url, step) for step in ckpt.steps(place.url)}
        committed = committed_folders(place)
        names = place.names()
        noted = {n[6:-8] for n in names if n.endswith(".attempt")}
        folders = {name.partition("/")[0] for name in names} - {"steps"}
        left = folders - set(committed.values())
        if state not in legal:
            return f"found {state} after {end}, expected one of {list(legal)}"
        if committed.keys() != state.keys() or not left <= noted:
            return f"found {names} after {end}"
        if not all(ckpt.verify(place.url, step=step).ok for step in state):
            return f"verify is not content with {state} after {end}"
        if end == "returned" and left:
            return f"found {left} after {end}"
        if left | noted:
            ckpt.prune(place.url, orphan_age=0)
            after = {n.partition("/")[0] for n in place.names()} - {"steps"}
            if after != set(committed.values()):
                return f"found {after} after a prune"
    except (ckpt.CkptError, WrongTree) as error:
        return f"{type(error).__name__} after {end}: {error}"
    return ""
